// scatter_add on the CPU: loops over a range of the work, on raw pointers. No torch.
#pragma once

#include <cstdint>

#include "common/row_layout.h"

namespace torch_ops {

// Adds, for one slab, the columns [begin, end) of each row of values to the table's row that the
// index names. Entries are added in their order, so the result is the same on every run. The index
// must be in range. Sum is the type in which the table is held: at least as wide as Value.
template <class Value, class Sum, class Index>
void scatter_add_columns(const Value* values, const Index* index, Sum* table,
                         const RowLayout& layout, int64_t slab, int64_t begin, int64_t end) {
  const int64_t b = slab / layout.outer;
  const int64_t o = slab % layout.outer;
  const Index* entries = index + b * layout.index_batch_stride;
  const Value* row = values + slab * layout.entries * layout.inner;
  Sum* sums = table + b * layout.table_batch_stride + o * layout.table_outer_stride;
  if (layout.inner == 1) {  // elements: no loop over columns
    for (int64_t n = 0; n < layout.entries; ++n) {
      const auto entry = static_cast<int64_t>(entries[n * layout.index_entry_stride]);
      sums[entry * layout.table_axis_stride] += static_cast<Sum>(row[n]);
    }
    return;
  }
  for (int64_t n = 0; n < layout.entries; ++n, row += layout.inner) {
    const auto entry = static_cast<int64_t>(entries[n * layout.index_entry_stride]);
    Sum* to = sums + entry * layout.table_axis_stride;
    for (int64_t d = begin; d < end; ++d) to[d] += static_cast<Sum>(row[d]);
  }
}

}  // namespace torch_ops
