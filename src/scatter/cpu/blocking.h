// How scatter_add cuts its work on the CPU. The order of the additions, and with it each bit of the
// result, depends only on sizes and the index, and not on the number of threads. No torch.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/layout/row_layout.h"

namespace torch_ops {

// The result's rows of a slab are cut into blocks whose sums stay in a core's cache. One block:
// its entries are read from the index in place. Several: tiles of the index are first sorted by
// block. A block of many entries is summed in pieces, and the pieces' sums are added up.
struct CpuBlocking {
  int block_shift;  // a block has 2^block_shift rows: if there are several, 16 bits can number them
  int64_t blocks;   // per slab
  int64_t columns;  // of a row that are summed at a time
  int64_t tile_entries;  // at most 2^16
  int64_t piece_entries;
  int group_shift;  // touched rows are noted for groups of 2^group_shift rows of a block
  bool looks;       // whether touched groups are looked up first

  int64_t block_rows() const { return int64_t{1} << block_shift; }
  int64_t group_rows() const { return int64_t{1} << group_shift; }
  int64_t first_row(int64_t block) const { return block << block_shift; }
  // Of a block to which `entries` are added.
  int64_t pieces(int64_t entries) const { return std::max<int64_t>(entries / piece_entries, 1); }
};

// `sum_bytes` is the size of the type in which an element is summed. `threads` only affects the
// speed, not the order of the additions. `onto`: added to the values in the result.
inline CpuBlocking choose_cpu_blocking(const RowLayout& layout, int64_t sum_bytes, int64_t threads,
                                       bool onto) {
  constexpr int64_t kBlockBytes = int64_t{512} << 10;  // of a second-level cache
  // Of a last-level cache; and of a single slab, which one thread would set to zero.
  constexpr int64_t kSlabBytes = int64_t{4} << 20, kOneSlabBytes = int64_t{1} << 20;
  constexpr int64_t kOntoBytes = int64_t{16} << 20;  // if nothing is set to zero
  constexpr int64_t kMaxRows = 1 << 16;              // of one of several blocks
  constexpr int64_t kSortedCost = 4;  // of an element, relative to adding it in place
  constexpr int64_t kColumns = 4096;
  constexpr int64_t kMaxTile = 1 << 16;
  constexpr int64_t kMinPiece = 1 << 15;  // values; less is not worth a task
  constexpr int64_t kMaxPieces = 32;      // over all blocks: as many cores share one hot row
  constexpr int64_t kLookedGroup = 256;   // values; a branch takes as long as writing so many
  constexpr int64_t kFewEntries = 64;     // values of a slab's result for each entry
  constexpr int64_t kGroup = 8192;        // values, if all groups are added to

  CpuBlocking blocking{};
  blocking.columns = std::clamp<int64_t>(layout.inner, 1, kColumns);
  // Adding up the pieces' sums takes a fraction of the time of making them.
  const auto piece_entries = [&](int64_t rows) {
    return std::max({4 * rows, kMinPiece / blocking.columns,
                     layout.slabs() * layout.entries / kMaxPieces, int64_t{1}});
  };
  const auto pieces = [&](int64_t rows) {
    return std::max<int64_t>(layout.entries / piece_entries(rows), 1);
  };
  // Sorting elements keeps all threads busy, but adding them to a slab's sums in the order of the
  // index takes far less time if these are in a cache. If no block can have so many entries that
  // it is cut into pieces, the order of the additions is that of the index both ways.
  const bool same_order = pieces(kMaxRows) == 1;
  const bool keeps_busy = same_order ? kSortedCost * layout.slabs() > threads
                                     : layout.slabs() * pieces(layout.axis_size) > 1;
  const int64_t most_bytes = onto ? kOntoBytes : layout.slabs() > 1 ? kSlabBytes : kOneSlabBytes;
  const bool whole = layout.inner == 1 && layout.axis_size <= most_bytes / sum_bytes && keeps_busy;
  const auto may_grow = [&] {
    return whole || (2 * blocking.block_rows() <= kMaxRows &&
                     2 * blocking.block_rows() * blocking.columns * sum_bytes <= kBlockBytes);
  };
  while (blocking.block_rows() < layout.axis_size && may_grow()) {
    ++blocking.block_shift;
  }
  blocking.blocks =
      std::max<int64_t>((layout.axis_size + blocking.block_rows() - 1) >> blocking.block_shift, 1);
  // Enough tiles for many threads, and some 16 entries of a tile for each block.
  blocking.tile_entries = std::clamp<int64_t>(
      std::max(16 * blocking.blocks, layout.slabs() * layout.entries / 32), 4096, kMaxTile);
  blocking.piece_entries = piece_entries(std::min(blocking.block_rows(), layout.axis_size));
  // It takes a fraction of the time of adding rows. For elements it pays if entries are few.
  blocking.looks =
      blocking.columns >= 8 || layout.entries <= layout.axis_size * blocking.columns / kFewEntries;
  const int64_t group = blocking.looks ? kLookedGroup : kGroup;
  while (blocking.group_shift < blocking.block_shift &&
         blocking.group_rows() * blocking.columns < group) {
    ++blocking.group_shift;
  }
  return blocking;
}

}  // namespace torch_ops
