// The calls on a CUDA device. Arguments are checked, except for what only the device can find. In a
// build without CUDA there is no device.
#pragma once

#include <atomic>
#include <functional>

#include "c_api/frame/arguments.h"
#include "common/indexing/index_error.h"
#include "scatter/scatter_launch.h"

namespace torch_ops::gpu {

// An index and its entries in the order of their rows, in one block of a device's memory.
struct PlanOnDevice {
  int device = 0;
  void* memory = nullptr;
  int64_t bytes = 0;
  const void* index = nullptr;
  PlanArrays sorted{};
};

#ifdef TORCH_OPS_WITH_CUDA
#define TORCH_OPS_GPU_CALL(...) __VA_ARGS__;
#define TORCH_OPS_GPU_QUERY(...) __VA_ARGS__;
#else
#define TORCH_OPS_GPU_CALL(...)                                                          \
  inline __VA_ARGS__ {                                                                   \
    fail(TORCH_OPS_NO_DEVICE,                                                            \
         "a CUDA device is asked for, but this library was built without CUDA kernels"); \
  }
#define TORCH_OPS_GPU_QUERY(...) \
  inline __VA_ARGS__ { return {}; }
#endif

// The number of devices: 0 without a driver, and in a child of fork() whose parent has used CUDA.
// Never fails.
TORCH_OPS_GPU_QUERY(int32_t device_count())
// Is there a current device that can run this library's kernels? Starts up CUDA. Never fails.
TORCH_OPS_GPU_QUERY(bool is_usable())
// Is this memory pinned, so that a device can read it in place?
TORCH_OPS_GPU_QUERY(bool is_pinned(const void* memory))
// Frees memory of pinned_alloc; returns false for other memory.
TORCH_OPS_GPU_QUERY(bool pinned_free(void* memory))

// Launches a call on the current stream of the current device; `at` are the call's arrays there.
using Launch = std::function<void(const Pointers& at, const IndexErrorSite& errors)>;

// Calls body() while a device is current.
TORCH_OPS_GPU_CALL(void with_device(int device, const std::function<void()>& body))

// On device pointers.
TORCH_OPS_GPU_CALL(void run_there(const Arrays& arrays, const EntryKind& kind,
                                  torch_ops_stream stream, float* milliseconds,
                                  const Launch& launch))
TORCH_OPS_GPU_CALL(void check_errors(torch_ops_stream stream))
// What a thread of hello prints: its number, and the number of threads.
#define TORCH_OPS_HELLO "Hello from thread %d of %d\n"
TORCH_OPS_GPU_CALL(void hello(int32_t threads))

// On host pointers: all arrays are on the device together.
TORCH_OPS_GPU_CALL(void run_copied(const Arrays& arrays, const EntryKind& kind,
                                   torch_ops_stream stream, float* milliseconds,
                                   const Launch& launch))

// On host pointers, in pieces.
TORCH_OPS_GPU_CALL(void gather_host(const RowCall& call, torch_ops_stream stream,
                                    float* milliseconds))
TORCH_OPS_GPU_CALL(void scatter_add_host(const RowCall& call, torch_ops_stream stream,
                                         float* milliseconds))
TORCH_OPS_GPU_CALL(void apply_host(const ActivationCall& call, torch_ops_stream stream,
                                   float* milliseconds))
TORCH_OPS_GPU_CALL(void* pinned_alloc(int64_t bytes))

// Plans. Sorts the entries of an index, which is checked, on its device, or on the device to which
// it is copied from the host; waits. The plan owns the memory until free_plan.
TORCH_OPS_GPU_CALL(void make_plan(PlanOnDevice& plan, const RowCall& index, bool from_host,
                                  torch_ops_stream stream))
// Waits for the device.
TORCH_OPS_GPU_CALL(void free_plan(const PlanOnDevice& plan))

// The most bytes of a device that a host-pointer call may use; 0: what is free there.
inline std::atomic<int64_t> memory_limit{0};

}  // namespace torch_ops::gpu
