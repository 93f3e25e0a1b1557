// scatter's reductions on the CPU: loops over a part of the result, on raw pointers. No torch.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "common/elementwise/elementwise.h"
#include "common/host/float16.h"
#include "common/host/host_device.h"
#include "common/indexing/index_mode.h"
#include "common/layout/row_layout.h"
#include "scatter/cpu/sum_loops.h"

namespace torch_ops {

// A thread's part of the result: columns of some rows of a slab. The thread looks at all entries
// of the slab, in order.
struct ReducePart {
  int64_t slab;
  int64_t first_row, last_row;
  int64_t first_column, last_column;
};

// How a call is cut into such parts: strips of columns first, and rows only if that leaves
// threads without work, since each reads the whole index. The result does not depend on it.
struct ReduceParts {
  int64_t strips;
  int64_t ranges;  // of rows
  int64_t count;

  ReduceParts(const RowLayout& layout, int64_t threads) {
    constexpr int64_t kColumns = 64;
    constexpr int64_t kSmall = 32768;  // values per thread
    const int64_t wanted =
        std::min(threads, layout.slabs() * layout.entries * layout.inner / kSmall + 1);
    strips = std::clamp<int64_t>(layout.inner / kColumns, 1, wanted);
    ranges = std::clamp<int64_t>(wanted / (layout.slabs() * strips), 1,
                                 std::max<int64_t>(layout.axis_size, 1));
    count = layout.slabs() * strips * ranges;
  }

  ReducePart part(int64_t number, const RowLayout& layout) const {
    const int64_t strip = number % strips, range = number / strips % ranges;
    return {number / strips / ranges, layout.axis_size * range / ranges,
            layout.axis_size * (range + 1) / ranges, layout.inner * strip / strips,
            layout.inner * (strip + 1) / strips};
  }
};

// Some of a part's entries, in order: which they are, and the rows that they name.
struct ReduceRun {
  static constexpr int64_t kMost = 1024;  // on a function's stack

  int64_t count = 0;
  int64_t entries[kMost];
  int64_t rows[kMost];
};

// Calls use(run) for the entries of a part. Those that name no row of it are skipped.
template <class Index, class Use>
void for_each_part_run(const Index* index, const RowLayout& layout, const IndexRule& rule,
                       const ReducePart& part, Use&& use) {
  const Index* entries = index + part.slab / layout.outer * layout.index_batch_stride;
  const auto rows_of_part = static_cast<uint64_t>(part.last_row - part.first_row);
  // Do all entries name a row of it? They have been checked if one that is none is an error.
  const bool all =
      part.last_row - part.first_row == layout.axis_size && rule.raises() && !rule.rewrites();
  ReduceRun run;
  for (int64_t first = 0; first < layout.entries; first += ReduceRun::kMost) {
    const int64_t end = std::min(first + ReduceRun::kMost, layout.entries);
    if (all) {
      for (int64_t n = first; n < end; ++n) {
        run.entries[n - first] = n;
        run.rows[n - first] = static_cast<int64_t>(entries[n * layout.index_entry_stride]);
      }
      run.count = end - first;
      use(run);
      continue;
    }
    run.count = 0;
    with_rule(rule, [&](auto row_of) {
      for (int64_t n = first; n < end; ++n) {
        // Without a branch: the part of an entry cannot be predicted.
        const auto row = static_cast<int64_t>(row_of(entries[n * layout.index_entry_stride]));
        run.entries[run.count] = n;
        run.rows[run.count] = row;
        run.count += static_cast<uint64_t>(row - part.first_row) < rows_of_part;
      }
    });
    use(run);
  }
}

// ---- The largest or smallest values -------------------------------------------------------------

// The best value of each element of the result so far, and which entry of the index it is of;
// `none` if there is no value yet. NaN is better than any number; of equal values the
// first is kept.
template <class Best>
struct BestValues {
  Best* values;
  int64_t* entries;
  int64_t none;
};

template <bool kLargest, class Best>
TORCH_OPS_HOST_DEVICE bool is_better(Best value, Best old) {
  const bool worse = kLargest ? value <= old : value >= old;  // no NaN is
  return !worse & (old == old);
}

template <bool kLargest, class Value, class Best>
TORCH_OPS_HOST_DEVICE void keep_better(const Value* __restrict from, int64_t columns, int64_t entry,
                                       Best* __restrict best, int64_t* __restrict entries) {
  for (int64_t d = 0; d < columns; ++d) {
    const auto value = static_cast<Best>(from[d]);
    const bool better = is_better<kLargest>(value, best[d]);
    best[d] = better ? value : best[d];
    entries[d] = better ? entry : entries[d];
  }
}

template <bool kLargest, class Value, class Best>
TORCH_OPS_HOST_DEVICE void keep_best_loop(const RowLayout& layout, const ReducePart& part,
                                          const ReduceRun& run, const Value* values,
                                          const BestValues<Best>& best) {
  constexpr int64_t kAhead = 8;
  const int64_t columns = part.last_column - part.first_column;
  const int64_t result = part.slab * layout.axis_size * layout.inner + part.first_column;
  const Value* slab = values + part.slab * layout.entries * layout.inner + part.first_column;
  for (int64_t k = 0; k < run.count; ++k) {
    const int64_t entry = run.entries[k];
    const int64_t next = result + run.rows[std::min(k + kAhead, run.count - 1)] * layout.inner;
    __builtin_prefetch(best.values + next);
    __builtin_prefetch(best.entries + next);
    const int64_t at = result + run.rows[k] * layout.inner;
    const Value* from = slab + entry * layout.inner;
    if (best.entries[at] != best.none) {
      keep_better<kLargest>(from, columns, entry, best.values + at, best.entries + at);
      continue;
    }
    for (int64_t d = 0; d < columns; ++d) {  // the first that names this row
      best.values[at + d] = static_cast<Best>(from[d]);
      best.entries[at + d] = entry;
    }
  }
}

// Adds the values of a run. The rows of a part are added whole, so the first of a row's
// elements shows for all whether there is a value yet.
template <bool kLargest, class Value, class Best>
void keep_best(Simd simd, const RowLayout& layout, const ReducePart& part, const ReduceRun& run,
               const Value* values, const BestValues<Best>& best) {
  const auto loop = [](auto, const auto&... all)
                        TORCH_OPS_INLINE_LAMBDA { keep_best_loop<kLargest>(all...); };
  with_simd(simd, loop, layout, part, run, values, best);
}

// ---- The same without the entries: only keys, of short rows -------------------------------------

// Numbers of any type as signed integers of their size that have the same order, so that the
// largest or smallest of them is found by one loop for each size. The best number has the largest
// key: that is the largest number or, with `largest` false, the smallest; NaN is better than all
// others.
template <class Key>
class KeyOrder {
 public:
  // No number at all. It is also the key of a number, the worst integer, but of no float.
  static constexpr Key kNone = std::numeric_limits<Key>::min();

  // Of the numbers of a type, whose bits a Key has.
  template <class Value>
  static KeyOrder of(bool largest) {
    KeyOrder order;
    order.flip_ = static_cast<Key>((std::is_unsigned_v<Value> ? kNone : 0) ^ (largest ? 0 : -1));
    if constexpr (!std::is_integral_v<Value>) {
      order.magnitude_ = kMost;
      if constexpr (sizeof(Value) == 2) {
        order.infinity_ = Value::kInfinity;
      } else {
        order.infinity_ = bit_cast<Key>(std::numeric_limits<Value>::infinity());
      }
    }
    return order;
  }

  TORCH_OPS_HOST_DEVICE Key key(Key bits) const {
    return (bits & kMost) > infinity_ ? kMost : static_cast<Key>(turned(bits) ^ flip_);
  }

  // The number that has this key.
  TORCH_OPS_HOST_DEVICE Key bits(Key key) const { return turned(static_cast<Key>(key ^ flip_)); }

 private:
  static constexpr Key kMost = std::numeric_limits<Key>::max();

  // Negative floats grow with their magnitude: its bits are inverted, which is its own inverse.
  TORCH_OPS_HOST_DEVICE Key turned(Key bits) const {
    return static_cast<Key>(bits ^ ((bits >> std::numeric_limits<Key>::digits) & magnitude_));
  }

  Key magnitude_ = 0;  // the bits to invert
  Key flip_ = 0;
  Key infinity_ = kMost;  // the bits of a float's
};

// Zero for the key of no number.
template <class Key>
struct FromKey {
  KeyOrder<Key> order;
  TORCH_OPS_HOST_DEVICE Key operator()(Key key) const {
    return key == KeyOrder<Key>::kNone ? Key() : order.bits(key);
  }
};

// Adds the values of a run, which are bits; `best` has keys.
template <class Key>
void keep_best_keys(Simd simd, const RowLayout& layout, const ReducePart& part,
                    const ReduceRun& run, const KeyOrder<Key>& order, const Key* values,
                    Key* best) {
  // Short rows are whole in a part, and adjacent.
  if (run.count == 0) return;
  const int64_t begin = run.entries[0], end = run.entries[run.count - 1] + 1;
  const Key* from = values + (part.slab * layout.entries + begin) * layout.inner;
  Key keys[ReduceRun::kMost * kShortRow];
  const auto to_key = [order](Key bits) TORCH_OPS_INLINE_LAMBDA { return order.key(bits); };
  map_range(simd, to_key, 0, (end - begin) * layout.inner, keys, from);
  Key* const slab = best + part.slab * layout.axis_size * layout.inner;
  const auto key_of = [&](int64_t k) { return keys + (run.entries[k] - begin) * layout.inner; };
  if (layout.inner > 1) {
    for (int64_t k = 0; k < run.count; ++k) {
      const Key* const row = key_of(k);
      Key* const at = slab + run.rows[k] * layout.inner;
      for (int64_t d = 0; d < layout.inner; ++d) at[d] = std::max(at[d], row[d]);
    }
    return;
  }
  const auto keep = [&](int64_t row, int64_t first, auto count) {
    Key kept = slab[row];
    for (int64_t k = first; k < first + count; ++k) kept = std::max(kept, *key_of(k));
    slab[row] = kept;
  };
  if (repeats(run.count, run.rows, 1)) {
    for_each_or_four(run.count, [&](int64_t k) { return run.rows[k]; }, keep);
  } else {
    for (int64_t k = 0; k < run.count; ++k) {
      keep(run.rows[k], k, std::integral_constant<int64_t, 1>());
    }
  }
}

}  // namespace torch_ops
