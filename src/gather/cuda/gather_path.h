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
  kShort,     // rows of some words below 8 bytes: a warp finds 32 rows, a lane each
  kGranules,  // longer rows of words of 1 or 2 bytes: they pass through shared memory
  kElements,  // elements of 2 to 8 bytes of a table that does not fit the L2 cache
  kStaged,    // elements of a small table, which is kept in shared memory
};

constexpr int64_t kMostShortWords = 8192;  // of a row by kShort
constexpr int64_t kMostGranuleWords = int64_t{1} << 30;

// From one slab's table to the next.
inline int64_t slab_stride(const RowLayout& layout) {
  if (layout.slabs() == 1) return 0;
  return layout.outer > 1 ? layout.table_outer_stride : layout.table_batch_stride;
}

// Has a call no gaps except between the rows of its table, and do its sizes and strides fit 32
// bits?
inline bool is_flat(const RowLayout& layout) {
  constexpr int64_t kMost = INT32_MAX;
  const bool even = layout.batch == 1 || layout.outer == 1 ||
                    layout.table_batch_stride == layout.outer * layout.table_outer_stride;
  const bool adjacent = (layout.inner == 1 || layout.table_inner_stride == 1) &&
                        (layout.entries == 1 || layout.index_entry_stride == 1) &&
                        (layout.batch == 1 || layout.index_batch_stride == layout.entries);
  return even && adjacent && layout.axis_size <= kMost && layout.table_axis_stride <= kMost &&
         layout.outer <= kMost && slab_stride(layout) <= kMost;
}

// Are elements picked window by window (gather_elements.cuh)? If the tables in use at a time
// exceed the L2 cache, a slab has enough entries for a block, and 32 bits can hold its places.
// Fewer picks would lose more by waiting for each window than they gain, and of more picks many
// share lines of the caches.
inline bool pays_to_window(const RowLayout& layout, int64_t word_bytes,
                           const DeviceLimits& device) {
  constexpr int64_t kBlock = 4096;  // entries, of which a multiprocessor has two
  constexpr int64_t kLeastPicks = 1 << 10, kMostPicks = 1 << 14;  // per multiprocessor
  const int64_t picks = layout.slabs() * layout.entries / device.multiprocessors;
  const int64_t slabs_at_once =
      std::min(layout.slabs(), 2 * kBlock * device.multiprocessors / layout.entries + 1);
  return word_bytes > 1 && is_flat(layout) && layout.entries >= kBlock && picks >= kLeastPicks &&
         picks < kMostPicks && (layout.axis_size - 1) * layout.table_axis_stride < INT32_MAX &&
         slabs_at_once * layout.axis_size * word_bytes > device.l2_bytes;
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

// Rows of several words below 8 bytes. A small call takes little more than a launch and two loads,
// one after the other, to which kFlat adds the least. In larger calls most of the time goes into
// finding words, which kShort does once per row; but a warp has 32 rows, which is too much work for
// it if they are very long. The limits are those with the best choice for 28,000 calls on an H200
// (docs/internals/log.md).
inline GatherPath choose_for_rows(const RowLayout& layout, int64_t word_bytes,
                                  const DeviceLimits& device) {
  constexpr int64_t kLeast = 6, kSmallCall = 1 << 11, kLargeCall = 1 << 14;  // per multiprocessor
  const int64_t words = layout.slabs() * layout.entries * layout.inner / device.multiprocessors;
  if (layout.inner < kLeast || words < kSmallCall) return GatherPath::kFlat;
  const int64_t least_granules = word_bytes == 1 ? 17 : 301;
  if (word_bytes < 4 && words >= kLargeCall && layout.inner >= least_granules &&
      layout.inner <= kMostGranuleWords) {
    return GatherPath::kGranules;
  }
  return layout.inner <= kMostShortWords ? GatherPath::kShort : GatherPath::kFlat;
}

// `layout` counts words of `word_bytes`, the widest in which the rows can be moved.
inline GatherPath choose_gather_path(const RowLayout& layout, int64_t word_bytes,
                                     const DeviceLimits& device) {
  if (layout.inner == 1 && word_bytes <= 8) {
    if (cut_staging(layout, word_bytes, device).pays) return GatherPath::kStaged;
    if (pays_to_window(layout, word_bytes, device)) return GatherPath::kElements;
  }
  const bool adjacent = layout.table_inner_stride == 1;
  if (word_bytes < 8 && adjacent) return choose_for_rows(layout, word_bytes, device);
  return GatherPath::kFlat;
}

}  // namespace torch_ops
