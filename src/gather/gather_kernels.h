// gather on the CPU: loops over a range of the work, on raw pointers. No torch.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "common/row_layout.h"

namespace torch_ops {

// Writes the rows [begin, end) of [batch, outer, entries]. An entry out of range is left out, and
// the smallest position of one, as above, is returned. Word is any type of an element's size.
template <class Word, class Index>
int64_t gather_rows(const Word* source, const Index* index, Word* output, const RowLayout& layout,
                    int64_t begin, int64_t end) {
  int64_t bad = kNoBadEntry;
  const int64_t inner = layout.inner;
  int64_t row = begin;
  while (row < end) {
    const int64_t slab = row / layout.entries;
    const int64_t b = slab / layout.outer;
    const int64_t o = slab % layout.outer;
    const int64_t first = row % layout.entries;
    const int64_t last = std::min(layout.entries, first + (end - row));
    const Word* table = source + b * layout.table_batch_stride + o * layout.table_outer_stride;
    const Index* entries = index + b * layout.index_batch_stride;
    Word* out = output + row * inner;
    row += last - first;
    if (inner == 1) {  // elements: the index's order is the output's
      for (int64_t n = first; n < last; ++n, ++out) {
        const Index entry = entries[n * layout.index_entry_stride];
        if (in_range(entry, layout.axis_size)) {
          *out = table[static_cast<int64_t>(entry) * layout.table_axis_stride];
        } else {
          bad = std::min(bad, b * layout.entries + n);
        }
      }
      continue;
    }
    for (int64_t n = first; n < last; ++n, out += inner) {
      const Index entry = entries[n * layout.index_entry_stride];
      if (!in_range(entry, layout.axis_size)) {
        bad = std::min(bad, b * layout.entries + n);
        continue;
      }
      const Word* in = table + static_cast<int64_t>(entry) * layout.table_axis_stride;
      if (layout.table_inner_stride == 1) {
        std::memcpy(out, in, inner * sizeof(Word));
      } else {
        for (int64_t d = 0; d < inner; ++d) out[d] = in[d * layout.table_inner_stride];
      }
    }
  }
  return bad;
}

}  // namespace torch_ops
