// How gather and scatter_add see their tensors, whatever their ranks: a table of rows on one side,
// an index into it, and the rows that it picks on the other. No torch.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/host_device.h"

namespace torch_ops {

//   table [batch, outer, axis_size, inner]   gather's source, scatter_add's result; any strides
//   index [batch, entries]                   any strides
//   rows  [batch, outer, entries, inner]     gather's output, scatter_add's values; contiguous
//
// rows[b, o, n, d] belongs to table[b, o, index[b, n], d]. A slab is one (b, o). Strides count
// elements.
struct RowLayout {
  int64_t batch;
  int64_t outer;
  int64_t entries;
  int64_t inner;
  int64_t axis_size;

  int64_t table_batch_stride;
  int64_t table_outer_stride;
  int64_t table_axis_stride;
  int64_t table_inner_stride;
  int64_t index_batch_stride;
  int64_t index_entry_stride;

  int64_t slabs() const { return batch * outer; }
};

// Is this entry of an index a row of the axis? One comparison serves both ends.
template <class Index>
TORCH_OPS_HOST_DEVICE bool in_range(Index entry, int64_t axis_size) {
  return static_cast<uint64_t>(static_cast<int64_t>(entry)) < static_cast<uint64_t>(axis_size);
}

constexpr int64_t kNoBadEntry = INT64_MAX;

// The first of the index's entries in [begin, end), counted over [batch, entries], that is not a
// row of the axis; kNoBadEntry where there is none.
template <class Index>
int64_t first_bad_entry(const Index* index, const RowLayout& layout, int64_t begin, int64_t end) {
  if (begin >= end) return kNoBadEntry;
  // Batch by batch: a division an entry would cost more than the rest.
  int64_t b = begin / layout.entries;
  int64_t n = begin % layout.entries;
  for (int64_t position = begin; position < end; ++b, n = 0) {
    const Index* batch = index + b * layout.index_batch_stride;
    const int64_t batch_end = std::min(layout.entries, n + (end - position));
    for (; n < batch_end; ++n, ++position) {
      if (!in_range(batch[n * layout.index_entry_stride], layout.axis_size)) return position;
    }
  }
  return kNoBadEntry;
}

}  // namespace torch_ops
