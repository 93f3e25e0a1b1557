// How a kernel is launched: sizes, stream, and the check after it.
#pragma once

#include <ATen/cuda/CUDAContextLight.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>

#include <algorithm>
#include <cstdint>

namespace torch_ops {

constexpr int kThreads = 256;  // a block; 8 blocks fill a multiprocessor's 2048 threads
constexpr int64_t kMaxGridX = (int64_t{1} << 31) - 1;
constexpr int64_t kMaxGridYZ = 65535;

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Blocks for `work` items at `per_block` items a block. Kernels stride by the grid, so that more
// work than the largest grid holds is still done.
inline unsigned grid_x(int64_t work, int64_t per_block) {
  return static_cast<unsigned>(std::min(ceil_div(work, per_block), kMaxGridX));
}
inline unsigned grid_y(int64_t work) { return static_cast<unsigned>(std::min(work, kMaxGridYZ)); }

}  // namespace torch_ops

// Launches on the current stream of the current device, with `shared_bytes` of dynamic shared
// memory, and turns a refused launch into an error.
#define TORCH_OPS_LAUNCH(kernel, grid, block, shared_bytes, ...)                                \
  do {                                                                                          \
    kernel<<<(grid), (block), (shared_bytes), at::cuda::getCurrentCUDAStream()>>>(__VA_ARGS__); \
    C10_CUDA_KERNEL_LAUNCH_CHECK();                                                             \
  } while (0)
