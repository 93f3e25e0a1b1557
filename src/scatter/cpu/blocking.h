// How scatter_add cuts its work on the CPU. The order of the additions, and with it each bit of the
// result, follows from sizes and the index alone, and not from the number of threads. No torch.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/indexing/row_layout.h"

namespace torch_ops {

// The result's rows of a slab are cut into blocks whose sums stay in a core's cache. One block:
// its entries are read from the index as they stand. Several: tiles of the index are sorted by
// block first. A block of many entries is summed in pieces, and the pieces' sums are added up.
struct CpuBlocking {
  int block_shift;  // a block has 2^block_shift rows: where there are several, 16 bits number them
  int64_t blocks;   // a slab
  int64_t columns;  // of a row that are summed at a time
  int64_t tile_entries;  // 2^16 at most
  int64_t piece_entries;
  int group_shift;  // what is added to is noted for groups of 2^group_shift rows of a block
  bool looks;       // whether it is looked up first which groups are added to

  int64_t block_rows() const { return int64_t{1} << block_shift; }
  int64_t group_rows() const { return int64_t{1} << group_shift; }
  int64_t first_row(int64_t block) const { return block << block_shift; }
  // Of a block to which `entries` are added.
  int64_t pieces(int64_t entries) const { return std::max<int64_t>(entries / piece_entries, 1); }
};

// `sum_bytes` has the type in which an element is summed. Of `threads` depends what is as fast as
// can be, and not the order of the additions. `onto`: to what the result holds.
inline CpuBlocking choose_cpu_blocking(const RowLayout& layout, int64_t sum_bytes, int64_t threads,
                                       bool onto) {
  constexpr int64_t kBlockBytes = int64_t{512} << 10;  // of a second-level cache
  // Of a last-level cache; and of one slab alone, which one thread would set to zero.
  constexpr int64_t kSlabBytes = int64_t{4} << 20, kOneSlabBytes = int64_t{1} << 20;
  constexpr int64_t kOntoBytes = int64_t{16} << 20;  // where nothing is set to zero
  constexpr int64_t kMaxRows = 1 << 16;              // of one of several blocks
  constexpr int64_t kSortedCost = 4;  // of an element, where to add it as it stands costs 1
  constexpr int64_t kColumns = 4096;
  constexpr int64_t kMaxTile = 1 << 16;
  constexpr int64_t kMinPiece = 1 << 15;  // values; less is not worth a task
  constexpr int64_t kMaxPieces = 32;      // over all blocks: as many cores share one hot row
  constexpr int64_t kLookedGroup = 256;   // values; a branch costs as much as to write so many
  constexpr int64_t kFewEntries = 64;     // values of a slab's result for each entry
  constexpr int64_t kGroup = 8192;        // values, where all groups are added to

  CpuBlocking blocking{};
  blocking.columns = std::clamp<int64_t>(layout.inner, 1, kColumns);
  // To add up the pieces' sums costs a fraction of what it cost to make them.
  const auto piece_entries = [&](int64_t rows) {
    return std::max({4 * rows, kMinPiece / blocking.columns,
                     layout.slabs() * layout.entries / kMaxPieces, int64_t{1}});
  };
  const auto pieces = [&](int64_t rows) {
    return std::max<int64_t>(layout.entries / piece_entries(rows), 1);
  };
  // To sort elements keeps all threads busy, but to add them to a slab's sums as they stand in the
  // index costs far less where these are in a cache. Where no block can have so many entries that
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
  // It costs a fraction of adding rows. For elements it pays where entries are few.
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
