#include <algorithm>
#include <type_traits>
#include <vector>

#include "common/cuda/scratch.h"
#include "common/elementwise/elementwise_cpu.h"
#include "common/host/parallel.h"
#include "common/indexing/wide_index.h"
#include "scatter/cpu/into_loops.h"
#include "scatter/cpu/reduce_loops.h"
#include "scatter/scatter_launch.h"

namespace torch_ops::kernels {
namespace {

// Calls use(call, entries, part) for all parts of a call, by several threads.
template <class Call, class Use>
void for_each_part(Call call, Use&& use) {
  RowLayout& layout = call.layout;
  if (call.values_count() == 0 || layout.axis_size == 0) return;
  const WideIndex index(call.index, layout);
  const ReduceParts parts(layout, num_threads());
  index.dispatch([&](const auto* entries) {
    const int64_t grain = kElementsPerTask / (layout.entries * layout.inner / parts.strips + 1) + 1;
    parallel_for(parts.count, grain, [&](int64_t begin, int64_t end) {
      for (int64_t number = begin; number < end; ++number) {
        use(call, entries, parts.part(number, layout));
      }
    });
  });
}

// Calls use(part, run) for all entries of a call, by several threads.
template <class Call, class Use>
void reduce(const Call& call, Use&& use) {
  for_each_part(call, [&](const Call& wide, const auto* entries, const ReducePart& part) {
    for_each_part_run(entries, wide.layout, wide.rule, part,
                      [&](const ReduceRun& run) { use(part, run); });
  });
}

// An integer with the bits of a value.
template <class Value>
using KeyOf = std::conditional_t<
    sizeof(Value) == 1, int8_t,
    std::conditional_t<sizeof(Value) == 2, int16_t,
                       std::conditional_t<sizeof(Value) == 4, int32_t, int64_t>>>;

// Is there a number with these bits?
template <class Key>
bool contains(const Key* bits, int64_t size, Key wanted) {
  constexpr int64_t kPart = 1024;  // after which it may end
  const int64_t found =
      parallel_min(size, kElementsPerTask, [&](int64_t begin, int64_t end) -> int64_t {
        for (int64_t first = begin; first < end; first += kPart) {
          int any = 0;
          for (int64_t n = first; n < std::min(first + kPart, end); ++n) {
            any |= bits[n] == wanted;
          }
          if (any != 0) return first;
        }
        return INT64_MAX;
      });
  return found != INT64_MAX;
}

// Positions, in the form of scatter_arg.
template <class Value>
void find_positions(const ReduceCall<Value, int64_t>& call, bool largest) {
  const int64_t count = call.result_count();
  parallel_fill(call.result, count, call.layout.entries);
  using Best = ComputeType<Value>;
  const Scratch<Best> found(count);
  const BestValues<Best> best{found.get(), call.result, call.layout.entries};
  reduce(call, [&](const ReducePart& part, const ReduceRun& run) {
    largest ? keep_best<true>(cpu_simd(), call.layout, part, run, call.values, best)
            : keep_best<false>(cpu_simd(), call.layout, part, run, call.values, best);
  });
}

// Keys of 64-bit integers take longer than the integers.
template <class Value>
constexpr bool kHasKeys = !std::is_integral_v<Value> || sizeof(Value) < 8;

// Are rows short, and is there a key for "no value yet"? Not if it is also the key of the worst
// integer, which values contain; with the key of zero, rows without entries become zeros as well.
template <class Value>
bool pays_by_keys(const ReduceCall<Value, Value>& call, bool largest) {
  if (call.layout.inner >= kShortRow) return false;
  if constexpr (std::is_integral_v<Value>) {
    using Key = KeyOf<Value>;
    const auto order = KeyOrder<Key>::template of<Value>(largest);
    const auto* from = reinterpret_cast<const Key*>(call.values);
    constexpr Key kNone = KeyOrder<Key>::kNone;
    return order.key(Key()) == kNone || !contains(from, call.values_count(), order.bits(kNone));
  }
  return true;
}

// Of short rows. 0 counts as larger than -0.
template <class Value>
void find_best_by_keys(const ReduceCall<Value, Value>& call, bool largest) {
  using Key = KeyOf<Value>;
  const int64_t count = call.result_count();
  const auto order = KeyOrder<Key>::template of<Value>(largest);
  const auto* from = reinterpret_cast<const Key*>(call.values);
  auto* to = reinterpret_cast<Key*>(call.result);
  const Simd simd = cpu_simd();
  parallel_fill(to, count, KeyOrder<Key>::kNone);
  reduce(call, [&](const ReducePart& part, const ReduceRun& run) {
    keep_best_keys(simd, call.layout, part, run, order, from, to);
  });
  parallel_for(count, kElementsPerTask, [&](int64_t begin, int64_t end) {
    map_range(simd, FromKey<Key>{order}, begin, end, to, static_cast<const Key*>(to));
  });
}

// ---- Into rows that are there already -----------------------------------------------------------

// Joins the values of a part to rows. for_each_run calls what it is given with each run.
template <class Value, class Sum, class ForEachRun>
void join_runs(const FromRows<Value>& values, const IntoRows<Sum>& into, int64_t columns,
               IntoRule rule, ForEachRun&& for_each_run) {
  const auto join = [&](auto by) {
    for_each_run(
        [&](const ReduceRun& run) { join_rows(cpu_simd(), by, run, values, into, columns); });
  };
  if constexpr (std::is_same_v<Value, Sum>) {
    if (rule == IntoRule::kLargest) return join(BetterOf<true>());
    if (rule == IntoRule::kSmallest) return join(BetterOf<false>());
  }
  if constexpr (sizeof(Sum) > 2 || std::is_integral_v<Sum>) {
    if (rule == IntoRule::kProduct) return join(Times());
  }
  if constexpr (std::is_floating_point_v<Sum>) {
    join(Plus());
    if (rule == IntoRule::kMean) {
      for_each_run([&](const ReduceRun& run) {
        for (int64_t k = 0; k < run.count; ++k) divide_row(into, run.rows[k], columns);
      });
    }
  }
}

// Of short rows of 16-bit floats: all of the part in float, and the values of a run at once. Row by
// row the conversions take longer, unless few entries name some of many rows.
template <class Value, class Index>
void join_wide(const ReduceCall<Value, Value>& call, const Index* entries, const ReducePart& part,
               IntoRule rule, bool include_self) {
  const int64_t columns = call.layout.inner;
  const int64_t first = part.first_row, rows = part.last_row - first;
  const Value* const values = call.values + part.slab * call.layout.entries * columns;
  Value* const result = call.result + (part.slab * call.layout.axis_size + first) * columns;
  const Scratch<float> sums(rows * columns), wide(ReduceRun::kMost * columns);
  widen_values(cpu_simd(), result, rows * columns, sums.get());
  const bool mean = rule == IntoRule::kMean;
  std::vector<int64_t> counts(mean || !include_self ? rows : 0);
  const IntoRows<float> into{sums.get(), columns, counts.empty() ? nullptr : counts.data(),
                             include_self};
  const IntoRule joined = mean ? IntoRule::kSum : rule;
  join_runs(FromRows<float>{wide.get(), columns}, into, columns, joined, [&](auto&& use) {
    for_each_part_run(entries, call.layout, call.rule, part, [&](ReduceRun& run) {
      if (run.count == 0) return;
      const int64_t begin = run.entries[0], end = run.entries[run.count - 1] + 1;
      widen_values(cpu_simd(), values + begin * columns, (end - begin) * columns, wide.get());
      for (int64_t k = 0; k < run.count; ++k) {
        run.entries[k] -= begin;
        run.rows[k] -= first;
      }
      use(run);
    });
  });
  for (int64_t row = 0; mean && row < rows; ++row) {  // 1 of a row that nobody names
    const auto divisor = static_cast<float>(std::max<int64_t>(counts[row] + include_self, 1));
    for (int64_t d = 0; d < columns; ++d) sums.get()[row * columns + d] /= divisor;
  }
  store_sums(cpu_simd(), sums.get(), rows * columns, result);
}

template <class Value, class Index>
void join_part(const ReduceCall<Value, Value>& call, const Index* entries, const ReducePart& part,
               IntoRule rule, bool include_self) {
  const RowLayout& layout = call.layout;
  const int64_t columns = part.last_column - part.first_column;
  const FromRows<Value> values{
      call.values + part.slab * layout.entries * layout.inner + part.first_column, layout.inner};
  Value* const result =
      call.result + part.slab * layout.axis_size * layout.inner + part.first_column;
  const bool counted = rule == IntoRule::kMean || !include_self;
  const auto for_each_run = [&](auto&& use) {
    for_each_part_run(entries, layout, call.rule, part, use);
  };
  constexpr bool kNarrow = std::is_same_v<Value, Float16> || std::is_same_v<Value, BFloat16>;
  if (!kNarrow || rule == IntoRule::kLargest || rule == IntoRule::kSmallest) {
    std::vector<int64_t> counts(counted ? layout.axis_size : 0);
    const IntoRows<Value> into{result, layout.inner, counted ? counts.data() : nullptr,
                               include_self};
    return join_runs(values, into, columns, rule, for_each_run);
  }
  // 16-bit floats in float, and only the rows that are named: they are numbered as they come.
  if constexpr (kNarrow) {
    if (layout.inner < kShortRow && layout.entries > layout.axis_size / 4) {
      return join_wide(call, entries, part, rule, include_self);
    }
    std::vector<int64_t> numbers(layout.axis_size, -1), named;
    for_each_run([&](const ReduceRun& run) {
      for (int64_t k = 0; k < run.count; ++k) {
        if (numbers[run.rows[k]] >= 0) continue;
        numbers[run.rows[k]] = named.size();
        named.push_back(run.rows[k]);
      }
    });
    const auto count = static_cast<int64_t>(named.size());
    std::vector<int64_t> counts(counted ? count : 0);
    const Scratch<float> sums(count * columns);
    for (int64_t n = 0; include_self && n < count; ++n) {
      widen_values(cpu_simd(), result + named[n] * layout.inner, columns, sums.get() + n * columns);
    }
    const IntoRows<float> into{sums.get(), columns, counted ? counts.data() : nullptr,
                               include_self};
    join_runs(values, into, columns, rule, [&](auto&& use) {
      for_each_run([&](ReduceRun& run) {
        for (int64_t k = 0; k < run.count; ++k) run.rows[k] = numbers[run.rows[k]];
        use(run);
      });
    });
    for (int64_t n = 0; n < count; ++n) {
      store_sums(cpu_simd(), sums.get() + n * columns, columns, result + named[n] * layout.inner);
    }
  }
}

// Of a call of which nothing is checked. Returns the first entry that is an error, before which
// nothing is joined.
template <class Value>
int64_t join_all(OnCpu on, const ReduceCall<Value, Value>& call, IntoRule rule, bool include_self) {
  const int64_t bad = find_bad_entry(on, call.index, call.layout, call.rule);
  if (bad == kNoBadEntry) {
    for_each_part(call, [&](const auto& wide, const auto* entries, const ReducePart& part) {
      join_part(wide, entries, part, rule, include_self);
    });
  }
  return bad;
}

}  // namespace

template <class Value>
int64_t scatter_best(OnCpu on, const ReduceCall<Value, Value>& call, bool largest) {
  const HostScope scope(on.program);
  if constexpr (kHasKeys<Value>) {
    if (pays_by_keys(call, largest)) {
      const int64_t bad = find_bad_entry(on, call.index, call.layout, call.rule);
      if (bad == kNoBadEntry) find_best_by_keys(call, largest);
      return bad;
    }
  }
  parallel_fill(call.result, call.result_count(), Value());
  return join_all(on, call, largest ? IntoRule::kLargest : IntoRule::kSmallest,
                  /*include_self=*/false);
}

template <class Value>
int64_t scatter_arg(OnCpu on, const ReduceCall<Value, int64_t>& call, bool largest) {
  const HostScope scope(on.program);
  const int64_t bad = find_bad_entry(on, call.index, call.layout, call.rule);
  if (bad == kNoBadEntry) find_positions(call, largest);
  return bad;
}

template <class Value>
int64_t scatter_prod(OnCpu on, const ReduceCall<Value, Value>& call) {
  // Signed integers, which wrap alike: there are their loops already.
  using Number = std::conditional_t<std::is_integral_v<Value>, KeyOf<Value>, Value>;
  const HostScope scope(on.program);
  const ReduceCall<Number, Number> numbers{reinterpret_cast<const Number*>(call.values), call.index,
                                           call.layout, call.rule,
                                           reinterpret_cast<Number*>(call.result)};
  parallel_fill(numbers.result, call.result_count(), static_cast<Number>(1.0f));
  return join_all(on, numbers, IntoRule::kProduct, /*include_self=*/true);
}

template <class Value>
int64_t scatter_into(OnCpu on, const ReduceCall<Value, Value>& call, IntoRule rule,
                     bool include_self) {
  const HostScope scope(on.program);
  return join_all(on, call, rule, include_self);
}

#define INSTANTIATE_ORDERED(T)                                              \
  template int64_t scatter_best(OnCpu, const ReduceCall<T, T>&, bool);      \
  template int64_t scatter_arg(OnCpu, const ReduceCall<T, int64_t>&, bool); \
  template int64_t scatter_into(OnCpu, const ReduceCall<T, T>&, IntoRule, bool);
TORCH_OPS_FOR_EACH_ORDERED(INSTANTIATE_ORDERED)

#define INSTANTIATE_PROD(T) template int64_t scatter_prod(OnCpu, const ReduceCall<T, T>&);
TORCH_OPS_FOR_EACH_SUMMED(INSTANTIATE_PROD)

}  // namespace torch_ops::kernels
