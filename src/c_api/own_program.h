// The C library as the host program of its own calls (common/host/host_program.h).
#pragma once

#include "common/host/host_program.h"

namespace torch_ops::own {

// thread_pool.cpp
int64_t num_threads();
void run_parts(int64_t parts, void (*part)(void* context, int64_t n), void* context);

// The caller's memory on the device, which a call's scratch memory uses first.
constexpr int64_t kWorkspaceAlignment = 16;
struct Workspace {
  void* memory = nullptr;
  int64_t bytes = 0;
};

// For its scope, the calling thread's allocations on the device come from a workspace, as far as
// they fit.
class WorkspaceScope {
 public:
  explicit WorkspaceScope(const Workspace& workspace);
  WorkspaceScope(const WorkspaceScope&) = delete;
  ~WorkspaceScope();
};

// Memory of the calling thread's workspace, or null if it has no room; and back: false for other
// memory.
void* take_from_workspace(int64_t bytes);
bool give_to_workspace(void* memory);

#ifdef TORCH_OPS_WITH_CUDA
// gpu/runtime.cu
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
