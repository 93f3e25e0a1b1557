// How a kernel is launched: sizes, the host program's stream (host_program.h), and the check after
// it. No torch.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "common/cuda/device_limits.h"
#include "common/host/ceil_div.h"
#include "common/host/host_program.h"

namespace torch_ops {

constexpr int kThreads = 256;  // a block; 8 blocks fill a multiprocessor's 2048 threads
constexpr int64_t kMaxGridX = (int64_t{1} << 31) - 1;
constexpr int64_t kMaxGridYZ = 65535;

// Blocks for `work` items at `per_block` items per block. Kernels stride by the grid, so more work
// than the largest grid covers is still done.
inline unsigned grid_x(int64_t work, int64_t per_block) {
  return static_cast<unsigned>(std::min(ceil_div(work, per_block), kMaxGridX));
}
inline unsigned grid_y(int64_t work) { return static_cast<unsigned>(std::min(work, kMaxGridYZ)); }

// For a choice among kernels that has none for the types of the call: a bug in the choice,
// which must not pass for a result.
[[noreturn]] inline void fail_without_kernel(const char* choice) {
  throw std::logic_error(std::string("torch_ops: no kernel for the choice ") + choice);
}

inline cudaStream_t current_stream() { return static_cast<cudaStream_t>(host_program().stream()); }
inline DeviceLimits current_device_limits() { return host_program().device_limits(); }

// Clears an error that a call left: the next check of a launch would find it again.
inline void check_cuda_call(cudaError_t error, const char* expression, const char* file, int line) {
  if (error == cudaSuccess) return;
  cudaGetLastError();
  host_program().throw_cuda_error(error, expression, file, line);
}

}  // namespace torch_ops

// Variadic, since a call may have commas outside of parentheses, in template arguments.
#define TORCH_OPS_CUDA_CALL(...) \
  ::torch_ops::check_cuda_call((__VA_ARGS__), #__VA_ARGS__, __FILE__, __LINE__)
#define TORCH_OPS_CHECK_KERNEL() TORCH_OPS_CUDA_CALL(cudaGetLastError())

namespace torch_ops {

// Lets a kernel's launches have `bytes` of dynamic shared memory: more than 48 KB, including the
// kernel's static memory, must be requested. The request is always for the most that a block may
// have, because the limit belongs to the kernel, not to a launch: requesting only these bytes would
// lower it for a larger launch, of another thread or of the CUDA graph that is being captured.
template <class Kernel>
void allow_shared_bytes(Kernel* kernel, int64_t bytes) {
  constexpr int64_t kUnasked = 47 * 1024;
  if (bytes <= kUnasked) return;
  cudaFuncAttributes attributes;
  TORCH_OPS_CUDA_CALL(cudaFuncGetAttributes(&attributes, kernel));
  if (bytes <= attributes.maxDynamicSharedSizeBytes) return;
  const int64_t most =
      current_device_limits().shared_bytes - static_cast<int64_t>(attributes.sharedSizeBytes);
  TORCH_OPS_CUDA_CALL(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                           static_cast<int>(most)));
}

// Was the code that the current device runs compiled for 9.0 or newer, so that it has the waits of
// common/cuda/kernel_overlap.cuh? A device may be newer than that: it runs the PTX. All
// kernels of a module are compiled for the same devices: one represents all.
inline bool waits_for_kernel_before(const void* kernel) {
  constexpr int kMostDevices = 64, kFirst = 90;
  static std::atomic<int> known[kMostDevices];  // 0: not asked yet
  int device = 0;
  TORCH_OPS_CUDA_CALL(cudaGetDevice(&device));
  if (device >= kMostDevices) return false;
  if (known[device] == 0) {
    cudaFuncAttributes attributes;
    TORCH_OPS_CUDA_CALL(cudaFuncGetAttributes(&attributes, kernel));
    known[device] = attributes.ptxVersion;
  }
  return known[device] >= kFirst;
}

// launch_early for a kernel of any type: there are many, and the compiler takes long over each.
inline void launch_early(const void* kernel, dim3 grid, dim3 block, int64_t shared_bytes,
                         void** arguments) {
  cudaLaunchAttribute overlap;
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
  config.stream = current_stream();
  config.attrs = &overlap;
  config.numAttrs = waits_for_kernel_before(kernel) ? 1 : 0;
  TORCH_OPS_CUDA_CALL(cudaLaunchKernelExC(&config, kernel, arguments));
}

// Launches a kernel that may begin before the previous one in the stream has ended
// (common/cuda/kernel_overlap.cuh). That one must be our own, so that it is known what it writes;
// everything else that the kernel accesses must have been there before that one began.
template <class... Parameters, class... Arguments>
void launch_early(void (*kernel)(Parameters...), dim3 grid, dim3 block, int64_t shared_bytes,
                  const Arguments&... arguments) {
  const auto launch = [&](Parameters... converted) {
    void* pointers[] = {&converted...};
    launch_early(reinterpret_cast<const void*>(kernel), grid, block, shared_bytes, pointers);
  };
  launch(arguments...);
}

}  // namespace torch_ops

// Launches on the current stream of the current device, with `shared_bytes` of dynamic shared
// memory, and turns a refused launch into an error.
#define TORCH_OPS_LAUNCH(kernel, grid, block, shared_bytes, ...)                             \
  do {                                                                                       \
    kernel<<<(grid), (block), (shared_bytes), ::torch_ops::current_stream()>>>(__VA_ARGS__); \
    TORCH_OPS_CHECK_KERNEL();                                                                \
  } while (0)
