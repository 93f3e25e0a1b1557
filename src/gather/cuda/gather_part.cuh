// gather on the GPU from a part of a table, if the whole does not fit the device. No torch.
#pragma once

#include <cstdint>

#include "common/indexing/index_error.cuh"
#include "common/indexing/index_view.cuh"
#include "common/layout/row_layout.h"

namespace torch_ops {

// `part` has the rows [first, last) of the `axis_size` of one slab's table, contiguous. The output
// for entries of these rows is written; that of others is left to the launches for their parts.
// An entry that names no row is recorded with the first part. Copying the parts takes far longer
// than this, so it has no paths for rows of other lengths.
template <class Word>
__global__ void gather_part_kernel(const Word* __restrict__ part, IndexView index,
                                   Word* __restrict__ output, int64_t entries, int64_t inner,
                                   int64_t first, int64_t last, int64_t axis_size,
                                   const __grid_constant__ IndexErrorSite errors) {
  const int64_t words = entries * inner;
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t word = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; word < words; word += step) {
    const int64_t n = inner == 1 ? word : word / inner;
    const int64_t entry = index[n];
    if (entry >= first && entry < last) {
      output[word] = part[(entry - first) * inner + (word - n * inner)];
    } else if (first == 0 && !in_range(entry, axis_size)) {
      record_bad_entry(errors, n, entry);
    }
  }
}

}  // namespace torch_ops
