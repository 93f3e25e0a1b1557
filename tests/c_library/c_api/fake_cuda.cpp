#include "fake_cuda.h"

#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>

namespace fake_cuda {

bool has_code[2] = {true, true};
std::atomic<bool> capturing{false};
std::atomic<int> allocations{0};

namespace {

struct Block {
  size_t bytes;
  cudaMemoryType type;
  int device;
};

struct Work {
  int device;
  cudaStream_t stream;
  std::function<void()> run;
};

std::mutex mutex;
std::map<const char*, Block> blocks;
std::deque<Work> queued;
std::atomic<pid_t> user{0};
thread_local int current = 0;

// A child of a process that has used CUDA cannot.
cudaError_t state() {
  pid_t nobody = 0;
  user.compare_exchange_strong(nobody, getpid());
  return user == getpid() ? cudaSuccess : cudaErrorInitializationError;
}

void* make(size_t bytes, cudaMemoryType type, int device) {
  auto* memory = static_cast<char*>(std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096));
  const std::lock_guard<std::mutex> lock(mutex);
  blocks[memory] = {bytes, type, device};
  ++allocations;
  return memory;
}

cudaError_t wait(const std::function<bool(const Work&)>& is_waited_for) {
  if (state() != cudaSuccess) return state();
  const std::lock_guard<std::mutex> lock(mutex);
  for (auto each = queued.begin(); each != queued.end();) {
    if (is_waited_for(*each)) {
      each->run();
      each = queued.erase(each);
    } else {
      ++each;
    }
  }
  return cudaSuccess;
}

}  // namespace

void* allocate(int device, size_t bytes) { return make(bytes, cudaMemoryTypeDevice, device); }

std::function<void()> queue(cudaStream_t stream, std::function<void()> work) {
  if (capturing) return work;
  const std::lock_guard<std::mutex> lock(mutex);
  queued.push_back({current, stream, work});
  return nullptr;
}

size_t pending() {
  const std::lock_guard<std::mutex> lock(mutex);
  return queued.size();
}

}  // namespace fake_cuda

using namespace fake_cuda;

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 2;
  return state();
}
cudaError_t cudaGetDevice(int* device) {
  *device = current;
  return state();
}
cudaError_t cudaSetDevice(int device) {
  current = device;
  return state();
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) {
  *value = 7;
  return state();
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes*, const void*) {
  if (state() != cudaSuccess) return state();
  return has_code[current] ? cudaSuccess : cudaErrorNoKernelImageForDevice;
}
cudaError_t cudaGetLastError() { return cudaSuccess; }
const char* cudaGetErrorName(cudaError_t error) {
  return error == cudaErrorNoKernelImageForDevice ? "cudaErrorNoKernelImageForDevice" : "cudaError";
}
const char* cudaGetErrorString(cudaError_t) { return "an error"; }

cudaError_t cudaMalloc(void** memory, size_t bytes) {
  *memory = make(bytes, cudaMemoryTypeDevice, current);
  return state();
}
cudaError_t cudaMallocAsync(void** memory, size_t bytes, cudaStream_t) {
  return cudaMalloc(memory, bytes);
}
cudaError_t cudaFreeAsync(void*, cudaStream_t) { return state(); }
cudaError_t cudaHostAlloc(void** memory, size_t bytes, unsigned) {
  *memory = make(bytes, cudaMemoryTypeHost, current);
  return state();
}
cudaError_t cudaFreeHost(void* memory) {
  if (state() != cudaSuccess) return state();
  const std::lock_guard<std::mutex> lock(mutex);
  if (blocks.erase(static_cast<char*>(memory)) == 0) return cudaErrorInvalidValue;
  std::free(memory);
  return cudaSuccess;
}
cudaError_t cudaHostGetDevicePointer(void** address, void* memory, unsigned) {
  *address = memory;
  return state();
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
  std::memcpy(to, from, bytes);
  return state();
}
cudaError_t cudaMemset(void* memory, int value, size_t bytes) {
  std::memset(memory, value, bytes);
  return state();
}
cudaError_t cudaMemsetAsync(void* memory, int value, size_t bytes, cudaStream_t stream) {
  fake_cuda::queue(stream, [=] { std::memset(memory, value, bytes); });
  return state();
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* memory) {
  const std::lock_guard<std::mutex> lock(mutex);
  *attributes = {};
  const auto* byte = static_cast<const char*>(memory);
  auto after = blocks.upper_bound(byte);
  if (after != blocks.begin() && byte < std::prev(after)->first + std::prev(after)->second.bytes) {
    attributes->type = std::prev(after)->second.type;
    attributes->device = std::prev(after)->second.device;
  }
  return state();
}

cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
  *status = capturing ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return state();
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  const int device = current;
  return wait([=](const Work& work) {
    return work.stream == stream && (stream != nullptr || work.device == device);
  });
}
cudaError_t cudaDeviceSynchronize() {
  const int device = current;
  return wait([=](const Work& work) { return work.device == device; });
}

cudaError_t cudaEventCreate(cudaEvent_t*) { return state(); }
cudaError_t cudaEventDestroy(cudaEvent_t) { return state(); }
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) { return state(); }
cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaDeviceSynchronize(); }
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t, cudaEvent_t) {
  *milliseconds = 1;
  return state();
}

// What nvcc has each file with kernels call.
char __cudaInitModule(void**) { return 1; }
void** __cudaRegisterFatBinary(void*) { return nullptr; }
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
void __cudaRegisterFunction(void**, const char*, char*, const char*, int, void*, void*, void*,
                            void*, int*) {}
cudaError_t __cudaGetKernel(void**, const void*) { return cudaErrorNotSupported; }
cudaError_t __cudaLaunchKernel(void*, dim3, dim3, void**, size_t, cudaStream_t) {
  return cudaErrorNotSupported;
}
unsigned __cudaPopCallConfiguration(dim3*, dim3*, size_t*, void*) { return 1; }

}  // extern "C"
