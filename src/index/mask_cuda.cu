#include <thrust/iterator/counting_iterator.h>
#include <thrust/iterator/tabulate_output_iterator.h>

#include <cub/device/device_select.cuh>

#include "common/launch.cuh"
#include "common/new_output.h"
#include "index/mask.h"

namespace torch_ops {
namespace {

// What is selected beyond the room that there is goes nowhere, so that the host need not know how
// much it is.
template <class Position>
struct WriteInRoom {
  Position* positions;
  int64_t room;

  __device__ void operator()(int64_t place, Position position) const {
    if (place < room) positions[place] = position;
  }
};

template <class Position>
void select(const at::Tensor& mask, const at::Tensor& positions) {
  const auto stream = at::cuda::getCurrentCUDAStream();
  const auto entries = thrust::make_counting_iterator(Position{0});
  const auto out = thrust::make_tabulate_output_iterator(
      WriteInRoom<Position>{positions.mutable_data_ptr<Position>(), positions.numel()});
  const at::Tensor count = new_output({1}, mask.options().dtype(at::kLong));
  const auto run = [&](void* scratch, size_t& bytes) {
    C10_CUDA_CHECK(cub::DeviceSelect::Flagged(scratch, bytes, entries, mask.const_data_ptr<bool>(),
                                              out, count.mutable_data_ptr<int64_t>(), mask.numel(),
                                              stream));
  };
  size_t bytes = 0;
  run(nullptr, bytes);
  const at::Tensor scratch =
      new_output({static_cast<int64_t>(bytes)}, mask.options().dtype(at::kByte));
  run(scratch.mutable_data_ptr(), bytes);
}

}  // namespace

void mask_positions_cuda(const at::Tensor& mask, const at::Tensor& positions) {
  if (mask.numel() == 0 || positions.numel() == 0) return;
  const c10::cuda::CUDAGuard guard(mask.device());
  if (positions.scalar_type() == at::kInt) {
    select<int32_t>(mask, positions);
  } else {
    select<int64_t>(mask, positions);
  }
}

}  // namespace torch_ops
