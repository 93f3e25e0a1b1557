// How scatter_add cuts sums of short rows that are to have the same bits on every run on the GPU
// (scatter_binned.cuh): from sizes alone. No torch.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/row_layout.h"
#include "scatter/scatter_path.h"

namespace torch_ops {

// Sums are kept in tables in shared memory. A table is for several slabs, for one, or for a bin, a
// part of a slab's rows: then the entries are sorted by bin first, tile by tile.
struct Binning {
  bool pays;           // else this is no way for the call, and nothing below means anything
  int64_t table_rows;  // that a table has room for
  int64_t slabs;       // that share a table

  // Where a table holds whole slabs: how its entries are cut.
  int64_t parts;
  int64_t part_entries;

  // Where a slab has bins.
  int64_t bins;          // a slab; 0 where a table holds whole slabs
  int64_t tile_entries;  // a power of two
  int64_t tiles;         // a slab
  int64_t segments;      // a slab: groups of tiles whose entries are summed apart

  int64_t tables(const RowLayout& layout) const {
    return bins > 0 ? layout.slabs() * bins : (layout.slabs() + slabs - 1) / slabs;
  }
  // A cell is a segment of a bin. Units are the warps' loads that its entries take, 32 at a time.
  int64_t cells(const RowLayout& layout) const { return layout.slabs() * segments * bins; }
  int64_t most_units(const RowLayout& layout) const {
    return layout.slabs() * (layout.entries / 32 + tiles * (bins + 1));
  }
  // A cell of many units is cut into parts.
  int64_t most_parts(const RowLayout& layout) const {
    return cells(layout) + most_units(layout) / kPartUnits;
  }
  // The parts that are no whole bin leave their sums in tables in memory.
  int64_t most_partials(const RowLayout& layout) const {
    if (bins == 0) return parts > 1 ? tables(layout) * parts : 0;
    return segments > 1 ? most_parts(layout) : 2 * most_units(layout) / kPartUnits;
  }
  // Entries that a slab takes in memory once they are sorted: its tiles begin at 16 bytes.
  int64_t slab_entries(const RowLayout& layout) const { return (layout.entries + 7) / 8 * 8; }

  static constexpr int64_t kSegmentTiles = 128;
  // Values of 2^30 at most are added up in two halves of 15 bits, which takes 65535 entries or
  // less: a part's, and those of the tile in which it ends.
  static constexpr int64_t kPartUnits = 1536;
  static constexpr int64_t kPartEntries = 16384;  // of a part of whole slabs
};

// A number in 32 bits: its lower ones say a row of the slab, the others a place in its tile.
constexpr int kRowBits = 19;

inline Binning choose_binning(const RowLayout& layout, int64_t value_bytes, int64_t shared_bytes) {
  constexpr int64_t kMostValues = 4096;  // of a table: 48 KiB
  constexpr int64_t kBlocks = 512;       // that fill a large GPU
  constexpr int64_t kMostBlocks = INT32_MAX;

  Binning binning{};
  const int64_t inner = layout.inner, rows = layout.axis_size, entries = layout.entries;
  const bool short_rows = inner == 1 || inner == 2 || inner == 4;
  // Tables are written whole. So where most rows have no entries, a sort of the entries is less.
  if (!short_rows || value_bytes > 4 || layout.outer > 1 || 4 * entries < rows) return binning;
  if (rows == 0 || entries == 0 || layout.batch == 0) return binning;

  const int64_t row_bytes = inner * value_bytes;
  if (rows * inner <= kMostValues) {
    binning.slabs = 1;
    if (entries <= Binning::kPartEntries) {
      binning.slabs =
          std::max<int64_t>(std::min({kMostValues / 4 / (rows * inner),
                                      Binning::kPartEntries / entries, layout.batch / kBlocks}),
                            1);
    }
    binning.table_rows = binning.slabs * rows;
    const int64_t of_table = binning.slabs * entries;
    const int64_t wanted = (kBlocks - 1) / binning.tables(layout) + 1;
    const int64_t least = (of_table - 1) / Binning::kPartEntries + 1;
    binning.parts = std::max(least, std::min(wanted, of_table / (4 * binning.table_rows)));
    binning.part_entries = ((of_table - 1) / binning.parts + 4) / 4 * 4;
    binning.parts = (of_table - 1) / binning.part_entries + 1;
    binning.pays = binning.tables(layout) * binning.parts <= kMostBlocks;
    return binning;
  }

  binning.slabs = 1;
  binning.table_rows = inner == 4 ? 1024 : 2048;
  binning.bins = (rows - 1) / binning.table_rows + 1;
  binning.tile_entries = row_bytes <= 4 ? 8192 : 4096;
  binning.tiles = (entries - 1) / binning.tile_entries + 1;
  binning.segments = (binning.tiles - 1) / Binning::kSegmentTiles + 1;
  const int64_t sorted = layout.slabs() * binning.slab_entries(layout) * (row_bytes + 2);
  const int64_t partials = binning.most_partials(layout) * binning.table_rows * inner * 4;
  const int64_t lists = 2 * layout.slabs() * binning.tiles * (binning.bins + 1) +
                        binning.cells(layout) * 16 + binning.most_parts(layout) * 16;
  binning.pays =
      (binning.bins + 1) * binning.table_rows <= int64_t{1} << kRowBits && binning.bins <= 255 &&
      binning.tile_entries * (row_bytes + 2) + 2048 <= shared_bytes &&
      layout.slabs() * binning.tiles <= kMostBlocks && binning.most_parts(layout) <= kMostBlocks &&
      sorted + partials + lists <= most_scratch(layout, value_bytes);
  return binning;
}

}  // namespace torch_ops
