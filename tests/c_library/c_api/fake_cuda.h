// Two CUDA devices without a GPU: what src/c_api/gpu_runtime.cu asks of the CUDA runtime. What is
// queued on a stream runs when something waits for the stream or its device, and not before.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstddef>
#include <functional>

namespace fake_cuda {

extern bool has_code[2];             // does a device run the program's kernels?
extern std::atomic<bool> capturing;  // are all streams?
extern std::atomic<int> allocations;

// Memory of a device. Never freed.
void* allocate(int device, size_t bytes);
// Queues work on the stream of the current device. Where the stream is captured, it is returned.
std::function<void()> queue(cudaStream_t stream, std::function<void()> work);
// How much is queued that nothing has waited for.
size_t pending();

}  // namespace fake_cuda
