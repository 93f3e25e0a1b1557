// The host's side of index_error.cuh: what the CUDA launchers of ops with an index call before and
// after their launches.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include <algorithm>

#include "common/index_error.cuh"
#include "common/index_mode.h"
#include "common/indexing.h"
#include "common/op.h"
#include "common/row_layout.h"

namespace torch_ops {

// The records of all devices. There is one such object a process, in the module runtime: a static
// of this header would exist once a module.
class IndexErrors {
 public:
  // Raises the error that an earlier call on the current device left, and returns where the next
  // ones are recorded. While the current stream captures a graph nothing is raised and nothing
  // allocated: what was not there before is null. In sync mode, or where `wait`, waits for the
  // current stream first.
  virtual IndexErrorSlot* before_launch(bool wait) = 0;

  // In sync mode, or where `wait`, waits for the current stream and raises what the call left.
  virtual void after_launch(bool wait) = 0;

 protected:
  ~IndexErrors() = default;
};

inline IndexErrors& index_errors() {
  // redispatch: whatever is switched on around the first call, a mode, a transform, has no say.
  static auto* const found = reinterpret_cast<IndexErrors*>(
      find_op<int64_t()>("_index_errors").redispatch(c10::DispatchKeySet()));
  return *found;
}

// Begins a call on the current device: raises what an earlier one left, and what sizes alone tell.
// The kernels of the call get the result, which has no place to record where `mode` makes no entry
// an error. `op` must be a literal. `wait`, here and at the end: the call raises its own error
// whenever errors are raised.
inline IndexErrorSite before_launch(const char* op, const at::Tensor& index,
                                    const RowLayout& layout, IndexMode mode = IndexMode::kRaise,
                                    bool wait = false) {
  IndexErrorSite site{};
  IndexErrorSlot* slot = index_errors().before_launch(wait);
  if (IndexRule(mode, layout.axis_size).raises()) site.slot = slot;
  site.from_end = mode == IndexMode::kFromEnd;
  indexing::check_axis_not_empty(op, index, layout.axis_size, mode);
  site.op = op;
  site.axis_size = layout.axis_size;
  site.outer = layout.outer;
  site.entries = layout.entries;
  site.rank = index.dim();
  if (site.rank <= kMaxNamedRank) {
    std::copy(index.sizes().begin(), index.sizes().end(), site.sizes);
  }
  return site;
}

// Ends it.
inline void after_launch(bool wait = false) { index_errors().after_launch(wait); }

}  // namespace torch_ops
