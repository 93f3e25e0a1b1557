// Which kernel gathers or writes at points: decided from sizes and rules alone. No torch.
#pragma once

#include <cstdint>

#include "index/points/kernels/points_layout.h"

namespace torch_ops {

enum class PointsPath {
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

// `layout` counts words. `put`: they are written to the table.
inline PointsPath choose_points_path(const PointsLayout& layout, bool put) {
  if (layout.inner > 1) return PointsPath::kRows;
  const bool simple = !put && is_simple(layout.coordinate[0].rule) && layout.row_axes == 1;
  const bool fits = layout.rows <= kMaxPoints && count_places(layout) <= INT32_MAX;
  return simple && fits ? PointsPath::kPicks : PointsPath::kElements;
}

constexpr int kPointTile = 2048;  // words of a block at most; a row of more is cut

// The words of a block. Small calls are cut into smaller tiles, so that all multiprocessors have
// some. The limits are those with the best choice for 12,700 calls on an H200
// (docs/internals/log.md).
inline int cut_tile(const PointsLayout& layout, int64_t multiprocessors) {
  const int64_t words = layout.rows * layout.inner / multiprocessors;
  return words < 2048 ? kPointTile / 4 : words < 8192 ? kPointTile / 2 : kPointTile;
}

}  // namespace torch_ops
