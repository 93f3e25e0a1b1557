// Which kernel gathers or writes at points: decided from sizes and rules alone. No torch.
#pragma once

#include <cstdint>

#include "common/cuda/device_limits.h"
#include "index/points/kernels/points_layout.h"

namespace torch_ops {

enum class PointsPath {
  kWindows,   // elements of 2 to 8 bytes of a table that does not fit the L2 cache, window
              // by window
  kPicks,     // elements whose places fit 32 bits
  kElements,  // all other rows of one word
  kRows,
};

constexpr int64_t kMaxPoints = int64_t{1} << 30;  // that 32-bit arithmetic can count

// The number of places from the first to the last that a row may have.
inline int64_t count_places(const PointsLayout& layout) {
  int64_t last = 0;
  for (int a = 0; a < layout.row_axes; ++a) {
    last += (layout.row_axis[a].size - 1) * layout.row_axis[a].table_stride;
  }
  for (int j = 0; j < layout.coordinates; ++j) {
    const Coordinate& coordinate = layout.coordinate[j];
    last += (coordinate.rule.axis_size() - 1) * coordinate.table_stride;
  }
  return last + 1;
}

// Is an entry a row, or one counted from the end, and else none? Wrapping and clipping use
// registers and time in code that never reaches them.
inline bool is_simple(const IndexRule& rule) {
  return rule.mode() != IndexMode::kWrap && rule.mode() != IndexMode::kClip;
}

// `layout` counts words of `word_bytes`. `put`: they are written to the table.
inline PointsPath choose_points_path(const PointsLayout& layout, int64_t word_bytes, bool put,
                                     const DeviceLimits& device) {
  if (layout.inner > 1) return PointsPath::kRows;
  const int64_t places = count_places(layout);
  if (put || !is_simple(layout.coordinate[0].rule) || layout.row_axes != 1 ||
      layout.rows > kMaxPoints || places > INT32_MAX) {
    return PointsPath::kElements;
  }
  constexpr int64_t kMany = int64_t{1} << 18;  // points for most of a GPU
  const bool large = places * word_bytes > device.l2_bytes && layout.rows >= kMany;
  return large && word_bytes > 1 && word_bytes <= 8 ? PointsPath::kWindows : PointsPath::kPicks;
}

}  // namespace torch_ops
