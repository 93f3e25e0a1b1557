#include <thrust/iterator/counting_iterator.h>
#include <thrust/iterator/tabulate_output_iterator.h>

#include <cub/device/device_select.cuh>

#include "common/cuda/launch.cuh"
#include "common/cuda/scratch.h"
#include "index/masks/mask_launch.h"

namespace torch_ops::kernels {
namespace {

// Selected positions beyond the available room are discarded, so the host need not know their
// number.
template <class Position>
struct WriteInRoom {
  Position* positions;
  int64_t room;

  __device__ void operator()(int64_t place, Position position) const {
    if (place < room) positions[place] = position;
  }
};

}  // namespace

template <class Position>
void mask_positions(OnCuda on, const bool* mask, int64_t entries, Position* positions,
                    int64_t room) {
  const HostScope scope(on.program);
  if (entries == 0 || room == 0) return;
  const auto numbers = thrust::make_counting_iterator(Position{0});
  const auto out = thrust::make_tabulate_output_iterator(WriteInRoom<Position>{positions, room});
  const DeviceScratch count(sizeof(int64_t));
  const auto run = [&](void* scratch, size_t& bytes) {
    TORCH_OPS_CUDA_CALL(cub::DeviceSelect::Flagged(scratch, bytes, numbers, mask, out,
                                                   static_cast<int64_t*>(count.get()), entries,
                                                   current_stream()));
  };
  size_t bytes = 0;
  run(nullptr, bytes);
  const DeviceScratch scratch(static_cast<int64_t>(bytes));
  run(scratch.get(), bytes);
}
template void mask_positions(OnCuda, const bool*, int64_t, int32_t*, int64_t);
template void mask_positions(OnCuda, const bool*, int64_t, int64_t*, int64_t);

}  // namespace torch_ops::kernels
