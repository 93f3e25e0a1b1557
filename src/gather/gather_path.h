// Which of gather's kernels takes a call: decided from sizes alone. No torch.
#pragma once

#include <cstdint>

#include "common/row_layout.h"

namespace torch_ops {

enum class GatherPath {
  kRows,      // a lane copies a word of a row: coalesced however long the rows are
  kStreamed,  // rows of 16 bytes and more in words of fewer: they pass through shared memory
  kPacked,    // shorter ones in words of 1 or 2 bytes: a lane fills four bytes of the output
  kElements,  // elements of 4 or 8 bytes of a table that the L2 cache does not hold, not too many
  kStaged,    // elements of a small table: it is held in shared memory
};

constexpr int64_t kMaxRowWords = int64_t{1} << 30;  // that a grid walks at once

// `layout` counts words of `word_bytes`, the widest in which the rows can be moved. A block may
// have `shared_bytes` of shared memory; the L2 cache has `cache_bytes`.
inline GatherPath choose_gather_path(const RowLayout& layout, int64_t word_bytes,
                                     int64_t shared_bytes, int64_t cache_bytes) {
  const bool narrow = word_bytes <= 2;
  if (layout.inner == 1 && word_bytes <= 8) {
    // Staging reads the table once a block: worth it where a slab picks more than it holds.
    const bool small = layout.axis_size * word_bytes <= shared_bytes;
    if (small && layout.entries >= 4 * layout.axis_size) return GatherPath::kStaged;
    const int64_t table_bytes = layout.slabs() * layout.axis_size * word_bytes;
    // Past the L1 cache 2 Mi picks take 1.5 % less time than through it, and 64 Mi 3 % more.
    constexpr int64_t kManyPicks = int64_t{1} << 23;
    const bool many = layout.slabs() * layout.entries > kManyPicks;
    if (!narrow && !many && table_bytes > cache_bytes) return GatherPath::kElements;
  }
  // Only the first path cuts very long rows into parts.
  if (word_bytes == 16 || layout.inner > kMaxRowWords) return GatherPath::kRows;
  const bool adjacent = layout.table_inner_stride == 1;
  if (adjacent && layout.inner * word_bytes >= 16) return GatherPath::kStreamed;
  return narrow ? GatherPath::kPacked : GatherPath::kRows;
}

}  // namespace torch_ops
