// How scatter_add cuts sums of short rows that are to have the same bits on every run on the GPU
// (tables.cuh): from sizes alone, and each slab as if it were the only one, so that its
// bits do not depend on what else is in the call. No torch.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/host/host_device.h"
#include "common/indexing/row_layout.h"
#include "scatter/sum/atomic_cut.h"

namespace torch_ops {

// Sums are kept in tables in shared memory. A table is for several slabs, for one, or for a bin, a
// part of a slab's rows: then the entries are sorted by bin first, tile by tile.
struct Binning {
  bool pays;           // else this is no way for the call, and nothing below means anything
  int64_t table_rows;  // that a table has room for
  int64_t slabs;       // that share a table

  // Where a table holds whole slabs: the parts of its entries, kPartEntries each. `keeps`: a
  // block's entries stay in shared memory between its passes, for there is room for two blocks.
  int64_t parts;
  int64_t kept_entries;
  bool keeps;

  // Where a slab has bins. A cell is a segment of a bin. Units are the warps' loads that its
  // entries take, 32 at a time; a cell of many is cut into parts.
  int64_t bins;          // a slab; 0 where a table holds whole slabs
  int64_t tile_entries;  // a power of two
  int64_t tiles;         // a slab
  int64_t segments;      // a slab: groups of tiles whose entries are summed apart
  int64_t part_units;
  int64_t slabs_at_once;  // as memory allows

  // Of a slab:
  int64_t cells() const { return segments * bins; }
  int64_t most_units(int64_t entries) const { return entries / 32 + tiles * bins; }
  int64_t most_parts(int64_t entries) const { return cells() + most_units(entries) / part_units; }
  // The parts that are no whole bin leave their sums in tables in memory.
  int64_t most_partials(int64_t entries) const {
    return segments > 1 ? most_parts(entries) : 2 * most_units(entries) / part_units;
  }
  // In shared memory: a table of so many values, and the entries that are kept, each a row of
  // values and 16 bits for the row that it names.
  static constexpr TORCH_OPS_HOST_DEVICE int64_t table_bytes(int64_t values) {
    return (values * kSumBytes + 15) / 16 * 16;
  }
  int64_t kept_bytes(int64_t row_bytes) const { return kept_entries * (row_bytes + 2); }

  // Entries in memory once they are sorted: tiles begin at 16 bytes.
  static int64_t slab_entries(int64_t entries) { return (entries + 7) / 8 * 8; }

  // Rows of a bin, of so many values each.
  static constexpr TORCH_OPS_HOST_DEVICE int64_t bin_rows(int64_t inner) {
    return inner == 4 ? 1024 : 2048;
  }

  static constexpr int64_t kSegmentTiles = 128;
  static constexpr int64_t kMostTileEntries = 8192;
  static constexpr int64_t kPartEntries = 16384;
  static constexpr int64_t kSumBytes = 12;  // of a table (fixed_sums.cuh)
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
  if (!short_rows || value_bytes > 4 || 4 * entries < rows) return binning;
  if (rows == 0 || entries == 0 || layout.slabs() == 0) return binning;

  binning.slabs = 1;
  if (rows * inner <= kMostValues) {
    if (entries <= Binning::kPartEntries && layout.outer == 1) {
      binning.slabs =
          std::max<int64_t>(std::min({kMostValues / 4 / (rows * inner),
                                      Binning::kPartEntries / entries, layout.batch / kBlocks}),
                            1);
    }
    binning.table_rows = binning.slabs * rows;
    binning.parts = (binning.slabs * entries - 1) / Binning::kPartEntries + 1;
    binning.slabs_at_once = kMostBlocks / binning.parts;
    if (binning.parts > 1) {  // which take less than a slab may, and so less than the call may
      const int64_t bytes = binning.parts * rows * inner * 4;
      binning.slabs_at_once =
          std::min(binning.slabs_at_once, most_scratch(layout, value_bytes) / bytes);
    }
    binning.slabs_at_once = std::min(binning.slabs_at_once, layout.slabs());
    const int64_t kept = std::min(binning.slabs * entries, Binning::kPartEntries);
    binning.kept_entries = (kept + 3) / 4 * 4;
    binning.keeps = 2 * (Binning::table_bytes(binning.table_rows * inner) +
                         binning.kept_bytes(inner * value_bytes) + 1024) <=
                    shared_bytes;
    binning.pays = true;
    return binning;
  }

  const int64_t row_bytes = inner * value_bytes;
  binning.table_rows = Binning::bin_rows(inner);
  binning.bins = (rows - 1) / binning.table_rows + 1;
  binning.tile_entries = row_bytes <= 4 ? Binning::kMostTileEntries : 4096;
  binning.tiles = (entries - 1) / binning.tile_entries + 1;
  binning.segments = (binning.tiles - 1) / Binning::kSegmentTiles + 1;
  // Values of 2^30 at most are added up in two halves of 15 bits, which takes 65535 entries or
  // less: 32 in each unit, and those of the tile in which a part ends. Nor has a part of a slab of
  // one segment more than half as many again as a full bin has of uniform entries, or than a tile
  // has: those bins are not cut, and where one has many more, its parts do not take much longer
  // than others. All parts of several segments have tables in memory, so that there are to be few.
  binning.part_units = 1536 / inner;
  if (binning.segments == 1) {
    const int64_t full = entries * std::min(binning.table_rows, rows) / rows / 32 + binning.tiles;
    binning.part_units =
        std::min(binning.part_units, std::max(full + full / 2, binning.tile_entries / 32));
  }
  const int64_t bytes = Binning::slab_entries(entries) * (row_bytes + 2) +
                        binning.most_partials(entries) * binning.table_rows * inner * 4 +
                        binning.tiles * (binning.bins + 1) * 2 + binning.cells() * 16 +
                        binning.most_parts(entries) * 16 + 4096;
  RowLayout slab = layout;
  slab.batch = slab.outer = 1;
  const int64_t blocks = std::max(binning.tiles, binning.most_parts(entries));
  binning.slabs_at_once = std::min({layout.slabs(), most_scratch(layout, value_bytes) / bytes,
                                    kMostBlocks / std::max<int64_t>(blocks, 1)});
  binning.pays = binning.bins <= 255 &&
                 (binning.bins + 1) * binning.table_rows <= int64_t{1} << kRowBits &&
                 binning.tile_entries * (row_bytes + 2) + 2048 <= shared_bytes &&
                 blocks <= kMostBlocks && bytes <= most_scratch(slab, value_bytes);
  return binning;
}

// Is that the fastest way too, so that it is the default? It is for slabs so small that a launch is
// most of their time, since it takes but one; for elements that blocks keep, where they fill the
// GPU; and for rows of two and four values where many go to few of them (docs/gather.md).
inline bool is_binning_fastest(const RowLayout& layout, int64_t value_bytes,
                               const Binning& binning) {
  constexpr int64_t kFewRows = 1024, kMany = int64_t{1} << 20;
  constexpr int64_t kMostAtOnce = int64_t{1} << 18;  // values
  if (!binning.pays || binning.bins > 0) return false;
  const int64_t slab = std::max(layout.entries, layout.axis_size) * layout.inner;
  const bool at_once = layout.inner == 1 || layout.slabs() * slab <= kMostAtOnce;
  if (slab <= (value_bytes == 2 ? 4096 : 2048) && at_once) return true;
  const int64_t entries = layout.slabs() * layout.entries;
  const int64_t rows = layout.slabs() * layout.axis_size;
  if (layout.inner > 1) return rows <= kFewRows && entries >= kMany;
  return binning.keeps && entries >= rows && entries + 4 * rows >= 2 * kMany;
}

}  // namespace torch_ops
