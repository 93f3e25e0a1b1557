// scatter_add on the GPU, on raw pointers. No torch.
#pragma once

#include <cstdint>

#include "common/index_error.cuh"
#include "common/row_grid.cuh"
#include "common/row_layout.h"

namespace torch_ops {

constexpr int kScatterUnroll = 4;  // independent values in flight a thread
constexpr uint32_t kNoRow = UINT32_MAX;

// Adds up, within the warp, values that go to one row, so that a row that many entries name takes
// one atomic for all of a warp's. Two lanes' rows are tried: a row that many entries name is likely
// to be one of them. `row` is the place of the row in the table, kNoRow for a lane without; a lane
// whose value was added has it set so. Rows of `words` values lie side by side in the warp; `words`
// is a power of two below 32.
template <class Sum>
__device__ __forceinline__ void merge_duplicates(uint32_t& row, Sum value, Sum* table, int words) {
  constexpr unsigned kAll = 0xffffffffu;
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int tried = 0; tried < 32; tried += 16) {
    const uint32_t candidate = __shfl_sync(kAll, row, tried);
    const bool mine = row == candidate && row != kNoRow;
    if (__popc(__ballot_sync(kAll, mine)) <= words) continue;  // no duplicate
    Sum sum = mine ? value : Sum(0);
    for (int offset = 16; offset >= words; offset /= 2) sum += __shfl_xor_sync(kAll, sum, offset);
    if (lane < words) atomicAdd(table + candidate + lane, sum);
    if (mine) row = kNoRow;
  }
}

// Adds each value to its place in the table by an atomic, in no given order. An entry out of range
// is dropped and recorded: nothing is written out of bounds. `values_row` is the length of values'
// rows. All loads of a thread come first, so that none waits for another. kMerge: rows are of a
// power of two of values below 32, and the table has fewer than 2^32.
template <bool kMerge, class Value, class Sum, class Index>
__global__ void scatter_add_kernel(const Value* __restrict__ values,
                                   const Index* __restrict__ index, Sum* __restrict__ table,
                                   RowLayout layout, RowGrid grid, int64_t values_row,
                                   bool chunks_first,
                                   const __grid_constant__ IndexErrorSite errors) {
  const int64_t block = chunks_first ? blockIdx.y : blockIdx.x;
  const int64_t first_chunk = chunks_first ? blockIdx.x : blockIdx.y;
  const int64_t step = chunks_first ? gridDim.x : gridDim.y;
  for (int64_t number = first_chunk; number < grid.chunks; number += step) {
    const RowGrid::Chunk chunk = grid.chunk(number);
    const uint32_t first =
        static_cast<uint32_t>(block) * (blockDim.x * kScatterUnroll) + threadIdx.x;
    Index entries[kScatterUnroll];
    Value loaded[kScatterUnroll];
    Sum* slabs[kScatterUnroll];  // the table's row 0
    uint32_t columns[kScatterUnroll];
#pragma unroll
    for (int k = 0; k < kScatterUnroll; ++k) {
      // Beyond the end the last word is read again, and not added.
      const uint32_t word = min(first + k * blockDim.x, chunk.words - 1);
      const RowGrid::Place at = grid.place<false>(chunk, word);
      int64_t batch, slice;
      grid.split_slab(chunk.slab + at.slab, batch, slice);
      entries[k] = index[batch * layout.index_batch_stride + at.entry * layout.index_entry_stride];
      const int64_t row = (chunk.slab + at.slab) * grid.entries + at.entry;
      loaded[k] = values[row * values_row + at.column];
      slabs[k] = table + batch * layout.table_batch_stride + slice * layout.table_outer_stride;
      columns[k] = at.column;
    }
    uint32_t bad = 0;
    Index bad_entry = 0;
#pragma unroll
    for (int k = 0; k < kScatterUnroll; ++k) {
      const bool good = in_range(entries[k], layout.axis_size);
      if (!good) {
        bad |= 1u << k;
        bad_entry = entries[k];
      }
      const bool inside = good && first + k * blockDim.x < chunk.words;
      Sum* row = slabs[k] + static_cast<int64_t>(entries[k]) * layout.table_axis_stride;
      const Sum value = static_cast<Sum>(loaded[k]);
      if constexpr (kMerge) {
        uint32_t place = inside ? static_cast<uint32_t>(row - table) : kNoRow;
        merge_duplicates(place, value, table, static_cast<int>(grid.words));
        if (place != kNoRow) atomicAdd(table + place + columns[k], value);
      } else {
        if (inside) atomicAdd(row + columns[k], value);
      }
    }
    if (bad != 0) {
      const uint32_t word = min(first + last_bit(bad) * blockDim.x, chunk.words - 1);
      record_bad_entry(errors, grid.row(chunk, word), static_cast<int64_t>(bad_entry));
    }
  }
}

}  // namespace torch_ops
