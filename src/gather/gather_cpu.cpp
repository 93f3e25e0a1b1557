#include <ATen/Dispatch.h>

#include "common/elementwise_cpu.h"
#include "common/first_bad_entry.h"
#include "common/indexing.h"
#include "common/parallel.h"
#include "gather/element_size.h"
#include "gather/gather.h"
#include "gather/gather_kernels.h"

namespace torch_ops {
void gather_cpu(const char* op, const at::Tensor& source, const at::Tensor& index,
                const RowLayout& layout, const GatherPolicy& policy, const at::Tensor& output) {
  if (index.numel() == 0) return;
  if (policy.rule.rewrites()) {
    indexing::check_axis_not_empty(op, index, layout.axis_size, policy.rule.mode());
  }
  int64_t bad = kNoBadEntry;
  TORCH_OPS_DISPATCH_INDEX(index, "gather", [&] {
    const index_t* entries = index.const_data_ptr<index_t>();
    if (output.numel() == 0) {  // nothing to copy; the index must be right all the same
      bad = first_bad_entry(entries, layout, policy.rule, 0, layout.batch * layout.entries);
      return;
    }
    bad = dispatch_size(source.element_size(), [&](auto word) {
      using Word = decltype(word);
      const auto* from = static_cast<const Word*>(source.const_data_ptr());
      auto* to = static_cast<Word*>(output.mutable_data_ptr());
      return parallel_min(layout.slabs() * layout.entries, kElementsPerTask / layout.inner,
                          [&](int64_t begin, int64_t end) {
                            return gather_rows(cpu_simd(), from, entries, to, layout, policy, begin,
                                               end);
                          });
    });
  });
  if (bad != kNoBadEntry) {
    indexing::raise_out_of_range(op, index, bad, layout.axis_size,
                                 policy.rule.mode() == IndexMode::kFromEnd);
  }
}

}  // namespace torch_ops
