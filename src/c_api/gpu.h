// The calls on a CUDA device. Arguments are right, but for what only the device can tell. In a
// build without CUDA there is no device.
#pragma once

#include "c_api/arguments.h"

namespace torch_ops::gpu {

#ifdef TORCH_OPS_WITH_CUDA
#define TORCH_OPS_GPU_CALL(...) __VA_ARGS__;
#else
#define TORCH_OPS_GPU_CALL(...)                                                          \
  inline __VA_ARGS__ {                                                                   \
    fail(TORCH_OPS_NO_DEVICE,                                                            \
         "a CUDA device is asked for, but this library was built without CUDA kernels"); \
  }
#endif

// How many devices there are: 0 without a driver, and in a child of fork() where the parent has
// used CUDA. Never fails.
#ifdef TORCH_OPS_WITH_CUDA
int32_t device_count();
// Is there a current device that can run this library's kernels? Starts up CUDA. Never fails.
bool is_usable();
// Is this memory pinned, so that a device can read it in place?
bool is_pinned(const void* memory);
// Frees memory of pinned_alloc; false where it is not.
bool pinned_free(void* memory);
#else
inline int32_t device_count() { return 0; }
inline bool is_usable() { return false; }
inline bool is_pinned(const void*) { return false; }
inline bool pinned_free(void*) { return false; }
#endif

// On device pointers.
TORCH_OPS_GPU_CALL(void gather(const RowCall& call, torch_ops_stream stream, float* milliseconds))
TORCH_OPS_GPU_CALL(void scatter_add(const RowCall& call, torch_ops_stream stream, void* workspace,
                                    int64_t workspace_bytes, float* milliseconds))
TORCH_OPS_GPU_CALL(void apply(const ActivationCall& call, torch_ops_stream stream,
                              float* milliseconds))
TORCH_OPS_GPU_CALL(void check_errors(torch_ops_stream stream))
TORCH_OPS_GPU_CALL(void hello(int32_t threads))

// On host pointers.
TORCH_OPS_GPU_CALL(void gather_host(const RowCall& call, torch_ops_stream stream,
                                    float* milliseconds))
TORCH_OPS_GPU_CALL(void scatter_add_host(const RowCall& call, torch_ops_stream stream,
                                         float* milliseconds))
TORCH_OPS_GPU_CALL(void apply_host(const ActivationCall& call, torch_ops_stream stream,
                                   float* milliseconds))
TORCH_OPS_GPU_CALL(void* pinned_alloc(int64_t bytes))

// The most bytes of a device that a host-pointer call may take; 0: what is free there.
void set_memory_limit(int64_t bytes);
int64_t memory_limit();

}  // namespace torch_ops::gpu
