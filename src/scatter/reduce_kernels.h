// scatter's reductions on the CPU: loops over a part of the result, on raw pointers. No torch.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/index_mode.h"
#include "common/row_layout.h"

namespace torch_ops {

// Is `a` before `b`? NaN comes first; of two that are alike neither does.
template <class Value>
bool comes_first(bool largest, Value a, Value b) {
  const bool a_is_nan = a != a, b_is_nan = b != b;
  if (a_is_nan || b_is_nan) return a_is_nan && !b_is_nan;
  return largest ? a > b : a < b;
}

// A part of the result that one thread has: columns of some rows of a slab. It looks at all entries
// of the slab, in their order.
struct ReducePart {
  int64_t slab;
  int64_t first_row, last_row;
  int64_t first_column, last_column;
};

// How a call is cut into such parts: strips of columns first, and rows only where that leaves
// threads without work, for each reads the whole index. The result does not depend on it.
struct ReduceParts {
  int64_t strips;
  int64_t ranges;  // of rows
  int64_t count;

  ReduceParts(const RowLayout& layout, int64_t threads) {
    constexpr int64_t kColumns = 64;
    constexpr int64_t kSmall = 32768;  // values a thread
    const int64_t wanted =
        std::min(threads, layout.slabs() * layout.entries * layout.inner / kSmall + 1);
    strips = std::clamp<int64_t>(layout.inner / kColumns, 1, wanted);
    ranges = std::clamp<int64_t>(wanted / (layout.slabs() * strips), 1,
                                 std::max<int64_t>(layout.axis_size, 1));
    count = layout.slabs() * strips * ranges;
  }

  ReducePart part(int64_t number, const RowLayout& layout) const {
    const int64_t strip = number % strips, range = number / strips % ranges;
    return {number / strips / ranges, layout.axis_size * range / ranges,
            layout.axis_size * (range + 1) / ranges, layout.inner * strip / strips,
            layout.inner * (strip + 1) / strips};
  }
};

// Calls use(value, result, n) for the values of a part: where a value of entry n stands, and where
// that element of the result does, both counted over all. Entries that name no row are passed over.
template <class Index, class Use>
void for_each_value(const Index* index, const RowLayout& layout, const IndexRule& rule,
                    const ReducePart& part, Use&& use) {
  const Index* entries = index + part.slab / layout.outer * layout.index_batch_stride;
  for (int64_t n = 0; n < layout.entries; ++n) {
    const int64_t row = rule.resolve(entries[n * layout.index_entry_stride]);
    if (row < part.first_row || row >= part.last_row) continue;
    const int64_t value = (part.slab * layout.entries + n) * layout.inner;
    const int64_t result = (part.slab * layout.axis_size + row) * layout.inner;
    for (int64_t d = part.first_column; d < part.last_column; ++d) use(value + d, result + d, n);
  }
}

}  // namespace torch_ops
