// Cuts calls at points that are too large for 32-bit arithmetic. No torch.
#pragma once

#include <algorithm>
#include <cstdint>

#include "index/points/kernels/points_layout.h"

namespace torch_ops {

// Where a part of a layout begins. Offsets count elements.
struct PointsOffsets {
  int64_t table = 0;
  int64_t rows = 0;
  int64_t first_row = 0;
};

// Calls use(part, offsets) for parts of at most `most` rows, if rows have several axes, and of
// rows of at most `most` elements, if these have several: then 32 bits suffice for the numbers that
// a kernel divides. A part whose rows are cut has one row: rows of a gather's part are contiguous,
// as those of the whole call are.
template <class Use>
void for_each_part(const PointsLayout& layout, int64_t most, Use&& use, PointsOffsets at = {}) {
  const bool long_rows = layout.inner_axes > 1 && layout.inner > most;
  const bool cuts_rows = long_rows ? layout.rows > 1 : layout.row_axes > 1 && layout.rows > most;
  if (!cuts_rows && !long_rows) return use(layout, at);
  const PointsAxis& axis = cuts_rows ? layout.row_axis[0] : layout.inner_axis[0];
  const int64_t each = (cuts_rows ? layout.rows : layout.inner) / axis.size;
  const int64_t step = cuts_rows && long_rows ? 1 : std::max<int64_t>(most / each, 1);
  for (int64_t first = 0; first < axis.size; first += step) {
    PointsLayout part = layout;
    const int64_t count = std::min(step, axis.size - first);
    int32_t& axes = cuts_rows ? part.row_axes : part.inner_axes;
    PointsAxis* const part_axis = cuts_rows ? part.row_axis : part.inner_axis;
    const bool drop = count == 1 && axes > 1;  // an axis of one
    part_axis[0].size = count;
    if (drop) std::copy(part_axis + 1, part_axis + axes, part_axis);
    if (cuts_rows) {
      part.rows = count * each;
      for (int j = 0; j < part.coordinates; ++j) {
        Coordinate& coordinate = part.coordinate[j];
        coordinate.data = static_cast<const char*>(coordinate.data) +
                          first * coordinate.strides[0] * coordinate.entry_bytes;
        if (drop) std::copy(coordinate.strides + 1, coordinate.strides + axes, coordinate.strides);
      }
    } else {
      part.inner = count * each;
    }
    if (drop) --axes;
    for_each_part(part, most, use,
                  {at.table + first * axis.table_stride, at.rows + first * axis.rows_stride,
                   cuts_rows ? at.first_row + first * each : at.first_row});
  }
}

}  // namespace torch_ops
