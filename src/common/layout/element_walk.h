// Walks the elements of an ElementLayout on the CPU. No torch.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/layout/element_layout.h"
#include "common/layout/row_layout.h"

namespace torch_ops {

// Elements in succession along the last axis: offsets of the first, and the strides to the next.
struct ElementRun {
  int64_t position;  // counted over all elements
  int64_t count;
  int64_t table;  // as if all entries were 0
  int64_t index;
  int64_t values;
  int64_t table_stride;
  int64_t index_stride;
  int64_t value_stride;
};

// Calls use(run) for the elements [begin, end) in order. `use` returns the first bad element of its
// run, or kNoBadEntry; the walk ends there, and returns its position.
template <class Use>
int64_t walk_elements(const ElementLayout& layout, int64_t begin, int64_t end, Use&& use) {
  const int last = layout.rank - 1;
  if (last < 0) {  // one element
    ElementRun run{};
    run.count = 1;
    return begin < end ? use(run) : kNoBadEntry;
  }
  int64_t at[ElementLayout::kMaxRank];
  ElementRun run{};
  int64_t rest = begin;
  for (int d = last; d >= 0; --d) {
    at[d] = rest % layout.sizes[d];
    rest /= layout.sizes[d];
    run.table += at[d] * layout.table_strides[d];
    run.index += at[d] * layout.index_strides[d];
    run.values += at[d] * layout.value_strides[d];
  }
  run.position = begin;
  run.table_stride = layout.table_strides[last];
  run.index_stride = layout.index_strides[last];
  run.value_stride = layout.value_strides[last];
  while (run.position < end) {
    run.count = std::min(layout.sizes[last] - at[last], end - run.position);
    const int64_t bad = use(run);
    if (bad != kNoBadEntry) return run.position + bad;
    run.position += run.count;
    // On to the next row of the last axis: back to its start, then carry.
    const auto move = [&](int d, int64_t steps) {
      run.table += steps * layout.table_strides[d];
      run.index += steps * layout.index_strides[d];
      run.values += steps * layout.value_strides[d];
    };
    move(last, -at[last]);
    at[last] = 0;
    for (int d = last - 1; d >= 0; --d) {
      move(d, 1);
      if (++at[d] < layout.sizes[d]) break;
      move(d, -at[d]);
      at[d] = 0;
    }
  }
  return kNoBadEntry;
}

}  // namespace torch_ops
