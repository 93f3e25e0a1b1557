// Common code of the calls on a device: the device and stream of a call, its errors, its time.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "c_api/frame/arguments.h"
#include "common/cuda/cuda_check.h"
#include "common/cuda/launch.cuh"
#include "common/cuda/timing.h"
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

// A call of this thread is queued on the device: check_errors waits for it there.
void note_queued_call(int device);

// The device that the arrays are on, which must be able to access all of them; the current device
// if that is not known.
int device_of(const Arrays& arrays);

// A call on device pointers: queues what `launch` launches. If a time is wanted, waits for it,
// and raises the errors that the kernels recorded.
template <class Launch>
void queue(const Arrays& arrays, torch_ops_stream stream, float* milliseconds, Launch&& launch) {
  translated([&] {
    need_device();
    const int device = device_of(arrays);
    const DeviceScope device_scope(device);
    need_kernels();
    const auto on = static_cast<cudaStream_t>(stream);
    const StreamScope stream_scope(on);
    if (milliseconds == nullptr) {
      note_queued_call(device);
      return launch(Reports::kLater);
    }
    *milliseconds = timed(on, [&] { launch(Reports::kNow); });
    raise_recorded(Reports::kNow, on);
  });
}

}  // namespace torch_ops::gpu
