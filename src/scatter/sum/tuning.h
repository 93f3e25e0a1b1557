// Every fitted number that decides which way a sum takes on CUDA and how its work is cut. Numbers
// that depend on a kernel's shape are next to the kernel; the bound on scratch memory, a promise
// to users, is in problem.h. No torch.
//
// All were fitted on an NVIDIA H200, by the sweeps that docs/internals/log.md describes. A GPU of
// another kind gets its own set in tuning(), at the end.
#pragma once

#include <cstdint>

#include "common/cuda/device_limits.h"

namespace torch_ops {

// Fixed point. Figures: docs/internals/log.md, "Sums in fixed point".
struct FixedPointTuning {
  // With fewer entries than one per so many rows, sorting is less work than writing whole tables.
  int64_t entries_per_row = 4;
  // Slabs of up to so many sums have one table (48 KiB), larger ones a table for each bin.
  int64_t most_table_values = 4096;
  // Small slabs share a table as far as so many blocks are left, which fill the GPU.
  int64_t filling_blocks = 512;
  // A bin of more values is cut into parts, the work of one block each.
  int64_t part_values = 49152;
  // At most so many blocks join the sums of parts.
  int64_t join_blocks = 1024;
  // Chosen by default for slabs of up to so many values and sums, as it is a single launch...
  int64_t most_slab_values = 2048;
  // ... or so many of 16 bits...
  int64_t most_slab_halves = 4096;
  // ... and, if rows have several values, up to so many in all slabs together.
  int64_t most_at_once = 1 << 18;
  // Chosen by default for elements that blocks keep, if entries and four times the sums reach this.
  int64_t least_kept = 1 << 21;
  // Chosen by default for rows of several values, if slabs of at most so many rows...
  int64_t most_crowded_rows = 1024;
  // ... take at least so many entries together, ...
  int64_t least_crowd = 1 << 18;
  // ... and each so many for each of its rows.
  int64_t crowd_per_row = 1024;
};

// Small. Figures: docs/internals/log.md, "Small and sparse sums".
struct SmallTuning {
  // A block sums a strip of so many bytes of each row: a row that all entries name is shared...
  int64_t strip_bytes = 64;
  // ... and up to so many if there would be more than so many blocks per multiprocessor, each of
  // which reads its slab's index.
  int64_t most_strip_bytes = 256;
  int64_t many_blocks = 4;
  // Chosen up to so many blocks per multiprocessor, which all run at once...
  int64_t most_blocks = 3;
  // ... up to so many entries per slab, which each of its blocks reads...
  int64_t most_entries = 1024;
  // ... or so many of 8 and 16 bits, which other ways have to round...
  int64_t most_entries_rounded = 2048;
  // ... and up to so many values per strip, the work of one block if all entries name one row.
  int64_t most_values = 1 << 13;
  // The same for 8 and 16 bits.
  int64_t most_values_rounded = 1 << 14;
  // With the same bits on every run, small or sparse: up to so many entries per slab...
  int64_t most_entries_repeatable = 2048;
  // ... or if the blocks of a slab would read so many in all.
  int64_t most_read = 1 << 20;
};

// Sparse. Figures: docs/internals/log.md, "Small and sparse sums".
struct SparseTuning {
  // Chosen from so many rows per entry on, where rounding all rows is most of the work...
  int64_t rows_per_entry = 4;
  // ... and from so many values of the result on; the table of floats of a smaller one is cheap.
  int64_t least_values = 150'000;
  // A block has a share of the rows in which so many entries are expected.
  int64_t share = 128;
  // A share with fewer entries than this is not worth a block...
  int64_t least_share = 16;
  // ... unless it has so many bytes of zeros to write.
  int64_t filled_bytes = 1 << 15;
  // Blocks write the zeros of results up to so many bytes; a previous kernel does for larger
  // ones.
  int64_t most_filled = 1 << 22;
  // Slabs of up to so many entries have blocks of half the threads, if several run in turn.
  int64_t few_entries = 1024;
  // Chosen up to so many blocks per multiprocessor, and one more for each 2^22 values...
  int64_t most_blocks = 3;
  // ... or, of blocks of half the threads, so many.
  int64_t most_small_blocks = 8;
  // Chosen up to so many entries per slab, which each of its blocks reads...
  int64_t most_entries = 16384;
  // ... or so many if the blocks write the zeros too.
  int64_t most_entries_filled = 2048;
  // If they do: chosen up to so many values per strip.
  int64_t most_values_filled = 1 << 14;
  // If they do not: up to a 64th of the result's values per strip, but at least this...
  int64_t least_most_values = 1 << 15;
  // ... and at most this: up to 2^18, some shapes gain and others lose (docs/internals/log.md).
  int64_t most_most_values = 1 << 17;
  // Of odd widths, faster than small for results of so many values or more.
  int64_t least_odd_values = 1 << 19;
  // With the same bits on every run: in place of small if there are more rows per entry...
  int64_t rows_per_entry_repeatable = 2;
  // ... and small would have more blocks per multiprocessor.
  int64_t most_blocks_of_small = 2;
};

// Few. Figures: docs/internals/log.md, "Sums by atomics".
struct FewTuning {
  // Chosen from so many rows per entry on: a table for only the rows with entries is smaller...
  int64_t rows_per_entry = 4;
  // ... and so many values of the result, which pay for finding the entries of a row...
  int64_t values_per_entry = 32;
  // ... and for results of so many values or more; below, a table of floats for all rows is small.
  int64_t least_result_values = 1 << 23;
};

// Sorted. Figures: docs/internals/log.md, "Sums by sorting".
struct SortedTuning {
  // Chosen for rows of so many bytes, counted as floats; shorter ones do not pay for the sort...
  int64_t least_row_bytes = 256;
  // ... and so many values.
  int64_t least_values = 1 << 25;
  // In rows that are no whole vectors of 16 bytes: only if there are more rows per entry.
  int64_t rows_per_odd_entry = 2;
  // For the largest or smallest values: chosen from so many values on...
  int64_t least_best_values = 1 << 24;
  // ... in rows of so many; without their positions, if rows have so many entries on average.
  int64_t least_best_row = 32;
  int64_t least_best_entries = 4;
  // Chosen if at most so many sums, at which atomics wait for each other, ...
  int64_t most_crowded_sums = 4096;
  // ... have so many entries per row, ...
  int64_t crowd_per_row = 4096;
  // ... and each slab so many times as many as there are slabs, since these are sorted together.
  int64_t least_crowd = 1 << 19;
};

// Privatized. Figures: docs/internals/log.md, "Sums to few rows".
struct PrivatizedTuning {
  // A block has so many threads or more, which limits rows: each thread has a sum of each.
  int64_t least_threads = 128;
  // A thread has so many entries or more, which pay for the sums that it sets up and joins.
  int64_t thread_entries = 8;
  // A part has so many times as many entries as rows, whose sums are written and read again.
  int64_t entries_per_partial = 8;
  // Chosen for as many rows per slab as fit; but if rows have so many values or more, ...
  int64_t wide_row = 8;
  // ... for at most so many, ...
  int64_t most_wide_rows = 128;
  // ... and for at most so many if sums in fixed point are possible; ...
  int64_t most_rows_fixed = 32;
  // ... for slabs of so many values...
  int64_t least_slab_values = 1 << 13;
  // ... and so many per row, which are the work that the block's own sums pay for.
  int64_t values_per_row = 1024;
  // By default, only if all slabs have so many values, ...
  int64_t least_values = 1 << 17;
  // ... and so many entries for each row of one slab, which fill the GPU.
  int64_t entries_per_row = 2048;
  // With the same bits on every run: chosen if a slab has more entries than this...
  int64_t most_entries_of_small = 4096;
  // ... and so many per row...
  int64_t entries_per_row_repeatable = 32;
  // ... and the square of the rows times the values of one is at most this.
  int64_t most_squares = 1 << 19;
};

// The largest or smallest values. Figures: docs/internals/log.md, "Largest and smallest values
// without positions".
struct BestTuning {
  // Privatized for at most so many rows, if they have PrivatizedTuning::wide_row values or more.
  int64_t most_wide_rows = 64;
  // Sorted if at most so many rows, at which atomics wait for each other...
  int64_t most_crowded_rows = 256;
  // ... take at least so many entries.
  int64_t least_crowd = 1 << 18;
  // Of less than 32 bits: only rows with entries are compared if there are so many rows per entry.
  int64_t rows_per_entry = 16;
};

// By atomics. Figures: docs/internals/log.md, "Sums by atomics".
struct AtomicTuning {
  // The parts of a table that atomics go to at a time may be this part of the L2 cache together. 8
  // and 16 of 64 slices of 1 MiB took 779 and 850 us on a cache of 60 MiB, and 7 took 799.
  int64_t side_by_side = 7;
  // They are at most so many parts.
  int64_t most_together = 64;
  // Staged: chosen from so many entries per slab on, what a block sums at a time...
  int64_t least_staged_entries = 1024;
  // ... with so many entries per sum, which pay for adding up a block's table...
  int64_t entries_per_sum = 4;
  // ... for so many blocks; fewer leave most of the GPU idle.
  int64_t least_staged_blocks = 96;
  // Or with one entry per sum, in so many slabs, which fill the GPU with a block each...
  int64_t filling_slabs = 256;
  // ... of so many rows...
  int64_t least_filling_rows = 1024;
  // ... with so many entries in all.
  int64_t least_filling_entries = 1 << 20;
  // Staged: so many blocks per multiprocessor are wanted; slabs are cut into parts for them.
  int64_t staged_blocks = 2;
  // Staged: a table of more bytes leaves room for one block per multiprocessor, of 1024 threads...
  int64_t many_threads_bytes = 100 << 10;
  // ... of more than these, for blocks of 512; smaller ones have blocks of 256.
  int64_t some_threads_bytes = 24 << 10;
  // Tiles: chosen for rows of so many values...
  int64_t tiled_row = 16;
  // ... and for those of 8 and 12 in calls of fewer values than this.
  int64_t most_short_tiled = 1 << 22;
  // Streamed: chosen for rows of so many values...
  int64_t streamed_row = 8;
  // ... and for shorter ones in calls of so many values.
  int64_t least_short_streamed = 600000;
  // Values: also chosen for wide rows of 32 and 64 bits, with an entry or less each, below this.
  int64_t most_spread_values = 1 << 17;
  // Streamed: tiles become smaller until there are so many blocks per multiprocessor.
  int64_t streamed_blocks = 4;
};

// An entry for each element. Figures: docs/internals/log.md, "An index entry for each element".
struct ElementsTuning {
  // A block has so many adjacent columns: 256 bytes of float32 at a time.
  int64_t strip = 64;
  // Lanes look for others that go to the same place if fewer columns than this are adjacent...
  int64_t few_side_by_side = 32;
  // ... and the axis has at most so many rows: then they are likely to meet.
  int64_t few_rows = 1024;
  // Calls that have work for so many lanes give each six elements, smaller ones two.
  int64_t many_lanes = 1 << 20;
  // 16-bit floats are added by their places if the result has so many values per entry.
  int64_t values_per_place = 64;
};

struct SumTuning {
  FixedPointTuning fixed_point;
  SmallTuning small;
  SparseTuning sparse;
  FewTuning few;
  PrivatizedTuning privatized;
  SortedTuning sorted;
  BestTuning best;
  AtomicTuning atomic;
  ElementsTuning elements;
};

// The set for a GPU, by its compute_capability. So far all GPUs have that of an H200.
inline const SumTuning& tuning(const DeviceLimits& /*device*/) {
  static constexpr SumTuning kH200{};
  return kH200;
}

}  // namespace torch_ops
