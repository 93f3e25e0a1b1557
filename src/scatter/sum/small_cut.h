// How scatter_add cuts a call of few entries a slab, which one kernel sums (small.cuh), and
// when that pays: from sizes alone. No torch.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/cuda/device_limits.h"
#include "common/host/host_device.h"
#include "common/indexing/row_layout.h"

namespace torch_ops {

// The rows of a slab in chunks of 2^row_bits, in a permutation that scatters neighbours, and any
// that are equally far apart, over all shares. There are 2^place_bits places, as many as chunks or
// up to twice as many; chunk c has the place c * factor modulo their number; `share_places` of
// them, side by side, are a share.
struct ScatteredChunks {
  uint32_t axis_size;
  int row_bits;
  int place_bits;
  uint32_t factor;   // odd, and next to the number of places divided by the golden ratio
  uint32_t inverse;  // of it, modulo 2^32
  uint32_t share_places;

  TORCH_OPS_HOST_DEVICE uint32_t chunk_rows() const { return 1u << row_bits; }
  TORCH_OPS_HOST_DEVICE uint32_t places() const { return 1u << place_bits; }

  // Is this row one of the share's?
  TORCH_OPS_HOST_DEVICE bool has(uint32_t share, uint32_t row) const {
    const uint32_t place = (row >> row_bits) * factor & (places() - 1);
    return place - share * share_places < share_places;
  }
  // The first row of the chunk that has this place; axis_size or more where there is none.
  TORCH_OPS_HOST_DEVICE uint32_t first_row(uint32_t place) const {
    return (place * inverse & (places() - 1)) << row_bits;
  }
};

// A block has some rows of a slab's result, or a strip of their columns, and reads the whole index
// of the slab. Its rows lie side by side, and it writes all of them; or, in a sparse cut, they are
// a share of scattered chunks, and it writes sums to those that entries name. Sums do not depend on
// any of this.
struct SmallCut {
  static constexpr int kThreads = 256;
  static constexpr int kSparseThreads = 512;  // at most
  static constexpr int kScanned = 8;          // entries that a thread reads at a time
  static constexpr int kMostPiece = 1024;     // of the index, for a warp
  static constexpr int kMostRows = 256;       // a block's; of a sparse one, at a time
  static constexpr int kColumns = 4;          // that a lane has, at most

  bool fits;  // else this is no way for the call, and nothing below means anything
  bool sparse;
  bool fills;  // where it is sparse: blocks write the zeros too, not a kernel before
  int threads;
  int run;  // entries of a row that a group of lanes sums
  int entries;
  int piece;           // of the index, for a warp: a multiple of 32
  int rows;            // a block's
  int columns;         // of a strip
  int64_t row_blocks;  // of a sparse cut, shares
  int64_t strips;
  int64_t blocks_per_multiprocessor;
  ScatteredChunks chunks;  // of a sparse cut's rows

  TORCH_OPS_HOST_DEVICE int warps() const { return threads / 32; }

  static constexpr int run_of(int64_t value_bytes) { return value_bytes == 2 ? 16 : 8; }
  // Of a block: each row has one, and one more for each `run` entries.
  TORCH_OPS_HOST_DEVICE int most_runs() const { return entries / run + rows; }

  // Of shared memory.
  int64_t bytes(int64_t sum_bytes) const {
    const int64_t partials = int64_t{most_runs()} * columns * sum_bytes;
    const int64_t of_warps = int64_t{warps()} * (rows + (sparse ? 2 : 1) * piece) * 4;
    return partials + of_warps + rows * (sparse ? 10 : 6) + entries * 2 + most_runs() * 2;
  }
};

// The part of both cuts that they share: all but the rows. Fits where there is something to do.
inline SmallCut cut_entries(const RowLayout& layout, int64_t value_bytes, int threads,
                            int64_t most_entries) {
  constexpr int64_t kStripBytes = 64;
  const auto up = [](int64_t a, int64_t b) { return (a + b - 1) / b; };

  SmallCut cut{};
  cut.threads = threads;
  cut.run = SmallCut::run_of(value_bytes);
  const int64_t slabs = layout.slabs(), rows = layout.axis_size, inner = layout.inner;
  if (slabs == 0 || rows == 0 || inner == 0 || layout.entries == 0) return cut;
  if (layout.entries > most_entries || slabs > INT32_MAX) return cut;
  cut.fits = true;
  cut.entries = static_cast<int>(layout.entries);
  cut.piece = static_cast<int>(up(up(layout.entries, cut.warps()), 32) * 32);

  // Strips, so that rows that all entries name are the work of several blocks.
  const int64_t strips = up(inner * std::max<int64_t>(value_bytes, 2), kStripBytes);
  const int64_t columns = up(up(inner, strips), SmallCut::kColumns) * SmallCut::kColumns;
  cut.columns = static_cast<int>(std::min(columns, inner));
  cut.strips = up(inner, cut.columns);
  return cut;
}

// What follows from all the rest.
inline SmallCut finish_cut(SmallCut cut, int64_t slabs, int64_t sum_bytes,
                           const DeviceLimits& device) {
  constexpr int64_t kMostGrid = 65535;
  constexpr int64_t kOwnBytes = 16;  // of shared memory, that the kernel has beside
  cut.fits = cut.bytes(sum_bytes) + kOwnBytes <= device.shared_bytes && cut.strips <= kMostGrid &&
             cut.row_blocks <= kMostGrid;
  const int64_t blocks = slabs * cut.row_blocks * cut.strips;
  cut.blocks_per_multiprocessor = (blocks + device.multiprocessors - 1) / device.multiprocessors;
  return cut;
}

inline SmallCut cut_small(const RowLayout& layout, int64_t value_bytes, int64_t sum_bytes,
                          const DeviceLimits& device) {
  const auto up = [](int64_t a, int64_t b) { return (a + b - 1) / b; };
  constexpr int64_t kMostEntries = SmallCut::kScanned * SmallCut::kThreads;
  SmallCut cut = cut_entries(layout, value_bytes, SmallCut::kThreads, kMostEntries);
  if (!cut.fits) return cut;
  const int64_t of_slab = up(device.multiprocessors, layout.slabs() * cut.strips);
  cut.rows =
      static_cast<int>(std::min<int64_t>(up(layout.axis_size, of_slab), SmallCut::kMostRows));
  while (cut.rows > 1 && cut.bytes(sum_bytes) > device.shared_bytes / 2) {
    cut.rows = (cut.rows + 1) / 2;
  }
  cut.row_blocks = up(layout.axis_size, cut.rows);
  return finish_cut(cut, layout.slabs(), sum_bytes, device);
}

// The chunks of a slab's rows, large enough to be written in long stores.
inline ScatteredChunks scatter_chunks(int64_t axis_size, int64_t row_bytes) {
  constexpr int64_t kChunkBytes = 1024;
  constexpr int kLeastRowBits = 3, kMostRowBits = 8;
  constexpr uint32_t kGolden = 0x9e3779b9u;  // 2^32 divided by the golden ratio
  ScatteredChunks chunks{};
  chunks.axis_size = static_cast<uint32_t>(axis_size);
  chunks.row_bits = kLeastRowBits;
  while (chunks.row_bits < kMostRowBits && row_bytes << chunks.row_bits < kChunkBytes) {
    ++chunks.row_bits;
  }
  while (int64_t{chunks.chunk_rows()} << chunks.place_bits < axis_size) ++chunks.place_bits;
  chunks.factor = chunks.place_bits == 0 ? 1 : kGolden >> (32 - chunks.place_bits) | 1;
  // Each step doubles the lowest bits that are right, of which an odd number's own are three.
  chunks.inverse = chunks.factor;
  for (int bits = 3; bits < 32; bits *= 2) chunks.inverse *= 2 - chunks.factor * chunks.inverse;
  return chunks;
}

// The same where most rows of the result have no entry. The numbers were found by a sweep
// (docs/gather.md).
inline SmallCut cut_sparse(const RowLayout& layout, int64_t value_bytes, int64_t sum_bytes,
                           const DeviceLimits& device) {
  constexpr int64_t kShare = 128;           // entries, whose rows a block will have room for
  constexpr int64_t kLeast = 16;            // entries that are worth a block
  constexpr int64_t kFilled = 1 << 15;      // bytes of zeros that are
  constexpr int64_t kMostFilled = 1 << 22;  // that all do; else a kernel does, before them
  const auto up = [](int64_t a, int64_t b) { return (a + b - 1) / b; };
  const auto cut_for = [&](int threads) {
    const int64_t most_entries = SmallCut::kMostPiece * (threads / 32);
    SmallCut cut = cut_entries(layout, value_bytes, threads, most_entries);
    cut.sparse = true;
    cut.fits &= layout.axis_size <= INT32_MAX;
    if (!cut.fits) return cut;
    const int64_t strip_bytes = layout.axis_size * cut.columns * value_bytes;
    cut.fills = layout.slabs() * strip_bytes * cut.strips < kMostFilled;
    const int64_t wanted =
        up((cut.fills ? 2 : 1) * device.multiprocessors, layout.slabs() * cut.strips);
    const int64_t filling = cut.fills ? up(strip_bytes, kFilled) : 0;
    const int64_t worth = std::max(up(layout.entries, kLeast), filling);
    const int64_t shares = std::max(up(layout.entries, kShare), std::min(wanted, worth));
    cut.rows = SmallCut::kMostRows;
    cut.chunks = scatter_chunks(layout.axis_size, layout.inner * value_bytes);
    cut.chunks.share_places = static_cast<uint32_t>(up(cut.chunks.places(), shares));
    cut.row_blocks = up(cut.chunks.places(), cut.chunks.share_places);
    return finish_cut(cut, layout.slabs(), sum_bytes, device);
  };
  // Many blocks of few entries each had better be smaller.
  constexpr int64_t kFewEntries = 1024;
  const SmallCut large = cut_for(SmallCut::kSparseThreads);
  return large.fits && large.blocks_per_multiprocessor > 1 && layout.entries <= kFewEntries
             ? cut_for(SmallCut::kThreads)
             : large;
}

// Is this the fastest way? Others take a launch more, for zeros, and of 16 bits, whose sums have to
// be rounded, two more; and atomics are slow on rows of a few values. But all blocks should run at
// once, and where all entries name one row they are the work of a block a strip. Found by a sweep
// (docs/gather.md).
inline bool is_small_fastest(int64_t value_bytes, const SmallCut& cut) {
  constexpr int64_t kMostBlocks = 3;
  const bool rounded = value_bytes < 4;
  const int64_t most_entries = rounded ? 2048 : 1024, most_values = rounded ? 1 << 14 : 1 << 13;
  return cut.fits && cut.blocks_per_multiprocessor <= kMostBlocks && cut.entries <= most_entries &&
         int64_t{cut.entries} * cut.columns <= most_values;
}

// The same of a sparse cut. It pays where sums would have to be rounded in all rows of a large
// result, and the more the larger that is.
inline bool is_sparse_fastest(const RowLayout& layout, int64_t value_bytes, const SmallCut& cut) {
  constexpr int64_t kLeastValues = 150'000;
  if (!cut.fits || value_bytes != 2 || 4 * layout.entries > layout.axis_size) return false;
  const int64_t values = layout.slabs() * layout.axis_size * layout.inner;
  const int64_t most_blocks = (cut.threads == SmallCut::kThreads ? 8 : 3) + (values >> 22);
  const int64_t most_entries = cut.fills ? 2048 : 16384;
  const int64_t most_values =
      cut.fills ? 1 << 14 : std::clamp<int64_t>(values / 64, 1 << 15, 1 << 17);
  return values >= kLeastValues && cut.blocks_per_multiprocessor <= most_blocks &&
         layout.entries <= most_entries && layout.entries * cut.columns <= most_values;
}

// Where both would do, is the sparse cut faster? The other one writes rows without entries as it
// writes sums: a lane that has a single column takes longer for that than for zeros alone.
inline bool is_sparse_faster(const RowLayout& layout) {
  constexpr int64_t kMany = int64_t{1} << 19;
  return layout.inner % SmallCut::kColumns != 0 &&
         layout.slabs() * layout.axis_size * layout.inner >= kMany;
}

// Is it the fastest of those with the same bits on every run? By the sizes of one slab alone, so
// that its bits do not depend on what else is in the call.
inline bool pays_to_sum_small(const RowLayout& layout, const SmallCut& cut) {
  return cut.fits && layout.axis_size <= 64 * SmallCut::kMostRows;
}

}  // namespace torch_ops
