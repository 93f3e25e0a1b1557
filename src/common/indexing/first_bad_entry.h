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
  if (!rule.raises() || begin >= end) return kNoBadEntry;
  const int64_t stride = layout.index_entry_stride;
  // Batch by batch: a division per entry would take longer than the rest.
  int64_t b = begin / layout.entries;
  int64_t n = begin % layout.entries;
  for (int64_t position = begin; position < end; ++b, n = 0) {
    const Index* const first = index + b * layout.index_batch_stride + n * stride;
    const int64_t count = std::min(layout.entries - n, end - position);
    int64_t bad = kNoBadEntry;
    if (!rule.rewrites()) {
      bad = find_bad(first, stride, count, layout.axis_size);
    } else {
      for (int64_t k = 0; k < count && bad == kNoBadEntry; ++k) {
        const int64_t row = rule.resolve(static_cast<int64_t>(first[k * stride]));
        if (!in_range(row, layout.axis_size)) bad = k;
      }
    }
    if (bad != kNoBadEntry) return position + bad;
    position += count;
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
