// The layout of calls with an entry for each element.
#pragma once

#include "common/indexing/element_layout.h"

namespace torch_ops {

// Table [outer, axis_size, inner], index and values [outer, entries, inner], all contiguous.
inline ElementLayout element_layout(int64_t outer, int64_t axis_size, int64_t entries,
                                    int64_t inner) {
  ElementLayout layout{};
  layout.axis = -1;
  layout.axis_size = axis_size;
  layout.axis_stride = inner;
  layout.count = outer * entries * inner;
  const auto add = [&](int64_t size, int64_t in_table, int64_t in_values, bool is_axis) {
    if (size == 1) return;
    if (is_axis) layout.axis = layout.rank;
    layout.sizes[layout.rank] = size;
    layout.table_strides[layout.rank] = in_table;
    layout.index_strides[layout.rank] = layout.value_strides[layout.rank] = in_values;
    ++layout.rank;
  };
  // Neighbours that one stride walks are one axis.
  const bool joined = entries == 1 && axis_size == 1;
  if (joined) {
    add(outer * inner, 1, 1, false);
  } else {
    add(outer, axis_size * inner, entries * inner, false);
    add(entries, 0, inner, true);
    add(inner, 1, 1, false);
  }
  return layout;
}

}  // namespace torch_ops
