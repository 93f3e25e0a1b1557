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
  switch (call.element_bytes) {
    case 1:
      return launch<uint8_t>(call, errors);
    case 2:
      return launch<uint16_t>(call, errors);
    case 4:
      return launch<uint32_t>(call, errors);
    case 8:
      return launch<uint2>(call, errors);
    case 16:
      return launch<uint4>(call, errors);
  }
  fail_without_kernel("of a word");
}

}  // namespace torch_ops::kernels
