#include "common/cuda/launch.cuh"
#include "common/cuda/scratch.h"
#include "scatter/cuda/privatized/privatized.cuh"
#include "scatter/sum/ways.cuh"

namespace torch_ops {

template <class Value, class Result>
void sum_privatized(const ReduceCall<Value, Result>& call, const PrivatizedCut& cut, bool in_place,
                    const IndexErrorSite& errors) {
  using Sum = SumOf<Value>;
  const RowLayout& layout = call.layout;
  auto* kernel = privatized::sum_kernel<1, Value, Sum, Result>;
  if constexpr (std::is_same_v<Sum, float>) {
    if (cut.vector > 1) kernel = privatized::sum_kernel<PrivatizedCut::kVector, Value, Sum, Result>;
  }
  allow_shared_bytes(kernel, cut.shared_bytes);
  const DeviceScratch memory(cut.scratch);
  auto* partials = static_cast<Sum*>(memory.get());
  const dim3 grid(static_cast<unsigned>(layout.slabs() * cut.parts),
                  static_cast<unsigned>(cut.strips));
  TORCH_OPS_LAUNCH(kernel, grid, cut.threads, cut.shared_bytes, call.values, IndexView{call.index},
                   call.result, partials, layout, call.rule, cut, in_place, errors);
  if (cut.parts == 1) return;
  // Few lanes per value if there are few parts.
  int lanes = 1;
  while (lanes < 16 && 8 * lanes < cut.parts) lanes *= 2;
  const int values = privatized::kJoinThreads / lanes;
  const int64_t slab_sums = layout.axis_size * layout.inner;
  launch_early(privatized::join_kernel<Sum, Result>, grid_x(layout.slabs() * slab_sums, values),
               dim3(values, lanes), 0, partials, call.result, layout.slabs(), slab_sums, cut.parts,
               in_place);
}

#define INSTANTIATE_TO(T, Result)                                                        \
  template void sum_privatized(const ReduceCall<T, Result>&, const PrivatizedCut&, bool, \
                               const IndexErrorSite&);
#define INSTANTIATE(T) INSTANTIATE_TO(T, T)
TORCH_OPS_FOR_EACH_SUMMED(INSTANTIATE)
// Sums that are not rounded.
INSTANTIATE_TO(Float16, float)
INSTANTIATE_TO(BFloat16, float)
INSTANTIATE_TO(uint8_t, uint32_t)
INSTANTIATE_TO(uint16_t, uint32_t)

}  // namespace torch_ops
