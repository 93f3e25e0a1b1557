#include <algorithm>
#include <atomic>

#include "common/host/parallel.h"
#include "scatter/cpu/along_loops.h"
#include "scatter/scatter_launch.h"

namespace torch_ops::kernels {

template <class Value>
int64_t add_along(OnCpu on, const AlongCall<Value>& call) {
  const HostScope scope(on.program);
  const ElementLayout& layout = call.layout;
  parallel_for(call.sums_count, kElementsPerTask, [&](int64_t begin, int64_t end) {
    std::fill(call.sums + begin, call.sums + end, SumOf<Value>());
  });
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
