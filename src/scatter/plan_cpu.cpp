#include <ATen/Dispatch.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/sort.h>

#include "common/indexing.h"
#include "common/parallel.h"
#include "scatter/scatter.h"

namespace torch_ops {

void sort_entries_cpu(const at::Tensor& index, const RowLayout& layout, const Plan& plan) {
  TORCH_OPS_DISPATCH_INDEX(index, "gather_plan", [&] {
    const index_t* entries = index.const_data_ptr<index_t>();
    const int64_t bad = parallel_min(
        layout.batch * layout.entries, kElementsPerTask,
        [&](int64_t begin, int64_t end) { return first_bad_entry(entries, layout, begin, end); });
    if (bad != kNoBadEntry) {
      indexing::raise_out_of_range("gather_plan", index, bad, layout.axis_size);
    }
  });
  const at::Tensor first_rows = at::arange(layout.batch, plan.rows.options()) * layout.axis_size;
  const at::Tensor named = index.reshape({layout.batch, layout.entries}) + first_rows.unsqueeze(1);
  const auto [rows, order] = at::sort(named.flatten().to(plan.rows.scalar_type()),
                                      std::optional<bool>(/*stable=*/true), /*dim=*/0);
  plan.rows.copy_(rows);
  plan.order.copy_(order);
}

}  // namespace torch_ops
