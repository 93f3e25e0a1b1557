// The CUDA kernel of an elementwise op: output[i] = op(inputs[i]...) over flat arrays of one type.
#pragma once

#include <cstdint>

#include "common/vectorized.cuh"

namespace torch_ops {

// A thread moves N values an array as one word; the last n % N values go one a thread.
template <int N, class Op, class T, class... Inputs>
__global__ void map_kernel(Op op, int64_t n, T* output, const Inputs*... inputs) {
  using Word = Vector<T, N>;
  const int64_t first = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  const int64_t words = n / N;
  for (int64_t w = first; w < words; w += step) {
    Word result;
    const auto apply = [&](const auto&... loaded) {
#pragma unroll
      for (int k = 0; k < N; ++k) result.values[k] = op(loaded.values[k]...);
    };
    apply(reinterpret_cast<const Word*>(inputs)[w]...);
    reinterpret_cast<Word*>(output)[w] = result;
  }
  const int64_t tail = words * N + first;
  if (tail < n) output[tail] = op(inputs[tail]...);
}

}  // namespace torch_ops
