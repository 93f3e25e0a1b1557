// Which entry of an index is an error by a rule. No torch.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/host/parallel.h"
#include "common/indexing/index_mode.h"
#include "common/indexing/row_layout.h"

namespace torch_ops {

// The first of the entries in [begin, end), counted over [batch, entries], that names no row if
// that is an error; kNoBadEntry if there is none.
template <class Index>
int64_t first_bad_entry(const Index* index, const RowLayout& layout, const IndexRule& rule,
                        int64_t begin, int64_t end) {
  if (!rule.raises()) return kNoBadEntry;
  if (!rule.rewrites()) return first_bad_entry(index, layout, begin, end);
  if (begin >= end) return kNoBadEntry;
  int64_t b = begin / layout.entries;
  int64_t n = begin % layout.entries;
  for (int64_t position = begin; position < end; ++b, n = 0) {
    const Index* batch = index + b * layout.index_batch_stride;
    const int64_t batch_end = std::min(layout.entries, n + (end - position));
    for (; n < batch_end; ++n, ++position) {
      const int64_t row = rule.resolve(static_cast<int64_t>(batch[n * layout.index_entry_stride]));
      if (!in_range(row, layout.axis_size)) return position;
    }
  }
  return kNoBadEntry;
}

// The first of all entries, found by several threads.
template <class Index>
int64_t first_bad_entry(const Index* index, const RowLayout& layout, const IndexRule& rule) {
  return parallel_min(
      layout.batch * layout.entries, kElementsPerTask,
      [&](int64_t begin, int64_t end) { return first_bad_entry(index, layout, rule, begin, end); });
}

}  // namespace torch_ops
