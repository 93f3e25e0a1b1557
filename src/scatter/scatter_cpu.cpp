#include <ATen/Dispatch.h>

#include "common/indexing.h"
#include "common/parallel.h"
#include "scatter/scatter.h"
#include "scatter/scatter_kernels.h"

namespace torch_ops {

void scatter_add_cpu(const at::Tensor& values, const at::Tensor& index, const RowLayout& layout,
                     const at::Tensor& sums) {
  TORCH_OPS_DISPATCH_INDEX(index, "scatter_add", [&] {
    const index_t* entries = index.const_data_ptr<index_t>();
    const int64_t bad = parallel_min(
        layout.batch * layout.entries, kElementsPerTask,
        [&](int64_t begin, int64_t end) { return first_bad_entry(entries, layout, begin, end); });
    if (bad != kNoBadEntry) {
      indexing::raise_out_of_range("scatter_add", index, bad, layout.axis_size);
    }
    if (values.numel() == 0) return;
    // A task is some columns of a slab, so that no two tasks write to one place.
    const int64_t most = std::max<int64_t>(layout.inner / 16, 1);
    const int64_t pieces = std::clamp<int64_t>(2 * at::get_num_threads() / layout.slabs(), 1, most);
    const int64_t width = (layout.inner + pieces - 1) / pieces;
    const int64_t grain = kElementsPerTask / (layout.entries * width) + 1;
    TORCH_OPS_DISPATCH_VALUES(values.scalar_type(), [&] {
      const auto* from = static_cast<const value_t*>(values.const_data_ptr());
      auto* to = static_cast<sum_t*>(sums.mutable_data_ptr());
      at::parallel_for(0, layout.slabs() * pieces, grain, [&](int64_t begin, int64_t end) {
        for (int64_t task = begin; task < end; ++task) {
          const int64_t first = task % pieces * width;
          scatter_add_columns(from, entries, to, layout, task / pieces, first,
                              std::min(first + width, layout.inner));
        }
      });
    });
  });
}

}  // namespace torch_ops
