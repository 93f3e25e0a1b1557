#include "common/index_errors.h"
#include "common/indexing.h"
#include "common/launch.cuh"
#include "gather/along.h"
#include "gather/along_kernels.cuh"

namespace torch_ops {
namespace {

template <class Word>
void launch(const void* source, const IndexView& index, void* output, const ElementLayout& layout,
            const GatherPolicy& policy, const IndexErrorSite& errors) {
  for_each_part(layout, ElementGrid::kMaxPart, [&](const ElementLayout& part, auto offsets) {
    TORCH_OPS_LAUNCH(gather_along_kernel<Word>, grid_x(part.count, kThreads * kAlongUnroll),
                     kThreads, 0, static_cast<const Word*>(source) + offsets.table,
                     index.from(offsets.index), static_cast<Word*>(output) + offsets.values,
                     offsets.position, ElementGrid(part), policy, errors);
  });
}

}  // namespace

void gather_along_cuda(const char* op, const at::Tensor& source, const at::Tensor& index,
                       const ElementLayout& layout, const GatherPolicy& policy,
                       const at::Tensor& output) {
  const c10::cuda::CUDAGuard guard(output.device());
  // A position of the index is its row.
  RowLayout rows{};
  rows.outer = 1;
  rows.entries = layout.count;
  rows.axis_size = layout.axis_size;
  IndexErrorCall errors = before_launch(op, index, rows, policy.rule.mode());
  if (layout.count == 0) return;
  const IndexView entries{index.const_data_ptr(), static_cast<int>(index.element_size())};
  const void* from = source.const_data_ptr();
  void* to = output.mutable_data_ptr();
  switch (source.element_size()) {
    case 1:
      launch<uint8_t>(from, entries, to, layout, policy, errors);
      break;
    case 2:
      launch<uint16_t>(from, entries, to, layout, policy, errors);
      break;
    case 4:
      launch<uint32_t>(from, entries, to, layout, policy, errors);
      break;
    case 8:
      launch<uint2>(from, entries, to, layout, policy, errors);
      break;
    case 16:
      launch<uint4>(from, entries, to, layout, policy, errors);
      break;
  }
  errors.end();
}

}  // namespace torch_ops
