// How scatter_add cuts a call of few entries per slab, which one kernel sums
// (cuda/small/small.cuh): from sizes alone. No torch.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/cuda/device_limits.h"
#include "common/host/ceil_div.h"
#include "common/host/host_device.h"
#include "common/layout/row_layout.h"
#include "scatter/sum/problem.h"
#include "scatter/sum/tuning.h"

namespace torch_ops {

// The rows of a slab in chunks of 2^row_bits, in a permutation that scatters neighbours, and any
// that are equally far apart, over all shares. There are 2^place_bits places, as many as chunks or
// up to twice as many; chunk c has the place c * factor modulo their number; `share_places`
// adjacent ones are a share.
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
  // The first row of the chunk that has this place; axis_size or more if there is none.
  TORCH_OPS_HOST_DEVICE uint32_t first_row(uint32_t place) const {
    return (place * inverse & (places() - 1)) << row_bits;
  }
};

// A block has some rows of a slab's result, or a strip of their columns, and reads the whole index
// of the slab. Its rows are adjacent, and it writes all of them; or, in a sparse cut, they are
// a share of scattered chunks, and it writes sums to those that entries name. Sums do not depend on
// any of this.
struct SmallCut {
  static constexpr int kThreads = 256;
  static constexpr int kSparseThreads = 512;  // at most
  static constexpr int kScanned = 8;          // entries that a thread reads at a time
  static constexpr int kMostPiece = 1024;     // of the index, for a warp
  static constexpr int kMostEntries = kMostPiece * (kThreads / 32);  // twice as many if sparse
  static constexpr int kMostRows = 256;  // a block's; of a sparse one, at a time
  static constexpr int kColumns = 4;     // that a lane has, at most
  static constexpr int kOwnBytes = 16;   // of shared memory, in addition to bytes()

  bool fits;  // otherwise this way cannot do the call, and nothing below has a meaning
  bool sparse;
  bool fills;  // if it is sparse: blocks write the zeros too, not a previous kernel
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

// The common part of both cuts: all but the rows. Fits if there is something to do.
inline SmallCut cut_entries(const SumProblem& problem, int threads, int64_t most_entries,
                            int64_t strip_bytes) {
  const RowLayout& layout = problem.layout;
  const int64_t value_bytes = problem.result_bytes;
  SmallCut cut{};
  cut.threads = threads;
  cut.run = SmallCut::run_of(value_bytes);
  const int64_t slabs = layout.slabs(), rows = layout.axis_size, inner = layout.inner;
  if (slabs == 0 || rows == 0 || inner == 0 || layout.entries == 0) return cut;
  if (layout.entries > most_entries || slabs > INT32_MAX) return cut;
  cut.fits = true;
  cut.entries = static_cast<int>(layout.entries);
  cut.piece = static_cast<int>(round_up(ceil_div(layout.entries, cut.warps()), 32));

  const int64_t strips = ceil_div(inner * std::max<int64_t>(value_bytes, 2), strip_bytes);
  const int64_t columns = round_up(ceil_div(inner, strips), SmallCut::kColumns);
  cut.columns = static_cast<int>(std::min(columns, inner));
  cut.strips = ceil_div(inner, cut.columns);
  return cut;
}

// What follows from all the rest.
inline SmallCut finish_cut(SmallCut cut, int64_t slabs, int64_t sum_bytes,
                           const DeviceLimits& device) {
  constexpr int64_t kMostGrid = 65535;
  cut.fits = cut.bytes(sum_bytes) + SmallCut::kOwnBytes <= device.shared_bytes &&
             cut.strips <= kMostGrid && cut.row_blocks <= kMostGrid;
  const int64_t blocks = slabs * cut.row_blocks * cut.strips;
  cut.blocks_per_multiprocessor = ceil_div(blocks, device.multiprocessors);
  return cut;
}

// Whether it fits does not depend on the number of slabs: a block must have room for kLeastRows, or
// many blocks would read the index for a few rows each.
inline SmallCut cut_small(const SumProblem& problem, const DeviceLimits& device) {
  constexpr int64_t kLeastRows = 64;
  const RowLayout& layout = problem.layout;
  const SmallTuning& tuned = tuning(device).small;
  const auto cut_strips = [&](int64_t strip_bytes) {
    return cut_entries(problem, SmallCut::kThreads, SmallCut::kMostEntries, strip_bytes);
  };
  const auto bytes = [&](SmallCut cut, int64_t rows) {
    cut.rows = static_cast<int>(std::min(rows, layout.axis_size));
    return cut.bytes(problem.sum_bytes) + SmallCut::kOwnBytes;
  };
  SmallCut cut = cut_strips(tuned.strip_bytes);
  cut.fits = cut.fits && bytes(cut, kLeastRows) <= device.shared_bytes;
  if (!cut.fits) return cut;
  const int64_t of_strip = layout.slabs() * ceil_div(layout.axis_size, SmallCut::kMostRows);
  for (int64_t strip_bytes = 2 * tuned.strip_bytes;
       strip_bytes <= tuned.most_strip_bytes &&
       of_strip * cut.strips > tuned.many_blocks * device.multiprocessors;
       strip_bytes *= 2) {
    const SmallCut wider = cut_strips(strip_bytes);
    // Three blocks per multiprocessor, as the kernel's registers allow.
    if (bytes(wider, kLeastRows) > device.shared_bytes / 3) break;
    cut = wider;
  }
  const int64_t of_slab = ceil_div(device.multiprocessors, layout.slabs() * cut.strips);
  int64_t rows = std::min<int64_t>(ceil_div(layout.axis_size, of_slab), SmallCut::kMostRows);
  // Two blocks per multiprocessor, if they have room for so many rows.
  const bool two = bytes(cut, kLeastRows) <= device.shared_bytes / 2;
  while (bytes(cut, rows) > device.shared_bytes / (two ? 2 : 1)) rows = (rows + 1) / 2;
  cut.rows = static_cast<int>(rows);
  cut.row_blocks = ceil_div(layout.axis_size, rows);
  return finish_cut(cut, layout.slabs(), problem.sum_bytes, device);
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
  // Each step doubles the number of correct lowest bits, of which an odd number itself has three.
  chunks.inverse = chunks.factor;
  for (int bits = 3; bits < 32; bits *= 2) chunks.inverse *= 2 - chunks.factor * chunks.inverse;
  return chunks;
}

// The same if most rows of the result have no entry.
inline SmallCut cut_sparse(const SumProblem& problem, const DeviceLimits& device) {
  const SparseTuning& tuned = tuning(device).sparse;
  const RowLayout& layout = problem.layout;
  const int64_t value_bytes = problem.result_bytes;
  const auto cut_for = [&](int threads) {
    const int64_t most_entries = SmallCut::kMostPiece * (threads / 32);
    SmallCut cut = cut_entries(problem, threads, most_entries, tuning(device).small.strip_bytes);
    cut.sparse = true;
    cut.fits &= layout.axis_size <= INT32_MAX;
    if (!cut.fits) return cut;
    const int64_t strip_bytes = layout.axis_size * cut.columns * value_bytes;
    cut.fills = layout.slabs() * strip_bytes * cut.strips < tuned.most_filled;
    const int64_t wanted =
        ceil_div((cut.fills ? 2 : 1) * device.multiprocessors, layout.slabs() * cut.strips);
    const int64_t filling = cut.fills ? ceil_div(strip_bytes, tuned.filled_bytes) : 0;
    const int64_t worth = std::max(ceil_div(layout.entries, tuned.least_share), filling);
    const int64_t shares = std::max(ceil_div(layout.entries, tuned.share), std::min(wanted, worth));
    cut.rows = SmallCut::kMostRows;
    cut.chunks = scatter_chunks(layout.axis_size, layout.inner * value_bytes);
    cut.chunks.share_places = static_cast<uint32_t>(ceil_div(cut.chunks.places(), shares));
    cut.row_blocks = ceil_div(cut.chunks.places(), cut.chunks.share_places);
    return finish_cut(cut, layout.slabs(), problem.sum_bytes, device);
  };
  // Many blocks of few entries each should be smaller.
  const SmallCut large = cut_for(SmallCut::kSparseThreads);
  return large.fits && large.blocks_per_multiprocessor > 1 && layout.entries <= tuned.few_entries
             ? cut_for(SmallCut::kThreads)
             : large;
}

}  // namespace torch_ops
