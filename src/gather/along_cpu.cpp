#include <ATen/Dispatch.h>

#include "common/indexing.h"
#include "common/parallel.h"
#include "gather/along.h"
#include "gather/along_kernels.h"
#include "gather/element_size.h"

namespace torch_ops {

void gather_along_cpu(const char* op, const at::Tensor& source, const at::Tensor& index,
                      const ElementLayout& layout, const GatherPolicy& policy,
                      const at::Tensor& output) {
  if (layout.count == 0) return;
  if (policy.rule.rewrites()) {
    indexing::check_axis_not_empty(op, index, layout.axis_size, policy.rule.mode());
  }
  int64_t bad = kNoBadEntry;
  TORCH_OPS_DISPATCH_INDEX(index, "gather_elements", [&] {
    const index_t* entries = index.const_data_ptr<index_t>();
    bad = dispatch_size(source.element_size(), [&](auto word) {
      using Word = decltype(word);
      const auto* from = static_cast<const Word*>(source.const_data_ptr());
      auto* to = static_cast<Word*>(output.mutable_data_ptr());
      return parallel_min(layout.count, kElementsPerTask, [&](int64_t begin, int64_t end) {
        return gather_along(from, entries, to, layout, policy, begin, end);
      });
    });
  });
  if (bad != kNoBadEntry) {
    indexing::raise_out_of_range(op, index, bad, layout.axis_size,
                                 policy.rule.mode() == IndexMode::kFromEnd);
  }
}

}  // namespace torch_ops
