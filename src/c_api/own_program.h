// The C library as the host program of its own calls (common/host/host_program.h).
#pragma once

#include "common/host/host_program.h"

namespace torch_ops::own {

// thread_pool.cpp
int64_t num_threads();
void run_parts(int64_t parts, void (*part)(void* context, int64_t n), void* context);

#ifdef TORCH_OPS_WITH_CUDA
// gpu_runtime.cu
void* stream();
DeviceLimits device_limits();
void* allocate_on_device(int64_t bytes);
void release_on_device(void* memory);
void throw_cuda_error(int error, const char* expression, const char* file, int line);
#else
// No kernel is ever launched.
constexpr auto stream = nullptr, device_limits = nullptr, allocate_on_device = nullptr,
               release_on_device = nullptr, throw_cuda_error = nullptr;
#endif

}  // namespace torch_ops::own
