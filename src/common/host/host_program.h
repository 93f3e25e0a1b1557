// The services that the kernel library gets from the program that calls it: threads, memory,
// streams. torch's bindings use torch's (common/torch/calls/call_kernels.h), the C library its own
// (c_api/own_program.cpp).
#pragma once

#include <cstdint>

#include "common/cuda/device_limits.h"
#include "common/host/simd.h"

// A function or class that the kernel library exports to the bindings. Its exports are in the
// namespace torch_ops::kernels (c_api/exports.map).
#define TORCH_OPS_KERNELS_API __attribute__((visibility("default")))

namespace torch_ops {

struct HostProgram {
  // The most threads that a call may use.
  int64_t (*num_threads)();
  // Calls part(context, n) for each n in [0, parts), on any threads, and returns once all are done.
  void (*run_parts)(int64_t parts, void (*part)(void* context, int64_t n), void* context);
  Simd (*simd)();

  // The CPU's memory, aligned to 64 bytes.
  void* (*allocate)(int64_t bytes);
  void (*release)(void* memory);

  // The calling thread's current stream on the current device, a cudaStream_t.
  void* (*stream)();
  // Of the current device.
  DeviceLimits (*device_limits)();
  // The current device's memory, for launches on the current stream until its release.
  void* (*allocate_on_device)(int64_t bytes);
  void (*release_on_device)(void* memory);
  // Throws the program's exception for a call of CUDA that failed with `error`, a cudaError_t.
  void (*throw_cuda_error)(int error, const char* expression, const char* file, int line);
};

// The program that the calling thread works for.
const HostProgram& host_program();

// Names it for the time of a call.
class HostScope {
 public:
  explicit HostScope(const HostProgram& program);
  HostScope(const HostScope&) = delete;
  ~HostScope();

 private:
  const HostProgram* before_;
};

// The first parameter of the kernel library's exports: whose call it is, and which of two
// functions with one name is meant.
struct OnCpu {
  const HostProgram& program;
};
struct OnCuda {
  const HostProgram& program;
};

}  // namespace torch_ops

// The types of floats that kernels are compiled for; `INSTANTIATE` is a macro of one parameter.
#define TORCH_OPS_FOR_EACH_FLOAT(INSTANTIATE) \
  INSTANTIATE(float)                          \
  INSTANTIATE(double)                         \
  INSTANTIATE(::torch_ops::Float16)           \
  INSTANTIATE(::torch_ops::BFloat16)
