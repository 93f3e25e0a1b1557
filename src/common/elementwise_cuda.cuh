// Launches an elementwise op in the widest words that every array's start allows.
#pragma once

#include "common/elementwise.cuh"
#include "common/launch.cuh"

namespace torch_ops {

template <class Op, class T, class... Inputs>
void map_cuda(Op op, int64_t n, T* output, const Inputs*... inputs) {
  constexpr int kWide = kVectorSize<T>;
  const bool aligned =
      is_aligned(output, kVectorBytes) && (is_aligned(inputs, kVectorBytes) && ...);
  if (aligned) {
    const unsigned grid = grid_x(std::max<int64_t>(n / kWide, 1), kThreads);
    TORCH_OPS_LAUNCH(map_kernel<kWide>, grid, kThreads, 0, op, n, output, inputs...);
  } else {
    TORCH_OPS_LAUNCH(map_kernel<1>, grid_x(n, kThreads), kThreads, 0, op, n, output, inputs...);
  }
}

}  // namespace torch_ops
