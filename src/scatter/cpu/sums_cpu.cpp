#include <cstring>

#include "common/indexing/first_bad_entry.h"
#include "common/indexing/wide_index.h"
#include "scatter/cpu/sum_call.h"
#include "scatter/scatter_launch.h"

namespace torch_ops::kernels {
namespace {

// `onto`: added to the result, of which nothing is changed if an entry is an error.
template <class Value, class Result>
int64_t add(const ReduceCall<Value, Result>& call, bool onto) {
  RowLayout layout = call.layout;
  const WideIndex index(call.index, layout);
  const IndexRule& rule = call.rule;
  return index.dispatch([&](const auto* entries) -> int64_t {
    if (call.values_count() == 0) {  // nothing to add, but the index must still be valid
      if (!onto && call.result_count() > 0) {
        std::memset(static_cast<void*>(call.result), 0, call.result_count() * sizeof(Result));
      }
      return first_bad_entry(entries, layout, rule);
    }
    if (layout.axis_size == 0) {
      // All are dropped, or none can be valid, whatever the caller promised.
      return rule.rewrites() ? kNoBadEntry : 0;
    }
    // A rule that rewrites drops bad entries, and otherwise errors come after some were added.
    if (rule.raises() && (rule.rewrites() || onto)) {
      const int64_t bad = first_bad_entry(entries, layout, rule);
      if (bad != kNoBadEntry) return bad;
    }
    return ScatterAdd(call.values, entries, layout, rule, call.result, onto).run();
  });
}

}  // namespace

template <class Value, class Result>
int64_t scatter_add(OnCpu on, const ReduceCall<Value, Result>& call) {
  const HostScope scope(on.program);
  return add(call, /*onto=*/false);
}

template <class Value>
int64_t scatter_add_to(OnCpu on, const ReduceCall<Value, Value>& call) {
  const HostScope scope(on.program);
  return add(call, /*onto=*/true);
}

int64_t find_bad_entry(OnCpu on, const IndexArray& index, const RowLayout& layout,
                       const IndexRule& rule) {
  const HostScope scope(on.program);
  return dispatch_index(
      index, [&](const auto* entries) { return first_bad_entry(entries, layout, rule); });
}

#define INSTANTIATE(T)                                          \
  template int64_t scatter_add(OnCpu, const ReduceCall<T, T>&); \
  template int64_t scatter_add_to(OnCpu, const ReduceCall<T, T>&);
TORCH_OPS_FOR_EACH_SUMMED(INSTANTIATE)
template int64_t scatter_add(OnCpu, const ReduceCall<Float16, float>&);
template int64_t scatter_add(OnCpu, const ReduceCall<BFloat16, float>&);

}  // namespace torch_ops::kernels
