// Who computes a call on host pointers: decided from sizes, and from whether memory is pinned.
#pragma once

#include <algorithm>
#include <cstdint>

#include "c_api/frame/arguments.h"

namespace torch_ops {

// Below this many bytes a call is done on the CPU before a device's copies have started.
constexpr int64_t kWorthADevice = int64_t{8} << 20;

// Do the entries of a gather touch far fewer bytes than the source has? Each touches the lines of
// 64 bytes that its row lies in.
inline bool is_sparse(const RowCall& call) {
  constexpr int64_t kLine = 64;
  const int64_t row = call.inner * call.element_bytes;
  const double touched = static_cast<double>(call.all_entries()) *
                         static_cast<double>((row + kLine - 1) / kLine * kLine);
  return 4 * touched <= static_cast<double>(call.table_bytes());
}

// Whether memory is pinned is told by `is_pinned(pointer)`, which is asked of large calls alone:
// the first question may start up CUDA.

// A gather goes to the device where its entries touch most of the source, which streams there
// faster than a CPU picks from it; and where the device can read the rows of a sparse one in place.
template <class IsPinned>
bool gather_on_device(const RowCall& call, IsPinned is_pinned) {
  if (call.table_bytes() + call.rows_bytes() < kWorthADevice) return false;
  return !is_sparse(call) || is_pinned(call.from);
}

// Other calls read and write each value once, as copies to pinned staging memory would: only where
// no such copies are needed may a device be faster.
template <class IsPinned, class... Arrays>
bool stream_on_device(int64_t bytes, IsPinned is_pinned, Arrays... arrays) {
  return bytes >= kWorthADevice && (is_pinned(arrays) && ...);
}

}  // namespace torch_ops
