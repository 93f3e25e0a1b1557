// How gather and scatter_add see their tensors, whatever their ranks: a table of rows on one side,
// an index into it, and the rows that it picks on the other. No torch.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "common/host/host_device.h"

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

  // Of a table and an index without gaps.
  static RowLayout contiguous(int64_t batch, int64_t outer, int64_t axis_size, int64_t entries,
                              int64_t inner) {
    const int64_t slab = axis_size * inner;
    return {batch, outer, entries, inner, axis_size, outer * slab, slab, inner, 1, entries, 1};
  }
};

// Is this entry of an index a row of the axis? One comparison checks both ends.
template <class Index>
TORCH_OPS_HOST_DEVICE bool in_range(Index entry, int64_t axis_size) {
  return static_cast<uint64_t>(static_cast<int64_t>(entry)) < static_cast<uint64_t>(axis_size);
}

constexpr int64_t kNoBadEntry = INT64_MAX;

// Calls use(n, entry) for each entry; is one out of range? Like in_range, in a form that
// vectorises: it is the highest bit of `entry | (last - entry)`.
template <class Index, class Stride, class Use>
TORCH_OPS_HOST_DEVICE bool any_bad(const Index* index, Stride stride, int64_t entries,
                                   int64_t axis_size, Use use) {
  using Wide = std::conditional_t<sizeof(Index) == 8, uint64_t, uint32_t>;
  constexpr auto kMost = static_cast<int64_t>(std::numeric_limits<Wide>::max() / 2);
  const auto last = static_cast<Wide>(std::min(axis_size - 1, kMost));
  Wide bits = 0;
  for (int64_t n = 0; n < entries; ++n) {
    const auto entry = static_cast<Wide>(index[n * stride]);
    bits |= entry | (last - entry);
    use(n, entry);
  }
  return bits >> (8 * sizeof(Wide) - 1) != 0;
}

// The first of `entries` entries that is not a row of the axis; kNoBadEntry if there is none.
template <class Index>
int64_t find_bad(const Index* index, int64_t stride, int64_t entries, int64_t axis_size) {
  using One = std::integral_constant<int64_t, 1>;  // known to the compiler, so that it vectorises
  const auto look = [](int64_t, auto) {};
  const bool bad = stride == 1 ? any_bad(index, One(), entries, axis_size, look)
                               : any_bad(index, stride, entries, axis_size, look);
  if (!bad) return kNoBadEntry;
  int64_t n = 0;
  while (in_range(index[n * stride], axis_size)) ++n;
  return n;
}

}  // namespace torch_ops
