#include <memory>

#include "common/host/float16.h"
#include "common/host/parallel.h"
#include "common/indexing/index_mode.h"
#include "common/indexing/row_layout.h"
#include "embedding/bag_launch.h"

namespace torch_ops::kernels {
namespace {

constexpr int64_t kAhead =
    8;  // entries between the row that is asked for and the one that is added

// The bags [first, last).
template <class Value, class Index>
int64_t sum_some(const BagCall<Value>& call, const Index* entries, int64_t first, int64_t last) {
  using Sum = ComputeType<Value>;
  const int64_t width = call.width;
  const std::unique_ptr<Sum[]> sums(new Sum[width]);
  for (int64_t bag = first; bag < last; ++bag) {
    std::fill_n(sums.get(), width, Sum(0));
    const int64_t end = call.begin(bag + 1);
    int64_t kept = 0;
    for (int64_t n = call.begin(bag); n < end; ++n) {
      const auto entry = static_cast<int64_t>(entries[n]);
      if (!in_range(entry, call.rows)) return n;
      const Index soon = entries[std::min(n + kAhead, call.count - 1)];
      if (in_range(soon, call.rows)) {
        const auto* row = reinterpret_cast<const char*>(call.weight + soon * width);
        for (int64_t at = 0; at < std::min<int64_t>(width * sizeof(Value), 1024); at += 64) {
          __builtin_prefetch(row + at);
        }
      }
      if (entry == call.padding) continue;
      ++kept;
      const Value* row = call.weight + entry * width;
      const Sum factor = call.factors == nullptr ? Sum(1) : static_cast<Sum>(call.factors[n]);
      Sum* to = sums.get();
      for (int64_t d = 0; d < width; ++d) to[d] += factor * static_cast<Sum>(row[d]);
    }
    const Sum divisor = call.mean && kept > 0 ? static_cast<Sum>(kept) : Sum(1);
    Value* result = call.result + bag * width;
    for (int64_t d = 0; d < width; ++d) result[d] = static_cast<Value>(sums[d] / divisor);
  }
  return kNoBadEntry;
}

}  // namespace

template <class Value>
int64_t sum_bags(OnCpu on, const BagCall<Value>& call) {
  const HostScope scope(on.program);
  return dispatch_index(call.entries, [&](const auto* entries) {
    const int64_t work = (call.count + call.bags) * std::max<int64_t>(call.width, 1);
    const int64_t each = std::max<int64_t>(work / std::max<int64_t>(call.bags, 1), 1);
    return parallel_min(call.bags, kElementsPerTask / each, [&](int64_t first, int64_t last) {
      return sum_some(call, entries, first, last);
    });
  });
}

#define INSTANTIATE(Value) template int64_t sum_bags(OnCpu, const BagCall<Value>&);
TORCH_OPS_FOR_EACH_FLOAT(INSTANTIATE)

}  // namespace torch_ops::kernels
