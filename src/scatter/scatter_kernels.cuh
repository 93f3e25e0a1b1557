// scatter_add on the GPU, on raw pointers. No torch.
#pragma once

#include <cstdint>

#include "common/row_grid.cuh"
#include "common/row_layout.h"

namespace torch_ops {

constexpr int kScatterUnroll = 4;  // independent values in flight a thread

// Adds each value to its place in the table by an atomic, in no given order. An entry out of range
// is dropped: nothing is written out of bounds. `values_row` is the length of values' rows.
template <class Value, class Sum, class Index>
__global__ void scatter_add_kernel(const Value* __restrict__ values,
                                   const Index* __restrict__ index, Sum* __restrict__ table,
                                   RowLayout layout, RowGrid grid, int64_t values_row) {
  for (int64_t number = blockIdx.y; number < grid.chunks; number += gridDim.y) {
    const RowGrid::Chunk chunk = grid.chunk(number);
    const uint32_t first = blockIdx.x * (blockDim.x * kScatterUnroll) + threadIdx.x;
#pragma unroll
    for (int k = 0; k < kScatterUnroll; ++k) {
      const uint32_t word = first + k * blockDim.x;
      if (word >= chunk.words) continue;
      const RowGrid::Place at = grid.place<false>(chunk, word);
      int64_t batch, slice;
      grid.split_slab(chunk.slab + at.slab, batch, slice);
      const Index entry =
          index[batch * layout.index_batch_stride + at.entry * layout.index_entry_stride];
      if (!in_range(entry, layout.axis_size)) continue;
      const int64_t row = (chunk.slab + at.slab) * grid.entries + at.entry;
      atomicAdd(table + batch * layout.table_batch_stride + slice * layout.table_outer_stride +
                    static_cast<int64_t>(entry) * layout.table_axis_stride + at.column,
                static_cast<Sum>(values[row * values_row + at.column]));
    }
  }
}

}  // namespace torch_ops
