// Every number that decides which way a sum takes on CUDA and how its work is cut: fitted numbers,
// of which a slightly other one would be right too. What follows from a kernel's shape stands next
// to the kernel, and the bound on scratch memory, a promise to users, in problem.h. No torch.
//
// All were found on an NVIDIA H200 by the sweeps that docs/log.md describes. A GPU of another kind
// gets a set of its own in tuning(), at the end.
#pragma once

#include <cstdint>

#include "common/cuda/device_limits.h"

namespace torch_ops {

// docs/log.md, "Sums in fixed point".
struct FixedPointTuning {
  int64_t entries_per_row = 4;       // a sort is less work below one entry for so many rows
  int64_t most_table_values = 4096;  // of a table of whole slabs: 48 KiB
  int64_t filling_blocks = 512;      // small slabs share a table where so many blocks are left
  int64_t part_values = 49152;       // of a part of a bin: a block's work
  int64_t join_blocks = 1024;        // that join the sums of parts
  // By default too:
  int64_t most_slab_values = 2048;   // for slabs of so many values and sums: one launch,
  int64_t most_slab_halves = 4096;   // or so many of 16 bits,
  int64_t most_at_once = 1 << 18;    // in calls of so many where rows have several values;
  int64_t least_kept = 1 << 21;      // for so many kept elements, and four times their sums;
  int64_t most_crowded_rows = 1024;  // for so few rows of several values
  int64_t least_crowd = 1 << 20;     // that so many entries go to
};

// docs/log.md, "Small and sparse sums".
struct SmallTuning {
  int64_t strip_bytes = 64;             // of a row, that a block sums where many share its entries
  int64_t most_blocks = 3;              // per multiprocessor: all run at once
  int64_t most_entries = 1024;          // of a slab, which each of its blocks reads
  int64_t most_entries_rounded = 2048;  // where other ways have to round sums: one kernel more
  int64_t most_values = 1 << 13;        // of a strip: one block's work if one row takes all
  int64_t most_values_rounded = 1 << 14;
  int64_t most_rows_repeatable = 16384;  // a sort is faster from there on, for the same bits
};

// docs/log.md, "Small and sparse sums".
struct SparseTuning {
  int64_t rows_per_entry = 4;      // rounding all rows is most of the work from there on
  int64_t least_values = 150'000;  // of the result: below, its table of floats is small
  int64_t share = 128;             // entries, for whose rows a block has room
  int64_t least_share = 16;        // entries that are worth a block
  int64_t filled_bytes = 1 << 15;  // of zeros that are worth a block
  int64_t most_filled =
      1 << 22;                 // bytes of zeros that blocks write; a kernel before them does more
  int64_t few_entries = 1024;  // of a slab: blocks are smaller where there are several waves
  int64_t most_blocks = 3;     // per multiprocessor; one more for each 2^22 values
  int64_t most_small_blocks = 8;         // the same of blocks of half the threads
  int64_t most_entries = 16384;          // of a slab, which each of its blocks reads;
  int64_t most_entries_filled = 2048;    // where they write the zeros too
  int64_t most_values_filled = 1 << 14;  // of a strip: one block's work if one row takes all
  int64_t least_most_values = 1 << 15;   // the same where they do not: a 64th of the result's
  int64_t most_most_values = 1 << 18;    // values between these
  int64_t least_odd_values = 1 << 19;    // of a result of odd widths: faster than small from there
};

// docs/log.md, "Sums by sorting".
struct SortedTuning {
  int64_t least_row_bytes = 256;        // as floats: shorter rows do not pay for keys and sort
  int64_t least_values = 1 << 25;       // nor do fewer values,
  int64_t least_best_values = 1 << 24;  // or these, where the largest ones are wanted,
  int64_t least_best_row = 32;          // in rows of so many
  int64_t most_crowded_rows = 256;      // atomics wait for each other at so few rows
  int64_t least_crowd = 1 << 18;        // that so many entries go to
};

// docs/log.md, "Sums by atomics".
struct AtomicTuning {
  // Parts of a table that atomics go to at a time may be this part of the L2 cache together, and
  // should be as many as divide them all: 8 and 16 of 64 slices of 1 MiB took 779 and 850 us on a
  // cache of 60 MiB, and 7 took 799.
  int64_t side_by_side = 7;
  int64_t most_together = 64;  // slabs
  // staged
  int64_t least_staged_entries = 1024;      // of a slab: what a block sums at a time
  int64_t entries_per_sum = 4;              // fewer do not pay for adding up a block's table
  int64_t least_staged_blocks = 96;         // fewer leave most of the GPU idle
  int64_t filling_slabs = 256;              // that fill the GPU with one block each:
  int64_t least_filling_rows = 1024;        // then an entry per sum is enough, in slabs of so many
  int64_t least_filling_entries = 1 << 20;  // rows, and so many entries in all
  int64_t staged_blocks = 2;                // per multiprocessor, of slabs in parts
  int64_t many_threads_bytes = 100 << 10;   // of a table: one block per multiprocessor, of 1024
  int64_t some_threads_bytes = 24 << 10;    // two or more, of 512 threads; else of 256
  // tiles and streamed
  int64_t tiled_row = 16;                  // values; shorter rows
  int64_t most_short_tiled = 1 << 22;      // of 8 and 12 only in calls below so many values
  int64_t streamed_row = 8;                // values; shorter rows
  int64_t least_short_streamed = 1 << 20;  // only in calls of so many values
  int64_t streamed_blocks = 4;             // per multiprocessor, before tiles become smaller
};

// docs/log.md, "An index entry for each element".
struct ElementsTuning {
  int64_t strip = 64;             // columns of a block: 256 bytes of float32 at a time
  int64_t few_side_by_side = 32;  // columns: lanes of a warp share an axis where there are fewer,
  int64_t few_rows = 1024;        // and are likely to meet on an axis of so many rows
  int64_t many_lanes = 1 << 20;   // so many lanes have six elements each, and two in smaller calls
};

struct SumTuning {
  FixedPointTuning fixed_point;
  SmallTuning small;
  SparseTuning sparse;
  SortedTuning sorted;
  AtomicTuning atomic;
  ElementsTuning elements;
};

// The set for a GPU. So far all have that of an H200.
inline const SumTuning& tuning(const DeviceLimits& /*device*/) {
  static constexpr SumTuning kH200{};
  return kH200;
}

}  // namespace torch_ops
