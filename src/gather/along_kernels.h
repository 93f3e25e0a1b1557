// gather_elements on the CPU: loops over a range of the elements, on raw pointers. No torch.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/element_walk.h"
#include "common/index_mode.h"
#include "common/row_layout.h"

namespace torch_ops {

// A run of elements along one axis. Strides that the compiler knows cost nothing. Returns the first
// whose entry is an error, or kNoBadEntry.
template <class Word, class Index, class IndexStride, class RowOf>
int64_t gather_run(const Word* table, int64_t table_stride, int64_t axis_stride, const Index* index,
                   IndexStride index_stride, int64_t count, Word* out, int64_t axis_size,
                   bool must_exist, Word fill, RowOf row_of) {
  for (int64_t i = 0; i < count; ++i, table += table_stride) {
    const auto row = row_of(index[i * index_stride]);
    if (in_range(row, axis_size)) {
      out[i] = table[static_cast<int64_t>(row) * axis_stride];
    } else {
      if (must_exist) return i;
      out[i] = fill;
    }
  }
  return kNoBadEntry;
}

// Writes the elements [begin, end) of `output`, which is contiguous. Returns the smallest position
// of an entry that is an error, or kNoBadEntry; where there is one, the output is nonsense. Word is
// any type of an element's size.
template <class Word, class Index>
int64_t gather_along(const Word* source, const Index* index, Word* output,
                     const ElementLayout& layout, const GatherPolicy& policy, int64_t begin,
                     int64_t end) {
  const Word fill = policy.fill.word<Word>();
  const bool must_exist = !policy.rule.rewrites();
  int64_t bad = kNoBadEntry;
  with_rule(policy.rule, [&](auto row_of) {
    bad = walk_elements(layout, begin, end, [&](const ElementRun& run) {
      const auto gather = [&](auto index_stride) {
        return gather_run(source + run.table, run.table_stride, layout.axis_stride,
                          index + run.index, index_stride, run.count, output + run.position,
                          layout.axis_size, must_exist, fill, row_of);
      };
      return run.index_stride == 1 ? gather(std::integral_constant<int64_t, 1>())
                                   : gather(run.index_stride);
    });
  });
  return bad;
}

}  // namespace torch_ops
