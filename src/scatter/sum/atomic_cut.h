// What the choice of a way for scatter_add on the GPU (choose.h) asks of sizes, and which
// kernel adds by atomics. No torch.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/indexing/row_layout.h"

namespace torch_ops {

enum class AtomicPath {
  kTiles,     // rows of whole vectors of floats, grouped by place in each warp
  kStreamed,  // other rows: an atomic for each value, or grouped where entries meet
  kEntries,   // rows of one value, and of two or four floats: a lane an entry
  kValues,    // other short ones of small calls, and single values that lie apart: a lane a value
  kStaged,    // single values that go to a small table: summed in shared memory
};

// Does it pay to sort the entries first, so that no atomics are needed? From these sizes on that is
// the fastest way for uniform indices too (docs/gather.md).
inline bool pays_to_sort(const RowLayout& layout, int64_t value_bytes) {
  constexpr int64_t kMany = int64_t{1} << 25;
  const int64_t rows = layout.slabs() * layout.entries;
  // Atomics on 16-bit values take a table of floats and a pass over it to round.
  const int64_t values =
      (value_bytes == 2 ? std::max(rows, layout.slabs() * layout.axis_size) : rows) * layout.inner;
  const bool long_rows = layout.inner * std::max<int64_t>(value_bytes, 4) >= 256;
  return long_rows && values >= kMany;
}

// The same for the position of the largest value, which takes two passes of atomics otherwise.
inline bool pays_to_sort_for_best(const RowLayout& layout) {
  constexpr int64_t kMany = int64_t{1} << 24;  // values
  return layout.inner >= 32 && layout.slabs() * layout.entries * layout.inner >= kMany;
}

// Do so few rows take so many entries that atomics wait for each other, though each warp adds up
// first what goes to one row? (docs/gather.md; most single elements are summed in shared memory.)
inline bool has_few_rows(const RowLayout& layout) {
  constexpr int64_t kFew = 256, kMany = int64_t{1} << 18;
  return layout.inner > 1 && layout.slabs() * layout.axis_size <= kFew &&
         layout.slabs() * layout.entries >= kMany;
}

// Parts of a table that atomics go to at a time may be this part of the L2 cache together, and
// should be as many as divide them all: 8 and 16 of 64 slices of 1 MiB took 779 and 850 us on a
// cache of 60 MiB, and 7 took 799 (docs/gather.md).
constexpr int64_t kSideBySide = 7;

// The largest divisor of `count` that is `most` or less, and 1 at least; up to 64.
inline int64_t largest_divisor(int64_t count, int64_t most) {
  constexpr int64_t kMost = 64;
  int64_t divisor = std::clamp<int64_t>(most, 1, std::min(count, kMost));
  while (count % divisor != 0) --divisor;
  return divisor;
}

// The scratch that a call may take, in bytes: 16 an entry and a row of the result and a tenth of
// the values, or 64 MB.
inline int64_t most_scratch(const RowLayout& layout, int64_t value_bytes) {
  constexpr int64_t kFree = 64 * 1000 * 1000;
  const int64_t rows = layout.slabs() * layout.axis_size;
  const int64_t values = layout.slabs() * layout.entries * layout.inner;
  return std::max(16 * (layout.batch * layout.entries + rows) + values * value_bytes / 10, kFree);
}

// Sums of 16-bit floats by atomics take a table of floats. Is it more than the scratch that a call
// may take? Then sorting, which takes less, is the way for rows of any length.
inline bool exceeds_scratch(const RowLayout& layout, int64_t value_bytes) {
  if (value_bytes != 2) return false;
  const int64_t rows = layout.slabs() * layout.axis_size;
  const int64_t table = rows * layout.inner * static_cast<int64_t>(sizeof(float));
  return table > most_scratch(layout, value_bytes);
}

// Are there so few entries to sums of 16 bits that a table of floats for the rows that have
// entries, and a number for each row, is less work than a sort, or than a table for all rows?
inline bool has_few_entries(const RowLayout& layout, int64_t value_bytes) {
  constexpr int64_t kLarge = int64_t{1} << 23;  // values of the result: below, its table is small
  const int64_t entries = layout.batch * layout.entries;
  const int64_t rows = layout.batch * layout.axis_size;
  return value_bytes == 2 && layout.outer == 1 && 4 * entries <= rows && rows <= INT32_MAX &&
         rows * layout.inner >= kLarge &&
         4 * (entries * (layout.inner + 1) + rows) <= most_scratch(layout, value_bytes);
}

constexpr int kTileVector = 4;  // floats

// Among the ways with atomics. `adjacent`: index and values are contiguous and aligned to four
// entries, and a batch has a multiple of four. `vectors`: sums are floats, whose rows of two or
// four, or whose vectors in longer ones, lie at multiples of their size, as the values' do: one
// instruction adds such a vector, where others take one for each value and are best given
// neighbours, lane by lane. A block may have `shared_bytes` of shared memory.
inline AtomicPath choose_atomic_path(const RowLayout& layout, int64_t sum_bytes, bool adjacent,
                                     bool vectors, int64_t shared_bytes) {
  const int64_t inner = layout.inner;
  const int64_t slabs = layout.slabs(), entries = layout.entries;
  constexpr int64_t kLeastEntries = 1024;  // of a slab: what a block sums at a time
  if (inner == 1 && entries >= kLeastEntries && layout.axis_size * sum_bytes <= shared_bytes) {
    // Blocks that sum four entries or more to each element of their slab, in such a number that
    // they do not leave most of the GPU idle.
    constexpr int64_t kLeastBlocks = 96;
    if (slabs * (entries / (4 * layout.axis_size)) >= kLeastBlocks) return AtomicPath::kStaged;
    // Or, with fewer entries, one block to a slab, where slabs fill the GPU.
    constexpr int64_t kFilled = 256, kLeastRows = 1024, kMany = int64_t{1} << 20;
    if (slabs >= kFilled && layout.axis_size >= kLeastRows && entries >= layout.axis_size &&
        slabs * entries >= kMany) {
      return AtomicPath::kStaged;
    }
  }
  if (inner == 1) return adjacent ? AtomicPath::kEntries : AtomicPath::kValues;
  if (vectors && (inner == 2 || inner == 4)) return AtomicPath::kEntries;
  // In values; found by measuring (docs/gather.md).
  constexpr int64_t kLong = 16, kMany = int64_t{1} << 22, kFew = int64_t{1} << 20;
  const int64_t values = layout.slabs() * layout.entries * inner;
  if (vectors && inner >= 8 && inner % kTileVector == 0 && (inner >= kLong || values < kMany)) {
    return AtomicPath::kTiles;
  }
  return inner < 8 && values < kFew ? AtomicPath::kValues : AtomicPath::kStreamed;
}

}  // namespace torch_ops
