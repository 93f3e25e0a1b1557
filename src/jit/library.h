// Code that was compiled at run time, brought into this process: for GPUs through the CUDA runtime
// (no link to the driver's library, so the module loads without one), for the CPU by dlopen.
#pragma once

#include <c10/core/Device.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/torch/checks.h"

namespace torch_ops::jit {

using Kernel = const void*;  // a cudaKernel_t, which the runtime takes wherever it takes a function
using Library = void*;       // a cudaLibrary_t

struct KernelAttributes {
  int num_regs = 0;                  // a thread
  int64_t shared_size_bytes = 0;     // a block's, static
  int64_t local_size_bytes = 0;      // a thread's: spills and arrays
  int max_threads_per_block = 0;     // what registers and the GPU allow
  int64_t max_dynamic_shared = 0;    // bytes a block may ask for at launch
  std::vector<int64_t> param_sizes;  // bytes, as the compiled code has them
};

struct LaunchShape {
  std::array<uint32_t, 3> grid;
  std::array<uint32_t, 3> block;
  int64_t shared_bytes = 0;  // dynamic
  bool cooperative =
      false;  // all blocks run at the same time, so that they can wait for each other
};

// A variable of a library, as it lies in a device's memory.
struct Global {
  void* address = nullptr;
  int64_t bytes = 0;
};

// Loads a cubin, or PTX, which the driver then compiles. Libraries are never unloaded: a graph may
// have been captured, or a kernel still run, that needs one.
TORCH_OPS_CUDA_LAUNCHER(Library load_library(const std::string& image))
TORCH_OPS_CUDA_LAUNCHER(std::vector<std::string> kernel_names(Library library))
TORCH_OPS_CUDA_LAUNCHER(Kernel get_kernel(Library library, const std::string& name))
// A __device__ or __constant__ variable. A ValueError where there is none of this name.
TORCH_OPS_CUDA_LAUNCHER(Global get_global(Library library, const std::string& name,
                                          c10::DeviceIndex device))
// Loads the kernel onto the device, so that its first launch may be inside a capture.
TORCH_OPS_CUDA_LAUNCHER(KernelAttributes prepare_kernel(Kernel kernel, c10::DeviceIndex device))
// The threads a block that keep the most threads of a multiprocessor busy.
TORCH_OPS_CUDA_LAUNCHER(int suggest_block(Kernel kernel, c10::DeviceIndex device,
                                          int64_t shared_bytes, int limit))
// The most blocks of a cooperative launch.
TORCH_OPS_CUDA_LAUNCHER(int64_t count_resident_blocks(Kernel kernel, c10::DeviceIndex device,
                                                      int64_t threads, int64_t shared_bytes))
// `stream`, a cudaStream_t, is the device's. Checks what CUDA says of the launch.
TORCH_OPS_CUDA_LAUNCHER(void launch_kernel(Kernel kernel, c10::DeviceIndex device,
                                           const LaunchShape& shape, void* stream,
                                           void** arguments))
TORCH_OPS_CUDA_LAUNCHER(int64_t count_multiprocessors(c10::DeviceIndex device))
// The raw handle of torch's current stream of a device.
TORCH_OPS_CUDA_LAUNCHER(void* current_stream(c10::DeviceIndex device))
// Work that is queued on `stream` from now on waits for what is on `producer` now.
TORCH_OPS_CUDA_LAUNCHER(void wait_for_stream(void* stream, void* producer, c10::DeviceIndex device))

// Loads a shared object from memory; never unloaded either.
void* load_host_library(std::string_view image);
// The address of a function in it.
void* host_symbol(void* library, const std::string& name);

// The C++ name behind a mangled one; none if it is not mangled.
std::optional<std::string> demangle(const std::string& name);

}  // namespace torch_ops::jit
