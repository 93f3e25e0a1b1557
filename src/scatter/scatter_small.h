// How scatter_add cuts a call of few entries a slab, which one kernel sums (scatter_small.cuh), and
// when that pays: from sizes alone. No torch.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/device_limits.h"
#include "common/host_device.h"
#include "common/row_layout.h"

namespace torch_ops {

// A block has some rows of a slab's result, or a strip of their columns, and reads the whole index
// of the slab. Its rows lie side by side, and it writes all of them; or, in a sparse cut, they are
// a share of all, by a hash, and it writes those that entries name. Sums do not depend on any of
// this.
struct SmallCut {
  static constexpr int kThreads = 256;
  static constexpr int kSparseThreads = 512;
  static constexpr int kScanned = 8;     // entries that a thread reads, at most
  static constexpr int kMostRows = 256;  // a block's; of a sparse one, at a time
  static constexpr int kRun = 8;         // entries of a row that a group of lanes sums, at least
  static constexpr int kColumns = 4;     // that a lane has, at most

  bool fits;  // else this is no way for the call, and nothing below means anything
  bool sparse;
  int entries;
  int piece;           // of the index, for a warp: a multiple of 32
  int rows;            // a block's
  int columns;         // of a strip
  int64_t row_blocks;  // of a sparse cut, shares
  int64_t strips;

  TORCH_OPS_HOST_DEVICE int threads() const { return sparse ? kSparseThreads : kThreads; }
  TORCH_OPS_HOST_DEVICE int warps() const { return threads() / 32; }

  // Of a block: each row has one, and one more for each kRun entries.
  TORCH_OPS_HOST_DEVICE int most_runs() const { return entries / kRun + rows; }

  // Of shared memory.
  int64_t bytes(int64_t sum_bytes) const {
    const int64_t partials = int64_t{most_runs()} * columns * sum_bytes;
    const int64_t of_warps = int64_t{warps()} * (rows + piece) * 4;
    return partials + of_warps + rows * (sparse ? 10 : 6) + entries * 2 + most_runs() * 2;
  }
  // Of the index, by all blocks.
  int64_t scanned(int64_t slabs) const { return slabs * row_blocks * strips * entries; }
};

// The part of both cuts that they share: all but the rows. Fits where there is something to do.
inline SmallCut cut_entries(const RowLayout& layout, int64_t value_bytes, bool sparse) {
  constexpr int64_t kStripBytes = 64;
  const auto up = [](int64_t a, int64_t b) { return (a + b - 1) / b; };

  SmallCut cut{};
  cut.sparse = sparse;
  const int64_t slabs = layout.slabs(), rows = layout.axis_size, inner = layout.inner;
  if (slabs == 0 || rows == 0 || inner == 0 || layout.entries == 0) return cut;
  if (layout.entries > SmallCut::kScanned * cut.threads() || slabs > INT32_MAX) return cut;
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

inline bool fits_device(const SmallCut& cut, int64_t sum_bytes, const DeviceLimits& device) {
  constexpr int64_t kMostGrid = 65535;
  return cut.fits && cut.bytes(sum_bytes) <= device.shared_bytes && cut.strips <= kMostGrid &&
         cut.row_blocks <= kMostGrid;
}

inline SmallCut cut_small(const RowLayout& layout, int64_t value_bytes, int64_t sum_bytes,
                          const DeviceLimits& device) {
  const auto up = [](int64_t a, int64_t b) { return (a + b - 1) / b; };
  SmallCut cut = cut_entries(layout, value_bytes, /*sparse=*/false);
  if (!cut.fits) return cut;
  const int64_t of_slab = up(device.multiprocessors, layout.slabs() * cut.strips);
  cut.rows =
      static_cast<int>(std::min<int64_t>(up(layout.axis_size, of_slab), SmallCut::kMostRows));
  while (cut.rows > 1 && cut.bytes(sum_bytes) > device.shared_bytes / 2) {
    cut.rows = (cut.rows + 1) / 2;
  }
  cut.row_blocks = up(layout.axis_size, cut.rows);
  cut.fits = fits_device(cut, sum_bytes, device);
  return cut;
}

// The same where most rows of the result have no entry.
inline SmallCut cut_sparse(const RowLayout& layout, int64_t value_bytes, int64_t sum_bytes,
                           const DeviceLimits& device) {
  // So few entries to a share that their rows hardly ever exceed what a block has room for.
  constexpr int64_t kShare = 128, kLeast = 16;
  const auto up = [](int64_t a, int64_t b) { return (a + b - 1) / b; };
  SmallCut cut = cut_entries(layout, value_bytes, /*sparse=*/true);
  if (!cut.fits) return cut;
  cut.rows = SmallCut::kMostRows;
  const int64_t wanted = up(device.multiprocessors, layout.slabs() * cut.strips);
  cut.row_blocks =
      std::max(up(layout.entries, kShare), std::min(wanted, up(layout.entries, kLeast)));
  cut.fits = fits_device(cut, sum_bytes, device) && layout.axis_size <= INT32_MAX;
  return cut;
}

// Is this the fastest way? Others take a launch more, for zeros, and of 16 bits, whose sums have to
// be rounded, two more; and atomics are slow on rows of a few values. But the more entries there
// are, the longer each block reads, and where all name one row they are the work of a block a strip
// (docs/gather.md).
inline bool is_small_fastest(const RowLayout& layout, int64_t value_bytes, const SmallCut& cut) {
  constexpr int64_t kMostScanned = int64_t{1} << 19;  // entries, by all blocks
  if (!cut.fits) return false;
  const bool rounded = value_bytes < 4, whole = layout.inner % SmallCut::kColumns == 0;
  const int64_t most_entries = rounded ? 1024 : 512;
  const int bits = rounded ? (whole ? 20 : 19) : layout.inner < 16 ? 18 : 17;
  const int64_t most_values = int64_t{1} << bits;  // found by a sweep (docs/gather.md)
  const int64_t slab = std::max(layout.entries, layout.axis_size) * layout.inner;
  return layout.entries <= most_entries && layout.slabs() * slab <= most_values &&
         cut.scanned(layout.slabs()) <= kMostScanned;
}

// The same of a sparse cut, which takes a launch for zeros first. It pays where sums would have to
// be rounded in all rows of a large result; and more the fewer rows have any (docs/gather.md).
inline bool is_sparse_fastest(const RowLayout& layout, int64_t value_bytes, const SmallCut& cut) {
  constexpr int64_t kLeastValues = 150'000, kMostBlocks = 512;
  if (!cut.fits || value_bytes != 2 || 4 * layout.entries > layout.axis_size) return false;
  const int64_t slabs = layout.slabs();
  const int64_t most_scanned = int64_t{1} << (16 * layout.entries <= layout.axis_size ? 20 : 17);
  return slabs * layout.axis_size * layout.inner >= kLeastValues &&
         slabs * cut.row_blocks * cut.strips <= kMostBlocks && cut.scanned(slabs) <= most_scanned;
}

// Is it the fastest of those with the same bits on every run? By the sizes of one slab alone, so
// that its bits do not depend on what else is in the call.
inline bool pays_to_sum_small(const RowLayout& layout, const SmallCut& cut) {
  return cut.fits && layout.axis_size <= 64 * SmallCut::kMostRows;
}

}  // namespace torch_ops
