// Products of what goes to one element of scatter's result, from sorted entries: on raw pointers,
// no torch.
#pragma once

#include <cstdint>

#include "scatter/scatter_sorted.cuh"

namespace torch_ops::sorted {

// The first of the sorted keys that is not below `key`.
template <class Id>
__device__ int64_t lower_bound(const Id* keys, int64_t count, Id key) {
  int64_t low = 0, high = count;
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (keys[middle] < key) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

// A thread has an element of the result, and takes its values in the order of their entries.
template <class Value, class Sum, class Id>
__global__ void multiply_kernel(const Value* __restrict__ values, const Id* __restrict__ keys,
                                const Id* __restrict__ positions, Sum* __restrict__ products,
                                Shape<Id> shape) {
  const int64_t slab = shape.axis_size * shape.inner;
  const int64_t elements = shape.batch * shape.outer * slab;
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < elements; i += step) {
    const int64_t row = i / shape.inner, column = i % shape.inner;  // of all slabs
    const int64_t slice = row / shape.axis_size % shape.outer;
    const auto key = static_cast<Id>(row - slice * shape.axis_size);
    const Value* from = values + slice * shape.entries * shape.inner + column;
    Sum product = 1;
    for (int64_t at = lower_bound(keys, shape.all_entries(), key);
         at < shape.all_entries() && keys[at] == key; ++at) {
      product *= static_cast<Sum>(from[static_cast<int64_t>(positions[at]) * shape.inner]);
    }
    products[i] = product;
  }
}

}  // namespace torch_ops::sorted
