// gather_elements on the GPU, on raw pointers. No torch.
#pragma once

#include <cstdint>

#include "common/indexing/index_error.cuh"
#include "common/indexing/index_mode.h"
#include "common/indexing/index_view.cuh"
#include "common/layout/element_grid.cuh"
#include "common/layout/row_layout.h"

namespace torch_ops {

constexpr int kAlongUnroll = 4;  // elements per lane, a block apart

// As in gather_flat.cuh: all entries of a lane are loaded first, then all words, and an entry
// that names no row reads row 0, which is not used. The axis must not be empty. `position` is that
// of the part's first element.
template <class Word>
__global__ void gather_along_kernel(const Word* __restrict__ source, IndexView index,
                                    Word* __restrict__ output, int64_t position,
                                    const __grid_constant__ ElementGrid grid,
                                    const __grid_constant__ GatherPolicy policy,
                                    const __grid_constant__ IndexErrorSite errors) {
  constexpr int K = kAlongUnroll;
  const ElementLayout& layout = grid.layout;
  const auto count = static_cast<uint32_t>(layout.count);
  const uint32_t first = blockIdx.x * (blockDim.x * K) + threadIdx.x;
  uint32_t numbers[K];
  int64_t table[K], places[K], to[K], entries[K];
#pragma unroll
  for (int k = 0; k < K; ++k) numbers[k] = min(first + k * blockDim.x, count - 1);
  grid.locate(numbers, table, places, to);
  index.load(places, entries);
  if (policy.rule.rewrites()) {
#pragma unroll
    for (int k = 0; k < K; ++k) entries[k] = policy.rule.resolve(entries[k]);
  }
  Word words[K];
#pragma unroll
  for (int k = 0; k < K; ++k) {
    const int64_t row = in_range(entries[k], layout.axis_size) ? entries[k] : 0;
    words[k] = source[table[k] + row * layout.axis_stride];
  }
#pragma unroll
  for (int k = 0; k < K; ++k) {
    if (first + k * blockDim.x >= count) break;
    const bool good = in_range(entries[k], layout.axis_size);
    output[to[k]] = good ? words[k] : policy.fill.word<Word>();
    if (!good) record_bad_entry(errors, position + numbers[k], entries[k]);
  }
}

}  // namespace torch_ops
