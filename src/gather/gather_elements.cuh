// gather on the GPU, for elements of a table that exceeds the L2 cache. No torch.
#pragma once

#include <cstdint>

#include "common/index_error.cuh"
#include "common/index_mode.h"
#include "common/index_view.cuh"
#include "common/row_grid.cuh"
#include "common/row_layout.h"

namespace torch_ops {

constexpr int kElementsUnroll = 4;  // entries a lane, a block apart

// Loads a word that nobody is likely to ask for again: past the L1 cache, which would give up a
// line for each.
template <class Word>
__device__ __forceinline__ Word load_once(const Word* from) {
  Word word;
  if constexpr (sizeof(Word) == 4) {
    asm volatile("ld.global.nc.L1::no_allocate.b32 %0, [%1];"
                 : "=r"(reinterpret_cast<uint32_t&>(word))
                 : "l"(from));
  } else if constexpr (sizeof(Word) == 8) {
    asm volatile("ld.global.nc.L1::no_allocate.b64 %0, [%1];"
                 : "=l"(reinterpret_cast<unsigned long long&>(word))
                 : "l"(from));
  } else {
    word = *from;
  }
  return word;
}

template <class Word>
__global__ void gather_elements_kernel(const Word* __restrict__ source, IndexView index,
                                       Word* __restrict__ output, RowLayout layout, RowGrid grid,
                                       const __grid_constant__ GatherPolicy policy,
                                       const __grid_constant__ IndexErrorSite errors) {
  for (int64_t number = blockIdx.y; number < grid.chunks; number += gridDim.y) {
    const RowGrid::Chunk chunk = grid.chunk(number);
    const uint32_t first = blockIdx.x * (blockDim.x * kElementsUnroll) + threadIdx.x;
    int64_t positions[kElementsUnroll], entries[kElementsUnroll];
    const Word* from[kElementsUnroll];
#pragma unroll
    for (int k = 0; k < kElementsUnroll; ++k) {
      // Beyond the end the last entry is read again, and not written.
      const RowGrid::Place at = grid.place_row(chunk, min(first + k * blockDim.x, chunk.words - 1));
      int64_t batch, slice;
      grid.split_slab(chunk.slab + at.slab, batch, slice);
      positions[k] = batch * layout.index_batch_stride + at.entry * layout.index_entry_stride;
      from[k] = source + batch * layout.table_batch_stride + slice * layout.table_outer_stride;
    }
    index.load(positions, entries);
    if (policy.rule.rewrites()) {
#pragma unroll
      for (int k = 0; k < kElementsUnroll; ++k) entries[k] = policy.rule.resolve(entries[k]);
    }
    Word words[kElementsUnroll];
#pragma unroll
    for (int k = 0; k < kElementsUnroll; ++k) {
      from[k] +=
          (in_range(entries[k], layout.axis_size) ? entries[k] : 0) * layout.table_axis_stride;
    }
#pragma unroll
    for (int k = 0; k < kElementsUnroll; ++k) words[k] = load_once(from[k]);
#pragma unroll
    for (int k = 0; k < kElementsUnroll; ++k) {
      const uint32_t row = first + k * blockDim.x;
      if (row >= chunk.words) break;
      if (!in_range(entries[k], layout.axis_size)) {
        record_bad_entry(errors, chunk.row + row, entries[k]);
        words[k] = policy.fill.word<Word>();
      }
      output[chunk.row + row] = words[k];
    }
  }
}

}  // namespace torch_ops
