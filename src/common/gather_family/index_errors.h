// The host's side of index_error.h: what the CUDA launchers of ops with an index call before and
// after their launches.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>

#include "common/gather_family/indexing.h"
#include "common/indexing/index_error.h"
#include "common/indexing/index_mode.h"
#include "common/indexing/row_layout.h"
#include "common/torch/torch_cuda.h"

namespace torch_ops {

// The records of all devices. There is one such object per process, in the module torch_cuda: a
// static of this header would exist once per module.
class IndexErrors {
 public:
  // Where the kernels of a call record.
  struct Place {
    IndexErrorSlot* slot = nullptr;
    uint32_t raised = 0;   // IndexErrorSite's
    void* own = nullptr;   // the record of a call that waits, which no other call has meanwhile
    bool follows = false;  // after_launch() must be called although the call does not wait
  };

  // Raises the error that an earlier call on the current device left, and returns where the next
  // ones are recorded. While the current stream captures a graph nothing is raised and nothing
  // allocated: what was not there before is null. In sync mode, or where `wait`, waits for the
  // current stream first.
  virtual Place before_launch(bool wait) = 0;

  // Waits for the current stream and raises what the call left, if it waits.
  virtual void after_launch(const Place& place) = 0;

  // Gives back the record of a call that waits and does not come to after_launch().
  virtual void abandon(const Place& place) noexcept = 0;

 protected:
  ~IndexErrors() = default;
};

// The errors of one call, from before its launches to after them. What kernels get is the site.
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

  // After the launches. In sync mode, or where the call waits: waits, and raises what they left.
  void end() {
    const IndexErrors::Place place = std::exchange(place_, {});
    if (place.own != nullptr || place.follows) torch_cuda().index_errors->after_launch(place);
  }

  operator const IndexErrorSite&() const& { return site; }
  operator const IndexErrorSite&() const&& = delete;  // the call would end before its launches

  IndexErrorSite site{};

 private:
  IndexErrors::Place place_;
};

// Begins a call on the current device: raises what an earlier one left, and what sizes alone tell.
// The kernels of the call get the result, which has no place to record where `mode` makes no entry
// an error. `op` must be a literal.
inline IndexErrorCall before_launch(const char* op, const at::Tensor& index,
                                    const RowLayout& layout, IndexMode mode = IndexMode::kRaise,
                                    bool wait = false) {
  IndexErrorCall call(wait);
  IndexErrorSite& site = call.site;
  if (IndexRule(mode, layout.axis_size).raises()) call.record();
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
  return call;
}

}  // namespace torch_ops
