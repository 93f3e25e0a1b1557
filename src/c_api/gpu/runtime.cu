#include "c_api/gpu/runtime.cuh"

#include <pthread.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <unordered_set>
#include <vector>

#include "c_api/gpu/gpu.h"
#include "c_api/own_program.h"
#include "common/cuda/timing.h"

namespace torch_ops {
namespace {

thread_local cudaStream_t the_stream = nullptr;

}  // namespace

namespace own {

void* stream() { return the_stream; }

DeviceLimits device_limits() {
  static std::once_flag known[gpu::kMaxDevices];
  static DeviceLimits limits[gpu::kMaxDevices];
  int device = 0;
  TORCH_OPS_CHECK_CUDA(cudaGetDevice(&device));
  std::call_once(known[device], [&] {
    const auto ask = [&](cudaDeviceAttr attribute) {
      int value = 0;
      TORCH_OPS_CHECK_CUDA(cudaDeviceGetAttribute(&value, attribute, device));
      return int64_t{value};
    };
    limits[device] = {
        ask(cudaDevAttrMaxSharedMemoryPerBlockOptin), ask(cudaDevAttrL2CacheSize),
        ask(cudaDevAttrMultiProcessorCount),
        10 * ask(cudaDevAttrComputeCapabilityMajor) + ask(cudaDevAttrComputeCapabilityMinor)};
  });
  return limits[device];
}

void* allocate_on_device(int64_t bytes) {
  void* memory = take_from_workspace(bytes);
  if (memory == nullptr) TORCH_OPS_CHECK_CUDA(cudaMallocAsync(&memory, bytes, the_stream));
  return memory;
}

void release_on_device(void* memory) {
  if (!give_to_workspace(memory)) cudaFreeAsync(memory, the_stream);
}

void throw_cuda_error(int error, const char* expression, const char* file, int line) {
  torch_ops::throw_cuda_error(static_cast<cudaError_t>(error), expression, file, line);
}

}  // namespace own

namespace gpu {
namespace {

// One thread's on one device.
struct ErrorRecord {
  IndexErrorSlot* slot = nullptr;  // in the device's memory
  IndexErrorRecord* record = nullptr;
  uint32_t raised = 0;  // the number of the last error that was raised
};

struct DeviceErrors {
  ErrorRecord records[2];  // by Reports
  bool captured = false;   // in a CUDA graph, which may be replayed at any time
};

// Records of threads that have ended are reused, and never freed: running kernels may have
// their addresses. Such kernels may still record an error, which must not become the next
// thread's: before a record is reused, its device is waited for and the record is cleared.
class ErrorPool {
 public:
  // A record of `device`, which is current.
  DeviceErrors* take(int device) {
    std::vector<DeviceErrors*> ended;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (DeviceErrors* ready = last_of(ready_[device])) return ready;
      if (ended_[device].size() < kWorthAWait) return make();
      ended.swap(ended_[device]);
    }
    const bool cleared = clear(ended);
    const std::lock_guard<std::mutex> lock(mutex_);
    auto& list = cleared ? ready_[device] : ended_[device];
    list.insert(list.end(), ended.begin(), ended.end());
    DeviceErrors* ready = cleared ? last_of(list) : nullptr;
    return ready != nullptr ? ready : make();
  }

  void give_back(int device, DeviceErrors* errors) {
    if (errors->captured) return;  // a graph may record in it as long as the process runs
    const std::lock_guard<std::mutex> lock(mutex_);
    ended_[device].push_back(errors);
  }

 private:
  static constexpr size_t kWorthAWait = 64;  // records: one wait is enough for all

  static DeviceErrors* last_of(std::vector<DeviceErrors*>& list) {
    if (list.empty()) return nullptr;
    DeviceErrors* last = list.back();
    list.pop_back();
    return last;
  }

  // False if the device cannot be waited for, such as while another thread captures a graph.
  static bool clear(const std::vector<DeviceErrors*>& ended) {
    cudaError_t error = cudaDeviceSynchronize();
    for (DeviceErrors* errors : ended) {
      for (ErrorRecord& each : errors->records) {
        if (error != cudaSuccess) break;
        each.raised = each.record->sequence;
        error = cudaMemset(&each.slot->claimed, 0, sizeof(each.slot->claimed));
      }
    }
    // The memsets are done when the first kernel of another stream runs.
    if (error == cudaSuccess) error = cudaStreamSynchronize(nullptr);
    if (error != cudaSuccess) cudaGetLastError();
    return error == cudaSuccess;
  }

  static DeviceErrors* make() {
    auto made = std::make_unique<DeviceErrors>();
    for (ErrorRecord& each : made->records) {
      TORCH_OPS_CHECK_CUDA(cudaHostAlloc(reinterpret_cast<void**>(&each.record),
                                         sizeof(IndexErrorRecord),
                                         cudaHostAllocMapped | cudaHostAllocPortable));
      *each.record = IndexErrorRecord{};
      IndexErrorSlot slot{};
      TORCH_OPS_CHECK_CUDA(
          cudaHostGetDevicePointer(reinterpret_cast<void**>(&slot.record), each.record, 0));
      TORCH_OPS_CHECK_CUDA(cudaMalloc(reinterpret_cast<void**>(&each.slot), sizeof(slot)));
      TORCH_OPS_CHECK_CUDA(cudaMemcpy(each.slot, &slot, sizeof(slot), cudaMemcpyHostToDevice));
    }
    // A copy from pageable memory may be in progress when cudaMemcpy returns.
    TORCH_OPS_CHECK_CUDA(cudaStreamSynchronize(nullptr));
    return made.release();
  }

  std::mutex mutex_;
  std::vector<DeviceErrors*> ended_[kMaxDevices];  // of threads that have ended
  std::vector<DeviceErrors*> ready_[kMaxDevices];  // those of them that were cleared
};

ErrorPool& error_pool() {
  static auto* const pool = new ErrorPool;  // threads may end after static variables do
  return *pool;
}

// The memory of pinned_alloc. A child of fork() must free it neither by CUDA nor as plain memory.
struct PinnedMemory {
  std::mutex mutex;
  std::unordered_set<void*> blocks;
};

PinnedMemory& pinned_memory() {
  static auto* const all = new PinnedMemory;  // may be freed after static variables end
  return *all;
}

// CUDA does not work in a child of a process that has used it.
std::atomic<int32_t> known_device_count{-1};  // -1: CUDA was not asked
std::atomic<bool> lost_by_fork{false};

[[maybe_unused]] const int fork_handlers =
    pthread_atfork([] { pinned_memory().mutex.lock(); }, [] { pinned_memory().mutex.unlock(); },
                   [] {
                     pinned_memory().mutex.unlock();
                     if (known_device_count.load() <= 0) return;
                     known_device_count.store(0);
                     lost_by_fork.store(true);
                   });

struct ThreadErrors {
  DeviceErrors* on[kMaxDevices] = {};
  bool queued[kMaxDevices] = {};  // the devices on which calls were queued

  ~ThreadErrors() {
    if (lost_by_fork.load()) return;
    for (int device = 0; device < kMaxDevices; ++device) {
      if (on[device] != nullptr) error_pool().give_back(device, on[device]);
    }
  }
};

thread_local ThreadErrors thread_errors;

int current_device() {
  int device = 0;
  TORCH_OPS_CHECK_CUDA(cudaGetDevice(&device));
  return device;
}

DeviceErrors& current_errors() {
  const int device = current_device();
  DeviceErrors*& errors = thread_errors.on[device];
  if (errors == nullptr) errors = error_pool().take(device);
  return *errors;
}

// All kernels are compiled for the same devices: this one represents all.
__global__ void any_kernel() {}

// cudaSuccess if the current device can run this library's kernels. Makes its context.
cudaError_t find_kernels() {
  static std::atomic<bool> found[kMaxDevices];
  int device = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess && !found[device]) {
    cudaFuncAttributes attributes;
    error = cudaFuncGetAttributes(&attributes, any_kernel);
    if (error == cudaSuccess) found[device] = true;
  }
  if (error != cudaSuccess) cudaGetLastError();
  return error;
}

}  // namespace

void rethrow_cuda_error(const CudaError& error) {
  switch (error.code()) {
    case cudaErrorMemoryAllocation:
      throw Failure(TORCH_OPS_OUT_OF_MEMORY, error.what());
    case cudaErrorNoDevice:
    case cudaErrorInsufficientDriver:
      throw Failure(TORCH_OPS_NO_DEVICE, error.what());
    default:
      throw Failure(TORCH_OPS_CUDA_ERROR, error.what());
  }
}

int32_t device_count() {
  const int32_t known = known_device_count.load();
  if (known >= 0) return known;
  int found = 0;
  if (cudaGetDeviceCount(&found) != cudaSuccess) {
    cudaGetLastError();
    found = 0;
  }
  const int32_t count = std::min(found, kMaxDevices);
  known_device_count.store(count);
  return count;
}

bool is_usable() { return device_count() > 0 && find_kernels() == cudaSuccess; }

void need_device() {
  if (device_count() > 0) return;
  if (lost_by_fork.load()) {
    fail(TORCH_OPS_NO_DEVICE,
         "a CUDA device is asked for, but this process was forked from one that had used CUDA, "
         "and CUDA does not work in such a child: start it by exec or spawn instead");
  }
  int found = 0;
  const cudaError_t error = cudaGetDeviceCount(&found);
  cudaGetLastError();
  fail(TORCH_OPS_NO_DEVICE,
       "a CUDA device is asked for, but there is none: ", cudaGetErrorName(error), " (",
       cudaGetErrorString(error), ")");
}

void need_kernels() {
  need_device();
  const cudaError_t error = find_kernels();
  switch (error) {
    case cudaErrorInvalidDeviceFunction:
    case cudaErrorInvalidKernelImage:
    case cudaErrorInvalidPtx:
    case cudaErrorJitCompilationDisabled:
    case cudaErrorJitCompilerNotFound:
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorUnsupportedPtxVersion: {
      int major = 0, minor = 0;
      const int device = current_device();
      cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
      cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
      fail(TORCH_OPS_NO_DEVICE, "a CUDA device is asked for, but this library (",
           TORCH_OPS_BUILD_CONFIG, ") has no kernels for device ", device,
           ", of compute capability ", major, ".", minor, ": ", cudaGetErrorName(error));
    }
    default:
      TORCH_OPS_CHECK_CUDA(error);
  }
}

bool is_pinned(const void* memory) {
  if (memory == nullptr || device_count() == 0) return false;
  cudaPointerAttributes attributes{};
  if (cudaPointerGetAttributes(&attributes, memory) != cudaSuccess) {
    cudaGetLastError();
    return false;
  }
  return attributes.type == cudaMemoryTypeHost;
}

void* pinned_alloc(int64_t bytes) {
  return translated([&] {
    void* memory = nullptr;
    TORCH_OPS_CHECK_CUDA(cudaHostAlloc(&memory, std::max<int64_t>(bytes, 1),
                                       cudaHostAllocMapped | cudaHostAllocPortable));
    const std::lock_guard<std::mutex> lock(pinned_memory().mutex);
    pinned_memory().blocks.insert(memory);
    return memory;
  });
}

bool pinned_free(void* memory) {
  {
    const std::lock_guard<std::mutex> lock(pinned_memory().mutex);
    if (pinned_memory().blocks.erase(memory) == 0) return false;
  }
  if (!lost_by_fork.load()) translated([&] { TORCH_OPS_CHECK_CUDA(cudaFreeHost(memory)); });
  return true;
}

DeviceScope::DeviceScope(int device) : previous_(current_device()) {
  if (device == previous_) {
    previous_ = -1;
  } else {
    TORCH_OPS_CHECK_CUDA(cudaSetDevice(device));
  }
}

DeviceScope::~DeviceScope() {
  if (previous_ >= 0) cudaSetDevice(previous_);
}

StreamScope::StreamScope(cudaStream_t stream) : previous_(the_stream) { the_stream = stream; }

StreamScope::~StreamScope() { the_stream = previous_; }

IndexErrorSite error_site(const EntryKind& kind, Reports reports, int64_t first) {
  IndexErrorSite site{};
  if (!IndexRule(kind.mode, kind.bound).raises()) return site;
  DeviceErrors& errors = current_errors();
  if (reports == Reports::kLater) {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    TORCH_OPS_CHECK_CUDA(cudaStreamIsCapturing(the_stream, &status));
    if (status != cudaStreamCaptureStatusNone) errors.captured = true;
  }
  site.slot = errors.records[static_cast<int>(reports)].slot;
  site.axis_size = kind.bound;
  if (kind.is_point) site.first_axis = 0;
  site.from_end = kind.mode == IndexMode::kFromEnd;
  // This library names an entry by its flat position, and does not need the index's sizes.
  site.outer = 1;
  site.sizes[0] = first;
  return site;
}

void raise_recorded(Reports reports, cudaStream_t stream) {
  ErrorRecord& errors = current_errors().records[static_cast<int>(reports)];
  const uint32_t recorded = *static_cast<const volatile uint32_t*>(&errors.record->sequence);
  if (recorded == errors.raised) return;
  errors.raised = recorded;
  const IndexErrorRecord& record = *errors.record;
  const IndexErrorSite& site = record.site;
  const bool from_end = site.from_end != 0;
  const bool is_point = site.first_axis >= 0;
  const EntryKind kind{site.axis_size, from_end ? IndexMode::kFromEnd : IndexMode::kRaise,
                       is_point};
  const BadEntry entry{site.sizes[0] + record.row, kind.entry_of(record.value, site.axis_size),
                       site.axis_size, from_end, is_point ? record.axis : -1};
  TORCH_OPS_CHECK_CUDA(
      cudaMemsetAsync(&errors.slot->claimed, 0, sizeof(errors.slot->claimed), stream));
  // The next call may be on another stream.
  TORCH_OPS_CHECK_CUDA(cudaStreamSynchronize(stream));
  fail_at_entry(entry);
}

int device_of(const Arrays& arrays) {
  const char* known_by = nullptr;
  int device = -1;
  for (const Array& array : arrays) {
    if (array.bytes == 0) continue;
    cudaPointerAttributes attributes{};
    TORCH_OPS_CHECK_CUDA(cudaPointerGetAttributes(&attributes, array.pointer));
    if (attributes.type == cudaMemoryTypeUnregistered) {
      fail(TORCH_OPS_WRONG_MEMORY, array.name,
           " must be in memory that the device can reach, for TORCH_OPS_DEVICE, but it is in "
           "pageable host memory");
    }
    if (attributes.type != cudaMemoryTypeDevice) continue;
    if (known_by != nullptr && attributes.device != device) {
      fail(TORCH_OPS_WRONG_MEMORY, "all arrays must be on one device, but ", known_by,
           " is on device ", device, " and ", array.name, " is on device ", attributes.device);
    }
    known_by = array.name;
    device = attributes.device;
  }
  return known_by != nullptr ? device : current_device();
}

void with_device(int device, const std::function<void()>& body) {
  translated([&] {
    need_device();
    const DeviceScope scope(device);
    body();
  });
}

// If a time is wanted, waits for the call, and raises the errors that its kernels recorded.
void run_there(const Arrays& arrays, const EntryKind& kind, torch_ops_stream stream,
               float* milliseconds, const Launch& launch) {
  const Pointers at = pointers_of(arrays);
  translated([&] {
    need_device();
    const int device = device_of(arrays);
    const DeviceScope device_scope(device);
    need_kernels();
    const auto on = static_cast<cudaStream_t>(stream);
    const StreamScope stream_scope(on);
    if (milliseconds == nullptr) {
      thread_errors.queued[device] = true;  // check_errors waits for it there
      return launch(at, error_site(kind, Reports::kLater));
    }
    *milliseconds = timed(on, [&] { launch(at, error_site(kind, Reports::kNow)); });
    raise_recorded(Reports::kNow, on);
  });
}

void check_errors(torch_ops_stream stream) {
  translated([&] {
    const auto on = static_cast<cudaStream_t>(stream);
    TORCH_OPS_CHECK_CUDA(cudaStreamSynchronize(on));
    for (int device = 0; device < device_count(); ++device) {
      if (!thread_errors.queued[device]) continue;
      const DeviceScope scope(device);
      // Each device has its own default stream: the one above may be another's.
      TORCH_OPS_CHECK_CUDA(cudaStreamSynchronize(on));
      if (thread_errors.on[device] == nullptr) continue;
      // `stream` may be another device's.
      raise_recorded(Reports::kLater, nullptr);
    }
  });
}

}  // namespace gpu
}  // namespace torch_ops
