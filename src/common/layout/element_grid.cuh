// How the elements of an ElementLayout are found from a thread's number, by 32-bit divisions. No
// torch.
#pragma once

#include <cstdint>

#include "common/cuda/fast_divisor.cuh"
#include "common/layout/element_layout.h"

namespace torch_ops {

struct ElementGrid {
  static constexpr int64_t kMaxPart = int64_t{1} << 30;  // elements of a launch

  ElementLayout layout;  // of at most kMaxPart elements
  FastDivisor by_size[ElementLayout::kMaxRank];
  bool index_is_dense;
  bool values_are_dense;

  explicit ElementGrid(const ElementLayout& part) : layout(part) {
    for (int d = 0; d < part.rank; ++d) {
      by_size[d] = FastDivisor(static_cast<uint32_t>(part.sizes[d]));
    }
    index_is_dense = ElementLayout::is_dense(part.index_strides, part.sizes, part.rank);
    values_are_dense = ElementLayout::is_dense(part.value_strides, part.sizes, part.rank);
  }

  // Where the elements `numbers` are: in the table as if their entries were 0. Offset holds all
  // of these places.
  template <int K, class Offset>
  __device__ __forceinline__ void locate(const uint32_t (&numbers)[K], Offset (&table)[K],
                                         Offset (&index)[K], Offset (&values)[K]) const {
    uint32_t rest[K];
#pragma unroll
    for (int k = 0; k < K; ++k) {
      rest[k] = numbers[k];
      table[k] = 0;
      index[k] = index_is_dense ? numbers[k] : 0;
      values[k] = values_are_dense ? numbers[k] : 0;
    }
#pragma unroll 1
    for (int d = layout.rank - 1; d >= 0; --d) {
#pragma unroll
      for (int k = 0; k < K; ++k) {
        uint32_t coordinate = rest[k];
        if (d > 0) rest[k] = by_size[d].divide(rest[k], coordinate);
        table[k] += coordinate * static_cast<Offset>(layout.table_strides[d]);
        if (!index_is_dense) index[k] += coordinate * static_cast<Offset>(layout.index_strides[d]);
        if (!values_are_dense)
          values[k] += coordinate * static_cast<Offset>(layout.value_strides[d]);
      }
    }
  }
};

}  // namespace torch_ops
