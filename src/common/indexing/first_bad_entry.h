// Which entry of an index is an error by a rule. No torch.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/host/parallel.h"
#include "common/indexing/index_mode.h"
#include "common/layout/row_layout.h"

namespace torch_ops {

// The first of `entries` entries that names no row by the rule; kNoBadEntry if there is none.
template <class Index>
int64_t find_bad(const Index* index, int64_t stride, int64_t entries, const IndexRule& rule) {
  for (int64_t n = 0; n < entries; ++n) {
    const int64_t row = rule.resolve(static_cast<int64_t>(index[n * stride]));
    if (!in_range(row, rule.axis_size())) return n;
  }
  return kNoBadEntry;
}

// The first of the entries, counted over [batch, entries], that names no row if that is an error;
// kNoBadEntry if there is none. Several threads look for it.
template <class Index>
int64_t first_bad_entry(const Index* index, const RowLayout& layout, const IndexRule& rule) {
  if (!rule.raises()) return kNoBadEntry;
  const int64_t stride = layout.index_entry_stride;
  const auto find_in_range = [&](int64_t begin, int64_t end) {
    // Batch by batch: a division per entry would take longer than the rest.
    int64_t b = begin / layout.entries;
    int64_t n = begin % layout.entries;
    for (int64_t position = begin; position < end; ++b, n = 0) {
      const Index* entries = index + b * layout.index_batch_stride + n * stride;
      const int64_t count = std::min(layout.entries - n, end - position);
      const int64_t bad = rule.rewrites() ? find_bad(entries, stride, count, rule)
                                          : find_bad(entries, stride, count, layout.axis_size);
      if (bad != kNoBadEntry) return position + bad;
      position += count;
    }
    return kNoBadEntry;
  };
  return parallel_min(layout.batch * layout.entries, kElementsPerTask, find_in_range);
}

}  // namespace torch_ops
