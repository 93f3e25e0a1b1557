#include <ATen/Dispatch.h>

#include <atomic>

#include "common/elementwise_cpu.h"
#include "common/indexing.h"
#include "common/parallel.h"
#include "scatter/along.h"
#include "scatter/along_kernels.h"
#include "scatter/scatter.h"

namespace torch_ops {
namespace {

// The smallest position of an entry that is an error: found again, in order.
[[noreturn]] void raise_first(const at::Tensor& index, const ElementLayout& layout) {
  int64_t bad = kNoBadEntry;
  TORCH_OPS_DISPATCH_INDEX(index, "scatter_elements_add", [&] {
    const index_t* entries = index.const_data_ptr<index_t>();
    bad = walk_elements(layout, 0, layout.count, [&](const ElementRun& run) {
      for (int64_t i = 0; i < run.count; ++i) {
        if (!in_range(entries[run.index + i * run.index_stride], layout.axis_size)) return i;
      }
      return kNoBadEntry;
    });
  });
  indexing::raise_out_of_range("scatter_elements_add", index, bad, layout.axis_size);
}

}  // namespace

void add_along_cpu(const at::Tensor& values, const at::Tensor& index, const ElementLayout& layout,
                   const IndexRule& rule, const at::Tensor& sums) {
  if (layout.count == 0) return;
  const ColumnLayout columns(layout);
  std::atomic<bool> all_good{true};
  // Neighbouring columns in one task: they share the lines of the cache.
  const int64_t grain = std::max<int64_t>(kElementsPerTask / columns.entries, 16);
  TORCH_OPS_DISPATCH_INDEX(index, "scatter_elements_add", [&] {
    const index_t* entries = index.const_data_ptr<index_t>();
    TORCH_OPS_DISPATCH_VALUES(values.scalar_type(), [&] {
      const auto* from = as_storage(static_cast<const value_t*>(values.const_data_ptr()));
      auto* to = static_cast<sum_t*>(sums.mutable_data_ptr());
      at::parallel_for(0, columns.columns.count, grain, [&](int64_t begin, int64_t end) {
        if (!add_columns(from, entries, to, columns, rule, begin, end)) all_good = false;
      });
    });
  });
  if (!all_good) raise_first(index, layout);
}

}  // namespace torch_ops
