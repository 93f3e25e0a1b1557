// Reductions into rows that are there already, on the CPU: loops over a part of the result, on raw
// pointers. No torch.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "common/elementwise/elementwise.h"
#include "common/elementwise/joins.h"
#include "common/host/float16.h"
#include "common/layout/row_layout.h"
#include "scatter/cpu/reduce_loops.h"

namespace torch_ops {

// A 16-bit float as an integer: the best value has the largest, NaN above all, and both zeros the
// same. In integers of 16 bits alone, of which a vector holds most.
template <bool kLargest, class Format>
TORCH_OPS_HOST_DEVICE int16_t rank_of(Format value) {
  const auto bits = static_cast<int16_t>(value.bits);
  const int16_t magnitude = bits & 0x7fff;
  const int16_t sign = bits >> 15;  // -1 of negative numbers
  const int16_t number = (magnitude ^ sign) - sign;
  const int16_t rank = kLargest ? number : -number;
  return magnitude > Format::kInfinity ? INT16_MAX : rank;
}

// Better, also of 16-bit floats.
template <bool kLargest>
struct BetterOf {
  template <class T>
  static TORCH_OPS_HOST_DEVICE T join(T old, T value) {
    if constexpr (std::is_same_v<T, Float16> || std::is_same_v<T, BFloat16>) {
      // No choice between the two: GCC might make a branch of it.
      const auto better =
          static_cast<uint16_t>(-(rank_of<kLargest>(value) > rank_of<kLargest>(old)));
      old.bits ^= (old.bits ^ value.bits) & better;
      return old;
    } else {
      return Better<kLargest>::join(old, value);
    }
  }
};

// Columns of rows, to which values are joined. Without `kept` the first value overwrites what is
// there. Null counts: nobody asks how many entries name a row.
template <class Sum>
struct IntoRows {
  Sum* columns;
  int64_t stride;
  int64_t* counts;
  bool kept;
};

// Values of the same columns, in rows of all columns.
template <class Value>
struct FromRows {
  const Value* columns;
  int64_t stride;
};

template <class Join, class Value, class Sum, class Columns>
TORCH_OPS_HOST_DEVICE void join_columns(Join /*by*/, const Value* __restrict from, Columns columns,
                                        Sum* __restrict to) {
  for (int64_t d = 0; d < columns; ++d) to[d] = Join::join(to[d], static_cast<Sum>(from[d]));
}

template <class Join, class Value, class Sum, class Columns>
TORCH_OPS_HOST_DEVICE void join_rows_loop(Join join, const ReduceRun& run,
                                          const FromRows<Value>& values, const IntoRows<Sum>& into,
                                          Columns columns) {
  constexpr int64_t kAhead = 8, kLine = 64 / sizeof(Sum);
  const int64_t fetched = std::min<int64_t>(columns, 8 * kLine);
  for (int64_t k = 0; k < run.count; ++k) {
    if constexpr (std::is_same_v<Columns, int64_t>) {
      const Sum* const next =
          into.columns + run.rows[std::min(k + kAhead, run.count - 1)] * into.stride;
      for (int64_t d = 0; d < fetched; d += kLine) __builtin_prefetch(next + d);
    }
    const Value* const from = values.columns + run.entries[k] * values.stride;
    Sum* const to = into.columns + run.rows[k] * into.stride;
    if (into.counts != nullptr && ++into.counts[run.rows[k]] == 1 && !into.kept) {
      for (int64_t d = 0; d < columns; ++d) to[d] = static_cast<Sum>(from[d]);
      continue;
    }
    join_columns(join, from, columns, to);
  }
}

// A few columns take less time than a loop over a number of them.
template <class Join, class Value, class Sum>
TORCH_OPS_HOST_DEVICE void join_rows_of(Join join, const ReduceRun& run,
                                        const FromRows<Value>& values, const IntoRows<Sum>& into,
                                        int64_t columns) {
  const auto by = [&](auto count)
                      TORCH_OPS_INLINE_LAMBDA { join_rows_loop(join, run, values, into, count); };
  if (columns == 1) return by(std::integral_constant<int64_t, 1>());
  if (columns == 2) return by(std::integral_constant<int64_t, 2>());
  if (columns == 3) return by(std::integral_constant<int64_t, 3>());
  if (columns == 4) return by(std::integral_constant<int64_t, 4>());
  by(columns);
}

// Joins the values of a run to the rows that it names.
template <class... Args>
void join_rows(Simd simd, const Args&... args) {
  const auto loop = [](auto, const auto&... all) TORCH_OPS_INLINE_LAMBDA { join_rows_of(all...); };
  with_simd(simd, loop, args...);
}

// Makes the mean of a row's sums, once.
template <class Sum>
void divide_row(const IntoRows<Sum>& into, int64_t row, int64_t columns) {
  int64_t& count = into.counts[row];
  if (count == 0) return;
  const auto divisor = static_cast<Sum>(count + (into.kept ? 1 : 0));
  Sum* const to = into.columns + row * into.stride;
  for (int64_t d = 0; d < columns; ++d) to[d] /= divisor;
  count = 0;
}

}  // namespace torch_ops
