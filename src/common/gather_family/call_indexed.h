// How the bindings of ops with an index call the kernel library, and raise the errors of the
// index's entries in torch's words.
#pragma once

#include "common/gather_family/indexing.h"
#include "common/indexing/index_array.h"
#include "common/layout/element_layout.h"
#include "common/torch/calls/call_kernels.h"
#ifdef TORCH_OPS_WITH_CUDA
#include "common/gather_family/index_errors.h"
#endif

namespace torch_ops {

inline IndexArray index_array(const at::Tensor& index) {
  return {index.const_data_ptr(), static_cast<int>(index.element_size())};
}

// The rows of an index, as errors name its entries.
inline const RowLayout& index_rows(const RowLayout& layout) { return layout; }
inline RowLayout index_rows(const ElementLayout& layout) {  // a position of the index is its row
  return RowLayout::contiguous(1, 1, layout.axis_size, layout.count, /*inner=*/1);
}

// Calls launch(on, errors...) on the kind of device that On names, and raises IndexError in the
// name of `op`, a string that lives as long as the process, if an entry of `index` is an error. On
// the CPU `errors` is empty, and launch returns the position of the first such entry, or
// kNoBadEntry. On CUDA it is an IndexErrorSite, and the error comes at the next call, or at this
// one in sync mode or if it `waits` (common/gather_family/index_errors.h). Layout is a RowLayout
// or an ElementLayout.
template <class On, class Layout, class Launch>
void call_indexed(const char* op, const at::Tensor& index, const Layout& layout, IndexMode mode,
                  const at::Tensor& output, Launch&& launch, [[maybe_unused]] bool waits = false) {
  with_kernels<On>(output, [&](auto on) {
    if constexpr (std::is_same_v<On, OnCpu>) {
      if (mode != IndexMode::kRaise) {  // whose kernels find that no entry is a row
        indexing::check_axis_not_empty(op, index, layout.axis_size, mode);
      }
      const int64_t bad = launch(on);
      if (bad != kNoBadEntry) {
        indexing::raise_out_of_range(op, index, bad, layout.axis_size, mode == IndexMode::kFromEnd);
      }
    } else {
#ifdef TORCH_OPS_WITH_CUDA
      IndexErrorCall errors = before_launch(op, index, index_rows(layout), mode, waits);
      launch(on, static_cast<const IndexErrorSite&>(errors.site));
      errors.end();
#endif
    }
  });
}

}  // namespace torch_ops
