// scatter_add on the CPU: loops over a part of the work, on raw pointers. No torch.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "common/elementwise/elementwise.h"
#include "common/host/float16.h"
#include "common/indexing/index_mode.h"
#include "common/layout/row_layout.h"

namespace torch_ops {

// The type in which a value is summed. Integers are unsigned here, and wrap.
template <class Value>
using ScatterSum =
    std::conditional_t<std::is_same_v<Value, Float16> || std::is_same_v<Value, BFloat16>, float,
                       Value>;

// The initial value of a sum, so that a result to which nothing is added does not change: -0 for
// floats, as 0 would turn -0 into 0.
template <class Sum>
constexpr Sum nothing_added() {
  return std::is_integral_v<Sum> ? Sum() : static_cast<Sum>(-0.0);
}

// ---- Conversions --------------------------------------------------------------------------------

// Of `entries` entries, at most kRunEntries, those that name a row by the rule: the rows, which
// must fit a Row, and their positions. Returns how many.
template <class Index, class Row>
int64_t keep_rows(const Index* index, int64_t stride, int64_t entries, const IndexRule& rule,
                  Row* rows, uint16_t* positions) {
  int64_t kept = 0;
  for (int64_t n = 0; n < entries; ++n) {
    const int64_t row = rule.resolve(index[n * stride]);
    rows[kept] = static_cast<Row>(row);
    positions[kept] = static_cast<uint16_t>(n);
    kept += row != kNoRow;
  }
  return kept;
}

template <class Value>
void widen_values(Simd simd, const Value* values, int64_t n, float* sums) {
#ifdef __x86_64__
  if constexpr (std::is_same_v<Value, Float16>) {
    if (simd != Simd::kBaseline) return widen(values, n, sums);
  }
#endif
  const auto to_float = [](Value value)
                            TORCH_OPS_INLINE_LAMBDA { return static_cast<float>(value); };
  map_range(simd, to_float, 0, n, sums, values);
}

// Sums unchanged, or rounded.
template <class Sum, class Value>
void store_sums(Simd simd, const Sum* sums, int64_t n, Value* values) {
  if constexpr (std::is_same_v<Sum, Value>) {
    std::memcpy(values, sums, n * sizeof(Value));
  } else {
#ifdef __x86_64__
    if constexpr (std::is_same_v<Value, Float16>) {
      if (simd != Simd::kBaseline) return narrow(sums, n, values);
    }
#endif
    const auto round = [](float sum) TORCH_OPS_INLINE_LAMBDA { return Value(sum); };
    map_range(simd, round, 0, n, values, sums);
  }
}

// ---- Adding -------------------------------------------------------------------------------------

// Rows of values to add to a block's sums: the n-th to row rows[n]. It is at positions[n], or
// at n if there are no positions.
template <class Value>
struct ScatterRun {
  int64_t entries;
  const uint16_t* rows;
  const uint16_t* positions;
  const Value* values;
  int64_t value_stride;
};

// Positions are scattered, so the CPU cannot predict where a row begins: it is fetched while so
// many before it are added.
constexpr int64_t kRowsAhead = 8;

constexpr int64_t kRunEntries = 2048;  // on a function's stack

// Calls use(key(n), n, 1) for each n in order, but if four in succession have one key,
// use(key(n), n, 4) for these: adding to a number in memory waits for the previous addition to it,
// and in a long run of one key most of the time is spent waiting.
template <class Key, class Use>
TORCH_OPS_HOST_DEVICE void for_each_or_four(int64_t size, Key&& key, Use&& use) {
  using One = std::integral_constant<int64_t, 1>;
  using Four = std::integral_constant<int64_t, 4>;
  int64_t n = 0;
  for (; n + 4 <= size; n += 4) {
    const auto a = key(n), b = key(n + 1), c = key(n + 2), d = key(n + 3);
    if (((a ^ b) | (b ^ c) | (c ^ d)) == 0) {
      use(a, n, Four());
    } else {
      use(a, n, One());
      use(b, n + 1, One());
      use(c, n + 2, One());
      use(d, n + 3, One());
    }
  }
  for (; n < size; ++n) use(key(n), n, One());
}

constexpr int64_t kSample = 128;  // entries that represent all

// Do most entries name the same row as the eighth before them? The first ones represent all. (A
// sample over the whole run would fetch scattered lines, after which the CPU no longer
// predicts the loop's: it took 2.4 times as long.)
template <class Row>
bool repeats(int64_t entries, const Row* rows, int64_t stride) {
  int64_t same = 0, seen = 0;
  for (int64_t n = 8; n < std::min(entries, kSample); n += 4, ++seen) {
    same += rows[n * stride] == rows[(n - 8) * stride];
  }
  return 2 * same > seen;
}

// Do most of the sampled entries name one row? Then it is `hot`.
template <class Row>
bool find_hot(int64_t entries, const Row* rows, int64_t stride, Row& hot) {
  int64_t votes = 0, same = 0, seen = 0;
  for (int64_t n = 0; n < std::min(entries, kSample); n += 4) {
    if (votes == 0) hot = rows[n * stride];
    votes += rows[n * stride] == hot ? 1 : -1;
  }
  for (int64_t n = 0; n < std::min(entries, kSample); n += 4, ++seen) {
    same += rows[n * stride] == hot;
  }
  return 2 * same > seen;
}

// Rows of one element, one after the other. Returns the first of `rows` that is out of range,
// before which all are added, or kNoBadEntry. Four rows are read before the first of them is added:
// a compiler that cannot tell sums from rows reads each only after that.
template <class Row, class Stride, class Sum>
int64_t add_each(int64_t entries, const Row* rows, Stride stride, int64_t axis_size,
                 const Sum* values, Sum* sums) {
  int64_t n = 0;
  for (; n + 4 <= entries; n += 4) {
    const Row a = rows[n * stride], b = rows[(n + 1) * stride];
    const Row c = rows[(n + 2) * stride], d = rows[(n + 3) * stride];
    const bool good = in_range(a, axis_size) && in_range(b, axis_size) && in_range(c, axis_size) &&
                      in_range(d, axis_size);
    if (!good) break;
    sums[a] += values[n];
    sums[b] += values[n + 1];
    sums[c] += values[n + 2];
    sums[d] += values[n + 3];
  }
  for (; n < entries; ++n) {
    const Row row = rows[n * stride];
    if (!in_range(row, axis_size)) return n;
    sums[row] += values[n];
  }
  return kNoBadEntry;
}

// The same for some kRunEntries entries, of which many may be for one row.
template <class Row, class Stride, class Sum>
int64_t add_elements(int64_t entries, const Row* rows, Stride stride, int64_t axis_size,
                     const Sum* values, Sum* sums) {
  if (repeats(entries, rows, stride) && find_bad(rows, stride, entries, axis_size) == kNoBadEntry) {
    Row hot{};
    if (find_hot(entries, rows, stride, hot)) {
      // In a sum that is not in memory, without a branch: entries of other rows are in between.
      constexpr int64_t kAside = 8;
      Sum aside[kAside] = {};
      Sum sum = sums[hot];
      for (int64_t n = 0; n < entries; ++n) {
        const Row row = rows[n * stride];
        const bool is_hot = row == hot;
        sum += is_hot ? values[n] : nothing_added<Sum>();
        Sum* const other = is_hot ? aside + n % kAside : sums + row;
        *other += values[n];
      }
      sums[hot] = sum;
      return kNoBadEntry;
    }
    // Fours are worth looking for in long runs of a row. If runs have some four entries, as
    // in a sorted index, the CPU mispredicts too many.
    for_each_or_four(
        entries, [=](int64_t n) { return rows[n * stride]; },
        [=](Row row, int64_t first, auto count) {
          Sum sum = sums[row];
          for (int64_t i = 0; i < count; ++i) sum += values[first + i];
          sums[row] = sum;
        });
    return kNoBadEntry;
  }
  return add_each(entries, rows, stride, axis_size, values, sums);
}

// The same for any number of entries, whose values are first widened to the type of the sums.
template <class Row, class Value, class Sum>
int64_t add_elements_widened(Simd simd, int64_t entries, const Row* rows, int64_t stride,
                             int64_t axis_size, const Value* values, Sum* sums) {
  Sum widened[std::is_same_v<Value, Sum> ? 1 : kRunEntries];
  for (int64_t first = 0; first < entries; first += kRunEntries) {
    const int64_t n = std::min(kRunEntries, entries - first);
    const Sum* wide = widened;
    if constexpr (std::is_same_v<Value, Sum>) {
      wide = values + first;
    } else {
      widen_values(simd, values + first, n, widened);
    }
    using One = std::integral_constant<int64_t, 1>;  // a stride that the compiler knows
    const Row* at = rows + first * stride;
    const int64_t bad = stride == 1 ? add_elements(n, at, One(), axis_size, wide, sums)
                                    : add_elements(n, at, stride, axis_size, wide, sums);
    if (bad != kNoBadEntry) return first + bad;
  }
  return kNoBadEntry;
}

#ifdef __x86_64__
TORCH_OPS_AVX2 inline void add_halves(const Float16* values, int64_t columns, float* sums) {
  int64_t d = 0;
  for (; d + 8 <= columns; d += 8) {
    const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(values + d));
    _mm256_storeu_ps(sums + d, _mm256_add_ps(_mm256_loadu_ps(sums + d), _mm256_cvtph_ps(halves)));
  }
  for (; d < columns; ++d) sums[d] += _cvtsh_ss(values[d].bits);
}
#endif

template <bool kF16c, class Value, class Sum>
TORCH_OPS_HOST_DEVICE void add_row(const Value* values, int64_t columns, Sum* __restrict sums) {
#ifdef __x86_64__
  if constexpr (kF16c && std::is_same_v<Value, Float16>) return add_halves(values, columns, sums);
#endif
  for (int64_t d = 0; d < columns; ++d) sums[d] += static_cast<Sum>(values[d]);
}

template <bool kF16c, class Value, class Sum>
TORCH_OPS_HOST_DEVICE void add_rows_loop(const ScatterRun<Value>& run, int64_t columns, Sum* sums,
                                         int64_t sum_stride) {
  if (run.positions == nullptr) {
    for (int64_t n = 0; n < run.entries; ++n) {
      add_row<kF16c>(run.values + n * run.value_stride, columns, sums + run.rows[n] * sum_stride);
    }
    return;
  }
  constexpr int64_t kLine = 64 / sizeof(Value);
  const int64_t fetched = std::min(columns, 8 * kLine);
  for (int64_t n = 0; n < run.entries; ++n) {
    const int64_t ahead = run.positions[std::min(n + kRowsAhead, run.entries - 1)];
    for (int64_t d = 0; d < fetched; d += kLine) {
      __builtin_prefetch(run.values + ahead * run.value_stride + d);
    }
    add_row<kF16c>(run.values + run.positions[n] * run.value_stride, columns,
                   sums + run.rows[n] * sum_stride);
  }
}

constexpr int64_t kShortRow = 8;  // values: for fewer, a general loop takes longer than they do

// Calls use(n, values, size) for each row of a run, of fewer than kShortRow values; `size` is a
// constant.
template <class Value, class Use>
void for_each_short_row(const ScatterRun<Value>& run, int64_t columns, Use use) {
  const auto visit = [&](auto size) {
    if (run.positions == nullptr) {
      for (int64_t n = 0; n < run.entries; ++n) use(n, run.values + n * run.value_stride, size);
      return;
    }
    for (int64_t n = 0; n < run.entries; ++n) {
      const int64_t ahead = run.positions[std::min(n + kRowsAhead, run.entries - 1)];
      __builtin_prefetch(run.values + ahead * run.value_stride);
      use(n, run.values + run.positions[n] * run.value_stride, size);
    }
  };
  static_assert(kShortRow == 8);
  if (columns == 1) return visit(std::integral_constant<int, 1>());
  if (columns == 2) return visit(std::integral_constant<int, 2>());
  if (columns == 3) return visit(std::integral_constant<int, 3>());
  if (columns == 4) return visit(std::integral_constant<int, 4>());
  if (columns == 5) return visit(std::integral_constant<int, 5>());
  if (columns == 6) return visit(std::integral_constant<int, 6>());
  visit(std::integral_constant<int, 7>());
}

template <class Sum>
void add_short_rows(const ScatterRun<Sum>& run, int64_t columns, Sum* sums, int64_t stride) {
  const uint16_t* const rows = run.rows;
  for_each_short_row(run, columns,
                     [=](int64_t n, const Sum* values, auto size) TORCH_OPS_INLINE_LAMBDA {
                       Sum* const row = sums + rows[n] * stride;
                       Sum added[size()];  // all are read before any is written, so by vectors
                       for (int d = 0; d < size(); ++d) {
                         added[d] = static_cast<Sum>(row[d] + values[d]);
                       }
                       for (int d = 0; d < size(); ++d) row[d] = added[d];
                     });
}

// 16-bit floats: a run of rows is widened as a whole, once they are adjacent.
template <class Value>
void add_short_rows_widened(Simd simd, const ScatterRun<Value>& run, int64_t columns, float* sums,
                            int64_t stride) {
  Value copied[kRunEntries];
  float widened[kRunEntries];
  const int64_t rows = kRunEntries / columns;
  for (int64_t first = 0; first < run.entries; first += rows) {
    ScatterRun<Value> part = run;
    part.entries = std::min(rows, run.entries - first);
    part.rows += first;
    if (run.positions != nullptr) {
      part.positions += first;
    } else {
      part.values += first * run.value_stride;
    }
    const bool adjacent = run.positions == nullptr && run.value_stride == columns;
    if (!adjacent) {
      for_each_short_row(part, columns,
                         [&](int64_t n, const Value* values, auto size) TORCH_OPS_INLINE_LAMBDA {
                           std::memcpy(copied + n * size(), values, size() * sizeof(Value));
                         });
    }
    widen_values(simd, adjacent ? part.values : copied, part.entries * columns, widened);
    add_short_rows(ScatterRun<float>{part.entries, part.rows, nullptr, widened, columns}, columns,
                   sums, stride);
  }
}

template <class Value, class Sum>
void add_rows(Simd simd, const ScatterRun<Value>& run, int64_t columns, Sum* sums, int64_t stride) {
  if (columns < kShortRow) {
    if constexpr (std::is_same_v<Value, Sum>) {
      return add_short_rows(run, columns, sums, stride);
    } else {
      return add_short_rows_widened(simd, run, columns, sums, stride);
    }
  }
  const auto loop = [](auto set, const auto&... all) TORCH_OPS_INLINE_LAMBDA {
    add_rows_loop<set() != Simd::kBaseline>(all...);
  };
  with_simd(simd, loop, run, columns, sums, stride);
}

// Adds n sums to others.
template <class Sum>
void add_sums(Simd simd, Sum* sums, int64_t n, const Sum* others) {
  const auto add = [](Sum a, Sum b) TORCH_OPS_INLINE_LAMBDA { return static_cast<Sum>(a + b); };
  map_range(simd, add, 0, n, sums, sums, others);
}

// Adds n sums to values, each of which is rounded once.
template <class Sum, class Value>
void add_rounded(Simd simd, const Sum* sums, int64_t n, Value* values) {
  if constexpr (std::is_same_v<Sum, Value>) {
    add_sums(simd, values, n, sums);
  } else {
    Sum widened[kRunEntries];
    for (int64_t first = 0; first < n; first += kRunEntries) {
      const int64_t count = std::min(kRunEntries, n - first);
      widen_values(simd, values + first, count, widened);
      add_sums(simd, widened, count, sums + first);
      store_sums(simd, widened, count, values + first);
    }
  }
}

}  // namespace torch_ops
