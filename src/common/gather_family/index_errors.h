// The host's side of index_error.h: the functions that CUDA launchers of ops with an index call
// before and after their launches.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>

#include "common/gather_family/indexing.h"
#include "common/indexing/index_error.h"
#include "common/indexing/index_mode.h"
#include "common/layout/row_layout.h"
#include "common/torch/calls/torch_cuda.h"

namespace torch_ops {

// The records of all devices. There is one such object per process, in the module torch_cuda: a
// static of this header would exist once per module.
class IndexErrors {
 public:
  // Where the kernels of a call record.
  struct Place {
    IndexErrorSlot* slot = nullptr;
    uint32_t raised = 0;   // IndexErrorSite's
    void* own = nullptr;   // the record of a call that waits, which no other call uses meanwhile
    bool follows = false;  // after_launch() must be called although the call does not wait
  };

  // Raises the error that an earlier call on the current device left, and returns where the next
  // ones are recorded. While the current stream captures a graph, nothing is raised and nothing
  // allocated: records that did not exist before are null. In sync mode, or with `wait`, waits for
  // the current stream first.
  virtual Place before_launch(bool wait) = 0;

  // Waits for the current stream and raises the call's error, if it waits.
  virtual void after_launch(const Place& place) = 0;

  // Returns the record of a call that waits and does not reach after_launch().
  virtual void abandon(const Place& place) noexcept = 0;

 protected:
  ~IndexErrors() = default;
};

// The errors of one call, from before its launches to after them. Kernels get the site.
class IndexErrorCall {
 public:
  // `wait`: the call raises its own error whenever errors are raised.
  explicit IndexErrorCall(bool wait) : place_(torch_cuda().index_errors->before_launch(wait)) {}
  IndexErrorCall(IndexErrorCall&& other) noexcept
      : site(other.site), place_(std::exchange(other.place_, {})) {}
  ~IndexErrorCall() {
    if (place_.own != nullptr) torch_cuda().index_errors->abandon(place_);
  }

  // An entry out of range is an error: kernels are to record it.
  void record() {
    site.slot = place_.slot;
    site.raised = place_.raised;
  }

  // After the launches. In sync mode, or if the call waits: waits, and raises their errors.
  void end() {
    const IndexErrors::Place place = std::exchange(place_, {});
    if (place.own != nullptr || place.follows) torch_cuda().index_errors->after_launch(place);
  }

  IndexErrorSite site{};

 private:
  IndexErrors::Place place_;
};

// By what errors name the entries of an index of these sizes. `op` must be a literal.
inline void name_entries(IndexErrorSite& site, const char* op, at::IntArrayRef sizes, int64_t outer,
                         int64_t entries) {
  site.op = op;
  site.outer = outer;
  site.entries = entries;
  site.rank = static_cast<int64_t>(sizes.size());
  if (site.rank <= kMaxNamedRank) std::copy(sizes.begin(), sizes.end(), site.sizes);
}

// Begins a call on the current device: raises an earlier call's error, and those that sizes show.
// The kernels of the call get the result, which has no place to record if in `mode` no entry is
// an error. `op` must be a literal.
inline IndexErrorCall before_launch(const char* op, const at::Tensor& index,
                                    const RowLayout& layout, IndexMode mode = IndexMode::kRaise,
                                    bool wait = false) {
  IndexErrorCall call(wait);
  IndexErrorSite& site = call.site;
  if (IndexRule(mode, layout.axis_size).raises()) call.record();
  site.from_end = mode == IndexMode::kFromEnd;
  indexing::check_axis_not_empty(op, index, layout.axis_size, mode);
  site.axis_size = layout.axis_size;
  name_entries(site, op, index.sizes(), layout.outer, layout.entries);
  return call;
}

}  // namespace torch_ops
