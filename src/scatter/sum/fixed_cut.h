// How scatter_add cuts sums of short rows that are to have the same bits on every run on the GPU
// (cuda/fixed_point/tables.cuh): from sizes alone, and each slab as if it were the only one, so
// that its bits do not depend on what else is in the call. No torch.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/host/ceil_div.h"
#include "common/host/host_device.h"
#include "common/layout/row_layout.h"
#include "scatter/sum/problem.h"
#include "scatter/sum/tuning.h"

namespace torch_ops {

// Sums are kept in tables in shared memory. A table is for several slabs, for one, or for a bin, a
// part of a slab's rows: then the entries are sorted by bin first, tile by tile.
struct FixedCut {
  bool fits;           // otherwise this way cannot do the call, and nothing below has a meaning
  int64_t table_rows;  // that a table has room for
  int64_t slabs;       // that share a table

  // If a table contains whole slabs: the parts of its entries, kPartEntries each. `keeps`: a
  // block's entries stay in shared memory between its passes, since there is room for two blocks.
  int64_t parts;
  int64_t kept_entries;
  bool keeps;

  // If a slab has bins. A cell is a segment of a bin. Units are the warps' loads for its
  // entries, 32 at a time; a cell of many is cut into parts.
  int64_t bins;          // per slab; 0 if a table contains whole slabs
  int64_t tile_entries;  // a power of two
  int64_t tiles;         // per slab
  int64_t segments;      // per slab: groups of tiles whose entries are summed separately
  int64_t part_units;
  int64_t slabs_at_once;  // as memory allows

  // Of a slab:
  int64_t cells() const { return segments * bins; }
  int64_t most_units(int64_t entries) const { return entries / 32 + tiles * bins; }
  int64_t most_parts(int64_t entries) const { return cells() + most_units(entries) / part_units; }
  // The parts that are not a whole bin leave their sums in tables in memory.
  int64_t most_partials(int64_t entries) const {
    return segments > 1 ? most_parts(entries) : 2 * most_units(entries) / part_units;
  }
  // In shared memory: a table of so many values, and the entries that are kept, each a row of
  // values and 16 bits for the row that it names.
  static constexpr TORCH_OPS_HOST_DEVICE int64_t table_bytes(int64_t values) {
    return round_up(values * kSumBytes, 16);
  }
  int64_t kept_bytes(int64_t row_bytes) const { return kept_entries * (row_bytes + 2); }

  // Entries in memory once they are sorted: tiles begin at 16 bytes.
  static int64_t slab_entries(int64_t entries) { return round_up(entries, 8); }

  // Rows of a bin, of so many values each.
  static constexpr TORCH_OPS_HOST_DEVICE int64_t bin_rows(int64_t inner) {
    return inner == 4 ? 1024 : 2048;
  }

  static constexpr int64_t kSegmentTiles = 128;
  static constexpr int64_t kMostTileEntries = 8192;
  static constexpr int64_t kPartEntries = 16384;
  static constexpr int64_t kSumBytes = 12;  // of a table (fixed_sums.cuh)

  // Of scratch: where the arrays begin that the launches for slabs_at_once share, and how much of
  // these must be zeros at first.
  struct Scratch {
    int64_t values, rows, bounds, joins, partials, tables, bytes;
    int64_t zeros;
  };
  static constexpr int64_t kPartBytes = 16, kPartialsBytes = 8, kCountersBytes = 20;

  Scratch scratch(int64_t entries, int64_t row_bytes, int64_t inner) const {
    const int64_t slabs = slabs_at_once;
    Scratch scratch{};
    const auto take = [&](int64_t count, int64_t size) {
      const int64_t begin = scratch.bytes;
      scratch.bytes += round_up(count * size, 256);
      return begin;
    };
    const int64_t table = table_rows * inner;
    if (bins == 0) {
      scratch.tables = take(parts > 1 ? slabs * parts * table : 0, sizeof(float));
      return scratch;
    }
    scratch.values = take(slabs * slab_entries(entries), row_bytes);
    scratch.rows = take(slabs * slab_entries(entries), sizeof(uint16_t));
    scratch.bounds = take(slabs * tiles * (bins + 1), sizeof(uint16_t));
    scratch.joins = take(slabs * bins, sizeof(uint32_t));
    scratch.partials = take(slabs * cells(), kPartialsBytes);
    scratch.tables = take(slabs * most_partials(entries) * table, sizeof(float));
    scratch.zeros = slabs * (most_parts(entries) * kPartBytes + cells() * 4) + kCountersBytes;
    return scratch;
  }
};

// A number in 32 bits: its lower ones are a row of the slab, the others a place in its tile.
constexpr int kRowBits = 19;

inline FixedCut cut_fixed(const SumProblem& problem, const DeviceLimits& device) {
  constexpr int64_t kMostBlocks = INT32_MAX;
  const FixedPointTuning& tuned = tuning(device).fixed_point;
  const RowLayout& layout = problem.layout;
  const int64_t value_bytes = problem.result_bytes, shared_bytes = device.shared_bytes;

  FixedCut cut{};
  const int64_t inner = layout.inner, rows = layout.axis_size, entries = layout.entries;
  const bool short_rows = inner == 1 || inner == 2 || inner == 4;
  // Tables are written whole. So if most rows have no entries, sorting the entries is less work.
  if (!short_rows || value_bytes > 4 || tuned.entries_per_row * entries < rows) return cut;
  if (rows == 0 || entries == 0 || layout.slabs() == 0) return cut;

  cut.slabs = 1;
  if (rows * inner <= tuned.most_table_values) {
    if (entries <= FixedCut::kPartEntries && layout.outer == 1) {
      cut.slabs = std::max<int64_t>(
          std::min({tuned.most_table_values / 4 / (rows * inner), FixedCut::kPartEntries / entries,
                    layout.batch / tuned.filling_blocks}),
          1);
    }
    cut.table_rows = cut.slabs * rows;
    cut.parts = (cut.slabs * entries - 1) / FixedCut::kPartEntries + 1;
    cut.slabs_at_once = kMostBlocks / cut.parts;
    if (cut.parts > 1) {  // which need less than a slab may, and so less than the call may
      const int64_t bytes = cut.parts * rows * inner * 4;
      cut.slabs_at_once = std::min(cut.slabs_at_once, most_scratch(layout, value_bytes) / bytes);
    }
    cut.slabs_at_once = std::min(cut.slabs_at_once, layout.slabs());
    const int64_t kept = std::min(cut.slabs * entries, FixedCut::kPartEntries);
    cut.kept_entries = round_up(kept, 4);
    cut.keeps = 2 * (FixedCut::table_bytes(cut.table_rows * inner) +
                     cut.kept_bytes(inner * value_bytes) + 1024) <=
                shared_bytes;
    cut.fits = true;
    return cut;
  }

  const int64_t row_bytes = inner * value_bytes;
  cut.table_rows = FixedCut::bin_rows(inner);
  cut.bins = (rows - 1) / cut.table_rows + 1;
  cut.tile_entries = row_bytes <= 4 ? FixedCut::kMostTileEntries : 4096;
  cut.tiles = (entries - 1) / cut.tile_entries + 1;
  cut.segments = (cut.tiles - 1) / FixedCut::kSegmentTiles + 1;
  // Values of at most 2^30 are added up in two halves of 15 bits, which allows at most 65535
  // entries: 32 in each unit, and those of the tile in which a part ends. A part of a slab of
  // one segment has at most 1.5 times the uniform entries of a full bin, or those that a tile
  // has: those bins are not cut, and if one has many more, its parts do not take much longer
  // than others. All parts of several segments have tables in memory, so there should be few.
  cut.part_units = tuned.part_values / 32 / inner;
  if (cut.segments == 1) {
    const int64_t full = entries * std::min(cut.table_rows, rows) / rows / 32 + cut.tiles;
    cut.part_units = std::min(cut.part_units, std::max(full + full / 2, cut.tile_entries / 32));
  }
  const int64_t bytes = FixedCut::slab_entries(entries) * (row_bytes + 2) +
                        cut.most_partials(entries) * cut.table_rows * inner * 4 +
                        cut.tiles * (cut.bins + 1) * 2 + cut.cells() * 16 +
                        cut.most_parts(entries) * 16 + 4096;
  RowLayout slab = layout;
  slab.batch = slab.outer = 1;
  const int64_t blocks = std::max(cut.tiles, cut.most_parts(entries));
  cut.slabs_at_once = std::min({layout.slabs(), most_scratch(layout, value_bytes) / bytes,
                                kMostBlocks / std::max<int64_t>(blocks, 1)});
  cut.fits = cut.bins <= 255 && (cut.bins + 1) * cut.table_rows <= int64_t{1} << kRowBits &&
             cut.tile_entries * (row_bytes + 2) + 2048 <= shared_bytes && blocks <= kMostBlocks &&
             bytes <= most_scratch(slab, value_bytes);
  return cut;
}

}  // namespace torch_ops
