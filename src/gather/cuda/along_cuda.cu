#include "common/cuda/launch.cuh"
#include "gather/cuda/along_kernels.cuh"
#include "gather/gather_launch.h"

namespace torch_ops::kernels {
namespace {

template <class Word>
void launch(const GatherCall<ElementLayout>& call, const IndexErrorSite& errors) {
  const IndexView index{call.index};
  for_each_part(call.layout, ElementGrid::kMaxPart, [&](const ElementLayout& part, auto offsets) {
    TORCH_OPS_LAUNCH(gather_along_kernel<Word>, grid_x(part.count, kThreads * kAlongUnroll),
                     kThreads, 0, static_cast<const Word*>(call.source) + offsets.table,
                     index.from(offsets.index), static_cast<Word*>(call.output) + offsets.values,
                     offsets.position, ElementGrid(part), call.policy, errors);
  });
}

}  // namespace

void gather(OnCuda on, const GatherCall<ElementLayout>& call, const IndexErrorSite& errors) {
  const HostScope scope(on.program);
  if (call.layout.count == 0) return;
  dispatch_size<uint2, uint4>(call.element_bytes,
                              [&](auto word) { launch<decltype(word)>(call, errors); });
}

}  // namespace torch_ops::kernels
