// Where a call on host pointers runs: decided from sizes, and from whether memory is pinned.
#pragma once

#include <cstdint>

#include "c_api/frame/arguments.h"

namespace torch_ops {

// Below this size the CPU finishes a call before a device's copies have started.
constexpr int64_t kWorthADevice = int64_t{8} << 20;

// Do the entries of a gather touch far fewer bytes than the source has? Each touches the lines of
// 64 bytes that contain its row.
inline bool is_sparse(const RowCall& call) {
  constexpr int64_t kLine = 64;
  const int64_t row = call.inner * call.element_bytes;
  const double touched = static_cast<double>(call.all_entries()) *
                         static_cast<double>((row + kLine - 1) / kLine * kLine);
  return 4 * touched <= static_cast<double>(call.table_bytes());
}

// `is_pinned(pointer)` says whether memory is pinned. It is called only for large calls: the first
// call may start CUDA.

// A gather goes to the device if its entries touch most of the source, which streams there
// faster than a CPU picks from it; and if the device can read the rows of a sparse one in place.
template <class IsPinned>
bool gather_on_device(const RowCall& call, IsPinned is_pinned) {
  if (call.table_bytes() + call.rows_bytes() < kWorthADevice) return false;
  return !is_sparse(call) || is_pinned(call.from);
}

// Other calls read and write each value once, as copies to pinned staging memory would: only if no
// such copies are needed may a device be faster.
template <class IsPinned, class... Arrays>
bool stream_on_device(int64_t bytes, IsPinned is_pinned, Arrays... arrays) {
  return bytes >= kWorthADevice && (is_pinned(arrays) && ...);
}

}  // namespace torch_ops
