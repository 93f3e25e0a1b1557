// Code for GPUs that was compiled at run time, brought into this process through the CUDA runtime.
#pragma once

#include <c10/core/Device.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "common/torch/calls/torch_cuda.h"

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
  bool cooperative = false;  // all blocks run at the same time, so they can wait for each other
  // It may begin while the kernel before it in the stream is ending, for which it waits. From
  // compute capability 9.0 on.
  bool early = false;
};

// A variable of a library, as it lies in a device's memory.
struct Global {
  void* address = nullptr;
  int64_t bytes = 0;
};

// The module torch_cuda has the one object of this class.
class GpuCode {
 public:
  // Loads a cubin, or PTX, which the driver then compiles. Libraries are never unloaded: a graph
  // may have been captured, or a kernel still run, that needs one.
  virtual Library load_library(const std::string& image) = 0;
  virtual Kernel get_kernel(Library library, const std::string& name) = 0;
  // A __device__ or __constant__ variable. A ValueError where there is none of this name.
  virtual Global get_global(Library library, const std::string& name, c10::DeviceIndex device) = 0;
  // Loads the kernel onto the device, so that its first launch may be inside a capture.
  virtual KernelAttributes prepare_kernel(Kernel kernel, c10::DeviceIndex device) = 0;
  // The threads a block that keep the most threads of a multiprocessor busy.
  virtual int suggest_block(Kernel kernel, c10::DeviceIndex device, int64_t shared_bytes,
                            int limit) = 0;
  // The most blocks of a cooperative launch.
  virtual int64_t count_resident_blocks(Kernel kernel, c10::DeviceIndex device, int64_t threads,
                                        int64_t shared_bytes) = 0;
  // `stream`, a cudaStream_t, is the device's. Checks what CUDA says of the launch.
  virtual void launch_kernel(Kernel kernel, c10::DeviceIndex device, const LaunchShape& shape,
                             void* stream, void** arguments) = 0;
  virtual int64_t count_multiprocessors(c10::DeviceIndex device) = 0;
  // Work that is queued on `stream` from now on waits for what is on `producer` now.
  virtual void wait_for_stream(void* stream, void* producer, c10::DeviceIndex device) = 0;

 protected:
  ~GpuCode() = default;
};

inline GpuCode& gpu_code() { return *torch_cuda().gpu_code; }

inline void* current_stream(c10::DeviceIndex device) { return torch_cuda().stream(device); }

}  // namespace torch_ops::jit
