// In which words a gather moves its rows, and which kernel runs: decided from sizes, strides
// and alignment alone. No torch.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

#include "common/cuda/device_limits.h"
#include "common/host/ceil_div.h"
#include "common/layout/row_layout.h"
#include "gather/cuda/gather_staging.h"

namespace torch_ops {

enum class GatherPath {
  kFlat,      // a lane copies a word of a row: coalesced however long the rows are
  kRows,      // the same for tensors with gaps, and those whose places exceed 32 bits
  kShort,     // rows of a few words below 16 bytes: a warp finds 32 rows, a lane each
  kStreamed,  // longer rows of such words, and any with gaps: they pass through shared memory
  kElements,  // elements of 2 to 8 bytes of a table that does not fit the L2 cache
  kStaged,    // elements of a small table: all or most of it is kept in shared memory
};

constexpr int64_t kMaxRowWords = int64_t{1} << 30;  // that a grid walks at once

// From one slab's table to the next.
inline int64_t slab_stride(const RowLayout& layout) {
  if (layout.slabs() == 1) return 0;
  return layout.outer > 1 ? layout.table_outer_stride : layout.table_batch_stride;
}

// Has a call no gaps except between the rows of its table, and do its places in a slab fit 32 bits?
inline bool is_flat(const RowLayout& layout) {
  constexpr int64_t kMost = INT32_MAX;
  const bool even = layout.batch == 1 || layout.outer == 1 ||
                    layout.table_batch_stride == layout.outer * layout.table_outer_stride;
  const bool adjacent = (layout.inner == 1 || layout.table_inner_stride == 1) &&
                        (layout.entries == 1 || layout.index_entry_stride == 1) &&
                        (layout.batch == 1 || layout.index_batch_stride == layout.entries);
  return even && adjacent && layout.entries * layout.inner <= kMost && layout.axis_size <= kMost &&
         layout.table_axis_stride <= kMost && layout.outer <= kMost && slab_stride(layout) <= kMost;
}

// Are elements picked window by window (gather_elements.cuh)? If the tables in use at a time
// exceed the L2 cache, a slab has enough entries for a block, and 32 bits can hold its
// places.
inline bool pays_to_window(const RowLayout& layout, int64_t word_bytes,
                           const DeviceLimits& device) {
  constexpr int64_t kBlock = 4096;  // entries, of which a multiprocessor has two
  const int64_t slabs_at_once =
      std::min(layout.slabs(), 2 * kBlock * device.multiprocessors / layout.entries + 1);
  return word_bytes > 1 && is_flat(layout) && layout.entries >= kBlock &&
         (layout.axis_size - 1) * layout.table_axis_stride < INT32_MAX &&
         slabs_at_once * layout.axis_size * word_bytes > device.l2_bytes;
}

// Are rows of words below 16 bytes so short that a warp finds 32 of them, and copies their words
// from where they are (gather_short.cuh)? Longer ones keep the memory busier through shared
// memory (gather_streamed.cuh). But the steps of that path wait for each other, which is most of a
// small call; and if the L2 cache has the rows, since the table fits or they were read before, the
// loads of this path are faster up to longer rows (docs/internals/log.md).
inline bool are_rows_short(const RowLayout& layout, int64_t word_bytes,
                           const DeviceLimits& device) {
  constexpr int64_t kMost = 256, kSmallCall = int64_t{1} << 19;  // words
  const int64_t least = word_bytes == 8 ? 2 : 3;
  if (layout.inner < least || word_bytes >= 16 || !is_flat(layout)) return false;
  if (layout.slabs() * layout.entries * layout.inner <= kSmallCall) return layout.inner <= kMost;
  const bool cached =
      layout.slabs() * layout.axis_size * layout.inner * word_bytes <= device.l2_bytes ||
      layout.entries >= 4 * layout.axis_size;
  switch (word_bytes) {
    case 1:
      return layout.inner <= 24;
    case 2:
      return layout.inner <= (cached ? 128 : 64);
    case 4:
      return layout.inner <= (cached ? 128 : 48);
    default:
      return layout.inner <= (cached ? 48 : 12);
  }
}

// A call in the widest words that move its rows.
struct WordLayout {
  RowLayout layout;
  int64_t word_bytes;
};

// A word must divide the row, every stride and all pointers: `addresses` is their `or`. Rows
// whose elements are not adjacent move element by element.
inline WordLayout lay_out_words(RowLayout layout, int64_t element_bytes, uintptr_t addresses) {
  int64_t bytes = element_bytes;
  if (layout.inner <= 1 || layout.table_inner_stride == 1) {
    const int64_t sizes = layout.inner | layout.table_batch_stride | layout.table_outer_stride |
                          layout.table_axis_stride;
    bytes = widest_word(static_cast<uint64_t>(sizes * element_bytes) | addresses);
  }
  if (bytes != element_bytes) {
    for (int64_t* stride : {&layout.inner, &layout.table_batch_stride, &layout.table_outer_stride,
                            &layout.table_axis_stride}) {
      *stride = *stride * element_bytes / bytes;
    }
    layout.table_inner_stride = 1;
  }
  if (layout.index_batch_stride == 0 && layout.outer == 1) {
    // An index that is expanded over the batch is one for all slices of a table.
    std::swap(layout.batch, layout.outer);
    layout.table_outer_stride = layout.table_batch_stride;
  }
  return {layout, bytes};
}

// `layout` counts words of `word_bytes`, the widest in which the rows can be moved.
inline GatherPath choose_gather_path(const RowLayout& layout, int64_t word_bytes,
                                     const DeviceLimits& device) {
  if (layout.inner == 1 && word_bytes <= 8) {
    if (cut_staging(layout, word_bytes, device).pays) return GatherPath::kStaged;
    if (pays_to_window(layout, word_bytes, device)) return GatherPath::kElements;
  }
  // Only kRows cuts very long rows into parts.
  if (layout.inner > kMaxRowWords) return GatherPath::kRows;
  if (are_rows_short(layout, word_bytes, device)) return GatherPath::kShort;
  const bool adjacent = layout.table_inner_stride == 1;
  if (word_bytes < 16 && adjacent && layout.inner * word_bytes >= 16) return GatherPath::kStreamed;
  return is_flat(layout) ? GatherPath::kFlat : GatherPath::kRows;
}

}  // namespace torch_ops
