#include <ATen/Dispatch.h>

#include "common/first_bad_entry.h"
#include "common/indexing.h"
#include "common/parallel.h"
#include "scatter/reduce.h"
#include "scatter/scatter.h"
#include "scatter/scatter_cpu_call.h"

namespace torch_ops {
namespace {

// `onto`: to what the result holds, of which nothing is changed where an entry is an error.
void add(const char* op, const at::Tensor& values, const at::Tensor& index, const RowLayout& layout,
         const IndexRule& rule, const at::Tensor& result, bool onto) {
  if (rule.rewrites()) {
    indexing::check_axis_not_empty(op, index, layout.axis_size, rule.mode());
    if (layout.axis_size == 0) return;  // all are dropped
  }
  int64_t bad = kNoBadEntry;
  TORCH_OPS_DISPATCH_INDEX(index, "scatter_add", [&] {
    const index_t* entries = index.const_data_ptr<index_t>();
    if (values.numel() == 0) {  // nothing to add; the index must be right all the same
      if (!onto) result.zero_();
      bad = first_bad_entry(entries, layout, rule, 0, layout.batch * layout.entries);
      return;
    }
    if (layout.axis_size == 0) {  // no entry can be right, whatever the caller promised
      bad = 0;
      return;
    }
    // What rewrites drops what is no row; and else it is told when some have been added.
    if (rule.raises() && (rule.rewrites() || onto)) {
      bad = parallel_min(layout.batch * layout.entries, kElementsPerTask,
                         [&](int64_t begin, int64_t end) {
                           return first_bad_entry(entries, layout, rule, begin, end);
                         });
      if (bad != kNoBadEntry) return;
    }
    TORCH_OPS_DISPATCH_VALUES(values.scalar_type(), [&] {
      const auto* from = as_storage(static_cast<const value_t*>(values.const_data_ptr()));
      using Value = std::remove_cv_t<std::remove_pointer_t<decltype(from)>>;
      const auto add_to = [&](auto* to) {
        using Result = std::remove_pointer_t<decltype(to)>;
        bad = ScatterAdd<Value, index_t, Result>(from, entries, layout, rule, to, onto).run();
      };
      void* const to = result.mutable_data_ptr();
      if (result.scalar_type() == values.scalar_type()) {
        add_to(as_storage(static_cast<value_t*>(to)));
      } else {
        add_to(static_cast<ScatterSum<Value>*>(to));
      }
    });
  });
  if (bad != kNoBadEntry) {
    indexing::raise_out_of_range(op, index, bad, layout.axis_size,
                                 rule.mode() == IndexMode::kFromEnd);
  }
}

}  // namespace

void scatter_add_cpu(const char* op, const at::Tensor& values, const at::Tensor& index,
                     const RowLayout& layout, const IndexRule& rule, const at::Tensor& result) {
  add(op, values, index, layout, rule, result, /*onto=*/false);
}

void scatter_add_to_cpu(const char* op, const at::Tensor& values, const at::Tensor& index,
                        const RowLayout& layout, const IndexRule& rule, const at::Tensor& sums) {
  add(op, values, index, layout, rule, sums, /*onto=*/true);
}

}  // namespace torch_ops
