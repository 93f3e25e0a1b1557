// Common code of the calls on a device: the device and stream of a call, its errors, its time.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "c_api/frame/arguments.h"
#include "common/cuda/cuda_check.h"
#include "common/cuda/launch.cuh"
#include "common/indexing/index_error.h"

namespace torch_ops::gpu {

constexpr int kMaxDevices = 64;

// Runs a call, and turns errors of CUDA into the library's.
void rethrow_cuda_error(const CudaError& error);
template <class Body>
auto translated(Body&& body) {
  try {
    return body();
  } catch (const CudaError& error) {
    rethrow_cuda_error(error);
    throw;
  }
}

// Fails with TORCH_OPS_NO_DEVICE if there is no device.
void need_device();
// The same if the current device has no kernels of this library.
void need_kernels();

// Makes a device current for its scope.
class DeviceScope {
 public:
  explicit DeviceScope(int device);
  DeviceScope(const DeviceScope&) = delete;
  ~DeviceScope();

 private:
  int previous_;
};

// Makes a stream the one that the calling thread launches on (common/cuda/launch.cuh) for its
// scope.
class StreamScope {
 public:
  explicit StreamScope(cudaStream_t stream);
  StreamScope(const StreamScope&) = delete;
  ~StreamScope();

 private:
  cudaStream_t previous_;
};

// Where kernels record an entry out of range. Each thread has two per device, so that an error of a
// call that does not wait is not taken for the error of one that does.
enum class Reports { kLater, kNow };
// The argument of a launch on the current stream, whose first entry is the index's `first`th.
IndexErrorSite error_site(const EntryKind& kind, Reports reports, int64_t first = 0);
// Once the kernels are done: raises the error recorded on the current device, and makes room for
// the next.
void raise_recorded(Reports reports, cudaStream_t stream);

// The device that the arrays are on, which must be able to access all of them; the current device
// if that is not known.
int device_of(const Arrays& arrays);

}  // namespace torch_ops::gpu
