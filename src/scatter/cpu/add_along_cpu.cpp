#include <algorithm>
#include <atomic>

#include "common/host/parallel.h"
#include "common/layout/element_walk.h"
#include "scatter/scatter_launch.h"

namespace torch_ops::kernels {
namespace {

// The elements of one column, which differ only in their coordinate on the axis, go to one
// column of the result, to which no other element goes. So the columns are divided among threads,
// and each adds its own in order, whatever their number. Columns are those of `columns`, a layout
// without the axis; neighbours on its last axis are neighbours in memory, and are processed
// together.
struct ColumnLayout {
  ElementLayout columns;
  int64_t entries;  // per column
  int64_t index_stride;
  int64_t value_stride;

  explicit ColumnLayout(const ElementLayout& layout)
      : columns(layout), entries(1), index_stride(0), value_stride(0) {
    if (layout.axis < 0) return;
    entries = layout.sizes[layout.axis];
    index_stride = layout.index_strides[layout.axis];
    value_stride = layout.value_strides[layout.axis];
    const auto drop = [&](int64_t* of_axis) {
      for (int d = layout.axis; d + 1 < layout.rank; ++d) of_axis[d] = of_axis[d + 1];
    };
    drop(columns.sizes);
    drop(columns.table_strides);
    drop(columns.index_strides);
    drop(columns.value_strides);
    columns.rank = layout.rank - 1;
    columns.axis = -1;
    columns.count = layout.count / entries;
  }
};

// Elements in succession along one axis, and the strides to the next.
struct Lane {
  int64_t count;
  int64_t index_stride;
  int64_t value_stride;
  int64_t table_stride;
};

// Adds the columns [begin, end). Returns false if an entry is an error.
template <class Value, class Index, class Sum>
bool add_columns(const Value* values, const Index* index, Sum* sums, const ColumnLayout& layout,
                 const IndexRule& rule, int64_t begin, int64_t end) {
  const bool must_exist = !rule.rewrites();
  const int64_t axis_size = layout.columns.axis_size, axis_stride = layout.columns.axis_stride;
  bool good = true;
  walk_elements(layout.columns, begin, end, [&](const ElementRun& run) {
    // Along memory: down the columns if their elements are closer together than they are.
    const bool down = layout.index_stride < run.index_stride;
    const Lane column{layout.entries, layout.index_stride, layout.value_stride, 0};
    const Lane row{run.count, run.index_stride, run.value_stride, run.table_stride};
    const Lane& outer = down ? row : column;
    const Lane inner = down ? column : row;
    for (int64_t j = 0; j < outer.count; ++j) {
      const Index* entries = index + run.index + j * outer.index_stride;
      const Value* from = values + run.values + j * outer.value_stride;
      Sum* to = sums + run.table + j * outer.table_stride;
      const auto add = [&](int64_t k, int64_t row) {
        if (!in_range(row, axis_size)) return false;
        to[k * inner.table_stride + row * axis_stride] +=
            static_cast<Sum>(from[k * inner.value_stride]);
        return true;
      };
      const auto entry = [&](int64_t k) {
        return static_cast<int64_t>(entries[k * inner.index_stride]);
      };
      int64_t k = 0;
      while (k < inner.count && add(k, entry(k))) ++k;  // it is the row, whatever the rule
      if (k == inner.count) continue;
      if (must_exist) {
        good = false;
        return int64_t{0};  // ends the walk
      }
      for (; k < inner.count; ++k) add(k, rule.resolve(entry(k)));
    }
    return kNoBadEntry;
  });
  return good;
}

}  // namespace

template <class Value>
int64_t add_along(OnCpu on, const AlongCall<Value>& call) {
  const HostScope scope(on.program);
  const ElementLayout& layout = call.layout;
  parallel_fill(call.sums, call.sums_count, SumOf<Value>());
  if (layout.count == 0) return kNoBadEntry;
  const ColumnLayout columns(layout);
  // Neighbouring columns in one task: they share cache lines.
  const int64_t grain = std::max<int64_t>(kElementsPerTask / columns.entries, 16);
  return dispatch_index(call.index, [&](const auto* entries) -> int64_t {
    std::atomic<bool> all_good{true};
    parallel_for(columns.columns.count, grain, [&](int64_t begin, int64_t end) {
      if (!add_columns(call.values, entries, call.sums, columns, call.rule, begin, end)) {
        all_good = false;
      }
    });
    if (all_good) return kNoBadEntry;
    // The smallest position of an entry that is an error: found again, in order.
    return walk_elements(layout, 0, layout.count, [&](const ElementRun& run) {
      for (int64_t i = 0; i < run.count; ++i) {
        if (!in_range(entries[run.index + i * run.index_stride], layout.axis_size)) return i;
      }
      return kNoBadEntry;
    });
  });
}

#define INSTANTIATE(T) template int64_t add_along(OnCpu, const AlongCall<T>&);
TORCH_OPS_FOR_EACH_SUMMED(INSTANTIATE)

}  // namespace torch_ops::kernels
