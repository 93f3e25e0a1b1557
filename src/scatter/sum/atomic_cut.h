// How scatter_add cuts a call that adds by atomics (cuda/atomic/): from sizes alone. No torch.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>

#include "common/cuda/device_limits.h"
#include "common/host/ceil_div.h"
#include "scatter/sum/problem.h"
#include "scatter/sum/run_shape.h"
#include "scatter/sum/tuning.h"

namespace torch_ops {

constexpr int kTileVector = 4;  // floats that one instruction adds

// The largest divisor of `count` that is at most `most`, and at least 1; up to `limit`.
inline int64_t largest_divisor(int64_t count, int64_t most, int64_t limit) {
  int64_t divisor = std::clamp<int64_t>(most, 1, std::min(count, limit));
  while (count % divisor != 0) --divisor;
  return divisor;
}

// So many of `count` equal parts of a table are added to at a time.
inline int64_t parts_together(int64_t count, int64_t part_bytes, const DeviceLimits& device) {
  const AtomicTuning& tuned = tuning(device).atomic;
  return largest_divisor(count, device.l2_bytes / tuned.side_by_side / part_bytes,
                         tuned.most_together);
}

// The slowest axis of a call, along which it can be cut: its batches or, if there is one, the
// slices of that.
inline int64_t& slowest(RowLayout& layout) {
  return layout.batch > 1 ? layout.batch : layout.outer;
}

// Sums that are rounded at the end are added up in a table. One that exceeds the L2 cache is
// written to memory and read again, twice; so the table is for so many of the slowest axis at a
// time that the cache keeps it.
inline int64_t summed_at_once(const SumProblem& problem, const DeviceLimits& device) {
  const int64_t cached = device.l2_bytes / 2;
  RowLayout layout = problem.layout;
  const int64_t all = slowest(layout);
  if (problem.table_bytes() <= cached) return all;
  const int64_t values = problem.result_values() / all;
  // Vectors of 16 bytes are rounded: each part of the result begins with one.
  const int64_t vector = 16 / problem.result_bytes, step = vector / std::gcd(vector, values);
  const int64_t most = cached / (values * problem.sum_bytes);
  const int64_t at_once = round_up(ceil_div(all, ceil_div(all, std::max<int64_t>(most, 1))), step);
  return at_once <= most ? at_once : all;
}

// Of the table, for so many.
inline int64_t table_bytes(SumProblem problem, int64_t at_once) {
  slowest(problem.layout) = at_once;
  return problem.table_bytes();
}

// Elements that a block sums in shared memory: a part of a slab's entries.
struct StagedCut {
  int64_t bytes;  // of the table
  int threads;
  int64_t part;  // entries, a multiple of four
};

inline StagedCut cut_staged(const SumProblem& problem, const DeviceLimits& device) {
  const AtomicTuning& tuned = tuning(device).atomic;
  const RowLayout& layout = problem.layout;
  StagedCut cut{};
  cut.bytes = layout.axis_size * problem.sum_bytes;
  // The larger the table, the fewer blocks share a multiprocessor.
  cut.threads = cut.bytes > tuned.many_threads_bytes   ? 1024
                : cut.bytes > tuned.some_threads_bytes ? 512
                                                       : 256;
  // Parts of a slab if slabs alone do not fill the GPU, none so small that adding up the table
  // becomes a large part of its work.
  const int64_t wanted = tuned.staged_blocks * device.multiprocessors;
  const int64_t most = layout.entries / (tuned.entries_per_sum * layout.axis_size);
  const int64_t parts =
      std::clamp<int64_t>(ceil_div(wanted, layout.slabs()), 1, std::max<int64_t>(most, 1));
  cut.part = round_up(ceil_div(layout.entries, parts), 4);
  return cut;
}

// Rows of whole vectors, in tiles of entries.
struct TilesCut {
  static constexpr int kMostEntries = 1024;  // of a tile
  static constexpr int kLeastLanes = kRunThreads * kSpan / kMostEntries;

  RowPieces split;
  bool short_spans;  // few entries are divided into more and shorter ones: the time of a small call
                     // is that of the loads of a span, which wait for each other

  int span() const { return short_spans ? kWindow : kSpan; }
  int64_t tile_entries() const { return int64_t{split.groups(kRunThreads)} * span(); }
};

inline TilesCut cut_tiles(const RowLayout& layout, const DeviceLimits& device) {
  TilesCut cut{RowPieces(layout.inner, kTileVector, /*most_lanes=*/32, TilesCut::kLeastLanes),
               false};
  const int64_t blocks =
      layout.slabs() * cut.split.pieces * ceil_div(layout.entries, cut.tile_entries());
  cut.short_spans = blocks < device.multiprocessors;
  return cut;
}

// Other rows, in tiles of several entries, or of a piece of the columns of one.
struct StreamedCut {
  static constexpr int kScanned = 3;                    // entries that a thread reads
  static constexpr int kBytes = 1 << 14;                // of a tile's values, at most
  static constexpr int64_t kMostValues = 8192;          // the same, however small they are
  static constexpr int kMost = kScanned * kRunThreads;  // entries
  static constexpr int kLeast = 32;  // entries, if there are too few for all multiprocessors

  int entries;
  int pieces;   // of a row
  int columns;  // of a piece
};

inline StreamedCut cut_streamed(const SumProblem& problem, const DeviceLimits& device) {
  const RowLayout& layout = problem.layout;
  const int64_t values =
      std::min(StreamedCut::kBytes / problem.value_bytes, StreamedCut::kMostValues);
  const int64_t blocks = tuning(device).atomic.streamed_blocks * device.multiprocessors;
  StreamedCut cut{};
  cut.pieces = static_cast<int>(ceil_div(layout.inner, values));
  cut.columns = static_cast<int>(ceil_div(layout.inner, cut.pieces));
  cut.entries = std::min(static_cast<int>(values) / cut.columns, StreamedCut::kMost);
  while (cut.entries > StreamedCut::kLeast && problem.entries() / cut.entries < blocks) {
    cut.entries /= 2;
  }
  return cut;
}

}  // namespace torch_ops
