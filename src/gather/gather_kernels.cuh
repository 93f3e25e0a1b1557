// gather on the GPU, on raw pointers. No torch.
#pragma once

#include <cstdint>

#include "common/row_grid.cuh"
#include "common/row_layout.h"

namespace torch_ops {

constexpr int kGatherUnroll = 4;  // independent loads in flight a thread; 1 and 8 are slower

// Copies rows word by word. Strides and the output's row length count words. An entry out of range
// gives zeros: nothing is read out of bounds.
template <class Word, class Index>
__global__ void gather_kernel(const Word* __restrict__ source, const Index* __restrict__ index,
                              Word* __restrict__ output, RowLayout layout, RowGrid grid,
                              int64_t output_row) {
  for (int64_t number = blockIdx.y; number < grid.chunks; number += gridDim.y) {
    const RowGrid::Chunk chunk = grid.chunk(number);
    const uint32_t first = blockIdx.x * (blockDim.x * kGatherUnroll) + threadIdx.x;
    Word words[kGatherUnroll];
#pragma unroll
    for (int k = 0; k < kGatherUnroll; ++k) {
      const uint32_t word = first + k * blockDim.x;
      if (word >= chunk.words) continue;
      const RowGrid::Place at = grid.place(chunk, word);
      const Index entry =
          index[at.batch * layout.index_batch_stride + at.entry * layout.index_entry_stride];
      words[k] = Word();
      if (in_range(entry, layout.axis_size)) {
        words[k] = source[at.batch * layout.table_batch_stride +
                          at.outer * layout.table_outer_stride +
                          static_cast<int64_t>(entry) * layout.table_axis_stride +
                          at.column * layout.table_inner_stride];
      }
    }
#pragma unroll
    for (int k = 0; k < kGatherUnroll; ++k) {
      const uint32_t word = first + k * blockDim.x;
      if (word >= chunk.words) continue;
      if (output_row == grid.words) {
        output[chunk.row * output_row + word] = words[k];
      } else {  // a part of a very long row
        uint32_t column;
        const uint32_t row = grid.by_words.divide(word, column);
        output[(chunk.row + row) * output_row + column] = words[k];
      }
    }
  }
}

}  // namespace torch_ops
