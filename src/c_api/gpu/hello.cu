#include <cstdio>

#include "c_api/gpu/gpu.h"
#include "c_api/gpu/runtime.cuh"

namespace torch_ops::gpu {
namespace {

__global__ void hello_kernel() {
  printf(TORCH_OPS_HELLO, static_cast<int>(threadIdx.x), static_cast<int>(blockDim.x));
}

}  // namespace

void hello(int32_t threads) {
  translated([&] {
    need_kernels();
    if (threads == 0) return;
    TORCH_OPS_LAUNCH(hello_kernel, 1, threads, 0);
    // The output of a kernel appears when the host waits for it.
    TORCH_OPS_CHECK_CUDA(cudaStreamSynchronize(current_stream()));
    std::fflush(stdout);
  });
}

}  // namespace torch_ops::gpu
