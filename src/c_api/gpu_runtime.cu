#include "c_api/gpu_runtime.cuh"

#include <cstring>
#include <memory>
#include <mutex>
#include <vector>

#include "c_api/gpu.h"

namespace torch_ops {
namespace {

thread_local cudaStream_t the_stream = nullptr;

}  // namespace

cudaStream_t current_stream() { return the_stream; }

DeviceLimits current_device_limits() {
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
    limits[device] = {ask(cudaDevAttrMaxSharedMemoryPerBlockOptin), ask(cudaDevAttrL2CacheSize),
                      ask(cudaDevAttrMultiProcessorCount)};
  });
  return limits[device];
}

namespace gpu {
namespace {

// Of one thread on one device.
struct ErrorRecord {
  IndexErrorSlot* slot = nullptr;  // in the device's memory
  IndexErrorRecord* record = nullptr;
  uint32_t raised = 0;  // the number of the last error that was raised
};

struct DeviceErrors {
  ErrorRecord records[2];  // by Reports
};

// Records of threads that have ended are used again, and never freed: kernels that run may hold
// their addresses.
class ErrorPool {
 public:
  DeviceErrors* take(int device) {
    const std::lock_guard<std::mutex> lock(mutex_);
    auto& free = free_[device];
    if (free.empty()) return make();
    DeviceErrors* errors = free.back();
    free.pop_back();
    return errors;
  }

  void give_back(int device, DeviceErrors* errors) {
    const std::lock_guard<std::mutex> lock(mutex_);
    free_[device].push_back(errors);
  }

 private:
  static DeviceErrors* make() {
    auto made = std::make_unique<DeviceErrors>();
    for (ErrorRecord& each : made->records) {
      TORCH_OPS_CHECK_CUDA(cudaHostAlloc(reinterpret_cast<void**>(&each.record),
                                         sizeof(IndexErrorRecord),
                                         cudaHostAllocMapped | cudaHostAllocPortable));
      std::memset(each.record, 0, sizeof(IndexErrorRecord));
      IndexErrorSlot slot{};
      TORCH_OPS_CHECK_CUDA(
          cudaHostGetDevicePointer(reinterpret_cast<void**>(&slot.record), each.record, 0));
      TORCH_OPS_CHECK_CUDA(cudaMalloc(reinterpret_cast<void**>(&each.slot), sizeof(slot)));
      TORCH_OPS_CHECK_CUDA(cudaMemcpy(each.slot, &slot, sizeof(slot), cudaMemcpyHostToDevice));
    }
    return made.release();
  }

  std::mutex mutex_;
  std::vector<DeviceErrors*> free_[kMaxDevices];
};

ErrorPool& error_pool() {
  static auto* const pool = new ErrorPool;  // threads may end after static variables do
  return *pool;
}

struct ThreadErrors {
  DeviceErrors* on[kMaxDevices] = {};

  ~ThreadErrors() {
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

ErrorRecord& current_errors(Reports reports) {
  const int device = current_device();
  DeviceErrors*& errors = thread_errors.on[device];
  if (errors == nullptr) errors = error_pool().take(device);
  return errors->records[static_cast<int>(reports)];
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
  static const int32_t count = [] {
    int found = 0;
    if (cudaGetDeviceCount(&found) == cudaSuccess) return std::min(found, kMaxDevices);
    cudaGetLastError();
    return 0;
  }();
  return count;
}

void need_device() {
  if (device_count() > 0) return;
  int found = 0;
  const cudaError_t error = cudaGetDeviceCount(&found);
  cudaGetLastError();
  fail(TORCH_OPS_NO_DEVICE,
       "a CUDA device is asked for, but there is none: ", cudaGetErrorName(error), " (",
       cudaGetErrorString(error), ")");
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
    return memory;
  });
}

void pinned_free(void* memory) {
  translated([&] { TORCH_OPS_CHECK_CUDA(cudaFreeHost(memory)); });
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

IndexErrorSlot* error_slot(Reports reports) { return current_errors(reports).slot; }

IndexErrorSite error_site(const RowCall& call, Reports reports, int64_t first) {
  IndexErrorSite site{};
  site.slot = error_slot(reports);
  site.axis_size = call.axis_size;
  site.outer = 1;
  site.entries = call.entries;
  site.rank = 1;
  site.sizes[0] = first;  // this library names an entry by its flat position, and needs no sizes
  return site;
}

void raise_recorded(Reports reports, cudaStream_t stream) {
  ErrorRecord& errors = current_errors(reports);
  const uint32_t recorded = *static_cast<const volatile uint32_t*>(&errors.record->sequence);
  if (recorded == errors.raised) return;
  errors.raised = recorded;
  const IndexErrorRecord& record = *errors.record;
  const IndexFailure failure(record.site.sizes[0] + record.row, record.value,
                             record.site.axis_size);
  TORCH_OPS_CHECK_CUDA(
      cudaMemsetAsync(&errors.slot->claimed, 0, sizeof(errors.slot->claimed), stream));
  // The next call may be on another stream.
  TORCH_OPS_CHECK_CUDA(cudaStreamSynchronize(stream));
  throw failure;
}

int device_of(std::initializer_list<DeviceArray> arrays) {
  const char* known_by = nullptr;
  int device = -1;
  for (const DeviceArray& array : arrays) {
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

void check_errors(torch_ops_stream stream) {
  translated([&] {
    TORCH_OPS_CHECK_CUDA(cudaStreamSynchronize(static_cast<cudaStream_t>(stream)));
    for (int device = 0; device < device_count(); ++device) {
      if (thread_errors.on[device] == nullptr) continue;
      const DeviceScope scope(device);
      // The default stream of the record's own device: `stream` may be another's.
      raise_recorded(Reports::kLater, nullptr);
    }
  });
}

}  // namespace gpu
}  // namespace torch_ops
