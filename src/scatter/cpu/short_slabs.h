// scatter_add on the CPU if there is little to add: few entries to an existing result, where
// time goes into the rows that no entry names; and short slabs, where it goes into the work per
// slab. No torch.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "common/cuda/scratch.h"
#include "common/elementwise/elementwise_cpu.h"
#include "common/host/parallel.h"
#include "common/indexing/index_mode.h"
#include "common/layout/row_layout.h"
#include "scatter/cpu/sum_loops.h"

namespace torch_ops {

// The sums of the rows that are named, in a table of slots by the row's number. A row is in
// the slot that its number hashes to, or in the next free one after it.
template <class Value>
class FewSums {
 public:
  using Sum = ScatterSum<Value>;

  FewSums(Simd simd, int64_t entries, int64_t columns)
      : simd_(simd),
        columns_(columns),
        shift_(64 - std::max<int>(1, 64 - __builtin_clzll(2 * entries))),
        slots_(int64_t{1} << (64 - shift_), kFree),
        rows_(entries),
        sums_(entries * columns),
        values_(entries * columns) {}

  void add(int64_t row, const Sum* values) {
    const auto mask = static_cast<int64_t>(slots_.size()) - 1;
    // Fibonacci hashing (Knuth, The Art of Computer Programming 3, 6.4): 2^64 over the golden
    // ratio.
    auto slot = static_cast<int64_t>(static_cast<uint64_t>(row) * 0x9e3779b97f4a7c15u >> shift_);
    while (slots_[slot] != kFree && rows_.get()[slots_[slot]] != row) slot = (slot + 1) & mask;
    if (slots_[slot] == kFree) {
      std::copy_n(values, columns_, sums_.get() + count_ * columns_);
      rows_.get()[count_] = row;
      slots_[slot] = static_cast<int32_t>(count_++);
      return;
    }
    Sum* const sums = sums_.get() + slots_[slot] * columns_;
    for (int64_t d = 0; d < columns_; ++d) sums[d] += values[d];
  }

  // Adds the sums to rows of the slab, each rounded once, and starts again.
  void add_to(Value* slab) {
    for_each_row([&](int64_t row, Value* copy) { std::copy_n(slab + row, columns_, copy); });
    add_rounded(simd_, sums_.get(), count_ * columns_, values_.get());
    for_each_row([&](int64_t row, const Value* copy) { std::copy_n(copy, columns_, slab + row); });
    std::fill(slots_.begin(), slots_.end(), kFree);
    count_ = 0;
  }

 private:
  static constexpr int32_t kFree = -1;

  template <class Use>
  void for_each_row(Use use) const {
    for (int64_t n = 0; n < count_; ++n)
      use(rows_.get()[n] * columns_, values_.get() + n * columns_);
  }

  Simd simd_;
  int64_t columns_;
  int shift_;  // of a hash of 64 bits
  int64_t count_ = 0;
  std::vector<int32_t> slots_;
  Scratch<int64_t> rows_;
  Scratch<Sum> sums_;
  Scratch<Value> values_;  // of the result, in those rows
};

// All entries name a row by the rule, or are to be dropped.
template <class Value, class Index>
void add_few(Simd simd, const RowLayout& layout, const IndexRule& rule, const Value* values,
             const Index* index, Value* result) {
  using Sum = ScatterSum<Value>;
  const int64_t columns = layout.inner, stride = layout.index_entry_stride;
  const auto for_each_slab = [&](auto use) {
    for (int64_t slab = 0; slab < layout.slabs(); ++slab) {
      use(index + slab / layout.outer * layout.index_batch_stride,
          values + slab * layout.entries * columns, result + slab * layout.axis_size * columns);
    }
  };
  const auto for_each = [&](const Index* entries, const auto* from, auto use) {
    with_rule(rule, [&](auto row_of) {
      for (int64_t n = 0; n < layout.entries; ++n) {
        const auto row = static_cast<int64_t>(row_of(entries[n * stride]));
        if (in_range(row, layout.axis_size)) use(row, from + n * columns);
      }
    });
  };
  if constexpr (!std::is_same_v<Sum, Value>) {
    FewSums<Value> sums(simd, layout.entries, columns);
    const Scratch<Sum> widened(layout.entries * columns);
    for_each_slab([&](const Index* entries, const Value* from, Value* to) {
      widen_values(simd, from, layout.entries * columns, widened.get());
      for_each(entries, widened.get(),
               [&](int64_t row, const Sum* value) { sums.add(row, value); });
      sums.add_to(to);
    });
  } else if (columns == 1 && !rule.rewrites()) {
    for_each_slab([&](const Index* entries, const Value* from, Value* to) {
      add_elements_widened(simd, layout.entries, entries, stride, layout.axis_size, from, to);
    });
  } else {
    for_each_slab([&](const Index* entries, const Value* from, Value* to) {
      for_each(entries, from, [&](int64_t row, const Value* value) {
        Value* const sums = to + row * columns;
        for (int64_t d = 0; d < columns; ++d) sums[d] = static_cast<Value>(sums[d] + value[d]);
      });
    });
  }
}

// Slabs with so few elements, and no more entries, are added one after the other.
constexpr int64_t kShortSlab = 256;

// Returns the smallest position of an entry that is out of range.
template <class Value, class Index, class Result>
int64_t add_short_slabs(Simd simd, const RowLayout& layout, const IndexRule& rule,
                        const Value* values, const Index* index, Result* result, bool onto) {
  using Sum = ScatterSum<Value>;
  constexpr bool kInPlace = std::is_same_v<Sum, Result>;
  const int64_t rows = layout.axis_size, count = layout.entries, stride = layout.index_entry_stride;
  // Those whose sums are set to zero, and rounded, at a time. Their values are widened before.
  const int64_t most = kRunEntries / std::max(rows, count);
  const auto add_range = [&](int64_t begin, int64_t end) {
    Sum buffer[kInPlace ? 1 : kRunEntries];
    Sum widened[std::is_same_v<Sum, Value> ? 1 : kRunEntries];
    for (int64_t first = begin; first < end; first += most) {
      const int64_t last = std::min(first + most, end);
      Result* const to = result + first * rows;
      Sum* sums = buffer;
      if constexpr (kInPlace) sums = to;
      if (!kInPlace || !onto) {
        std::fill_n(sums, (last - first) * rows, onto ? nothing_added<Sum>() : Sum());
      }
      const Sum* from = widened;
      if constexpr (std::is_same_v<Sum, Value>) {
        from = values + first * count;
      } else {
        widen_values(simd, values + first * count, (last - first) * count, widened);
      }
      int64_t batch = first / layout.outer, left = layout.outer - first % layout.outer;
      for (int64_t slab = first; slab < last; ++slab, sums += rows, from += count) {
        const Index* const entries = index + batch * layout.index_batch_stride;
        // An entry in range is the row, whatever the rule.
        const int64_t bad = add_each(count, entries, stride, rows, from, sums);
        if (bad != kNoBadEntry && !rule.rewrites()) return batch * count + bad;
        for (int64_t n = bad; n < count; ++n) {
          const int64_t row = rule.resolve(static_cast<int64_t>(entries[n * stride]));
          if (in_range(row, rows)) sums[row] += from[n];
        }
        if (--left == 0) {
          left = layout.outer;
          ++batch;
        }
      }
      if constexpr (!kInPlace) {
        const int64_t size = (last - first) * rows;
        onto ? add_rounded(simd, buffer, size, to) : store_sums(simd, buffer, size, to);
      }
    }
    return kNoBadEntry;
  };
  return parallel_min(layout.slabs(), kElementsPerTask / (rows + count), add_range);
}

}  // namespace torch_ops
