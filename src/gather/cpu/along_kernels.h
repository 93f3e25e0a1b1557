// gather_elements on the CPU: loops over a range of the elements, on raw pointers. No torch.
#pragma once

#include <cstdint>

#include "common/indexing/index_mode.h"
#include "common/layout/element_walk.h"
#include "common/layout/row_layout.h"

namespace torch_ops {

// A run of elements along one axis, whose entries are all rows of the axis. Strides that the
// compiler knows cost nothing. Returns the first entry that is not, or kNoBadEntry.
template <class Word, class Index, class IndexStride>
int64_t gather_run(const Word* table, int64_t table_stride, int64_t axis_stride, const Index* index,
                   IndexStride index_stride, int64_t count, Word* out, int64_t axis_size) {
  for (int64_t i = 0; i < count; ++i, table += table_stride) {
    const Index row = index[i * index_stride];
    if (!in_range(row, axis_size)) return i;
    out[i] = table[static_cast<int64_t>(row) * axis_stride];
  }
  return kNoBadEntry;
}

// The rest of a run, from element `first` on, by a rule that rewrites entries. Returns the first
// element whose entry is an error, or kNoBadEntry.
template <class Word, class Index>
int64_t gather_run_by_rule(const Word* table, const Index* index, const ElementRun& run,
                           int64_t first, Word* out, int64_t axis_stride,
                           const GatherPolicy& policy) {
  const Word fill = policy.fill.word<Word>();
  for (int64_t i = first; i < run.count; ++i) {
    const int64_t row = policy.rule.resolve(index[i * run.index_stride]);
    if (in_range(row, policy.rule.axis_size())) {
      out[i] = table[i * run.table_stride + row * axis_stride];
    } else if (policy.rule.raises()) {
      return i;
    } else {
      out[i] = fill;
    }
  }
  return kNoBadEntry;
}

// Writes the elements [begin, end) of `output`, which is contiguous. Returns the smallest position
// of an entry that is an error, or kNoBadEntry; if there is one, the output is undefined. Word is
// any type of an element's size.
template <class Word, class Index>
int64_t gather_along(const Word* source, const Index* index, Word* output,
                     const ElementLayout& layout, const GatherPolicy& policy, int64_t begin,
                     int64_t end) {
  return walk_elements(layout, begin, end, [&](const ElementRun& run) {
    const Word* from = source + run.table;
    const Index* entries = index + run.index;
    Word* to = output + run.position;
    const auto gather = [&](auto index_stride) {
      return gather_run(from, run.table_stride, layout.axis_stride, entries, index_stride,
                        run.count, to, layout.axis_size);
    };
    const int64_t bad = run.index_stride == 1 ? gather(std::integral_constant<int64_t, 1>())
                                              : gather(run.index_stride);
    if (bad == kNoBadEntry || !policy.rule.rewrites()) return bad;
    return gather_run_by_rule(from, entries, run, bad, to, layout.axis_stride, policy);
  });
}

}  // namespace torch_ops
