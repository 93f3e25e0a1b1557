// The records of bad index entries, one for each device: host code alone. How they are written and
// read is told in docs/architecture.md.
#include <ATen/cuda/CUDAContextLight.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAGuard.h>
#include <torch/library.h>

#include <array>
#include <atomic>
#include <cstring>
#include <limits>
#include <mutex>
#include <optional>
#include <string>

#include "common/index_errors.h"
#include "common/indexing.h"
#include "runtime/runtime.h"

namespace torch_ops {
namespace {

using c10::DeviceIndex;
using c10::cuda::CUDAStreamCaptureModeGuard;

// Is never freed: kernels that run and graphs that were captured hold its addresses.
struct DeviceErrors {
  IndexErrorSlot* slot = nullptr;
  const IndexErrorRecord* record = nullptr;
  std::atomic<uint32_t> raised{0};  // the number of the last error that was raised

  bool pending() const {
    return *static_cast<const volatile uint32_t*>(&record->sequence) != raised.load();
  }
};

bool is_capturing() {
  return c10::cuda::currentStreamCaptureStatusMayInitCtx() != c10::cuda::CaptureStatus::None;
}

// Waits for the current stream. The capture mode is relaxed here and below, wherever something is
// allocated or waited for: by default a capture in one thread forbids that to all others.
void synchronize() {
  const CUDAStreamCaptureModeGuard relaxed(cudaStreamCaptureModeRelaxed);
  C10_CUDA_CHECK(cudaStreamSynchronize(at::cuda::getCurrentCUDAStream()));
}

std::string describe(const IndexErrorRecord& record) {
  const IndexErrorSite& site = record.site;
  const int64_t position = record.row / site.entries / site.outer * site.entries +  // the batch
                           record.row % site.entries;
  std::optional<at::IntArrayRef> sizes;
  if (site.rank <= kMaxNamedRank) sizes = at::IntArrayRef(site.sizes, site.rank);
  const bool from_end = site.from_end != 0;
  const std::string entry =
      site.coordinates > 0
          ? indexing::name_coordinate(sizes, position, record.coordinate, record.axis, from_end)
      : sizes ? indexing::name_entry(site.op, *sizes, position)
              : c10::str("entry ", position, " of ", indexing::names_of(site.op).index,
                         " (counted in row-major order)");
  const bool resolved = from_end && site.coordinates == 0 && record.value < 0;
  const int64_t value = record.value - (resolved ? site.axis_size : 0);
  return indexing::out_of_range_text(site.op, entry, value, site.axis_size, from_end);
}

class CudaIndexErrors final : public IndexErrors {
 public:
  IndexErrorSlot* before_launch(bool wait) override {
    const DeviceIndex device = c10::cuda::current_device();
    DeviceErrors* errors = devices_[device].load();
    if (errors == nullptr) {
      if (is_capturing()) return nullptr;
      errors = &allocate(device);
    }
    // What is pending then is not this call's.
    if ((wait || sync_errors) && !is_capturing()) synchronize();
    // The usual call ends here, after one read of the host's own memory.
    if (errors->pending() && !is_capturing()) raise(device, *errors, Found::kEarlier);
    return errors->slot;
  }

  void after_launch(bool wait) override {
    if (!(wait || sync_errors) || is_capturing()) return;
    const DeviceIndex device = c10::cuda::current_device();
    DeviceErrors* errors = devices_[device].load();
    if (errors == nullptr) return;
    synchronize();
    if (errors->pending()) raise(device, *errors, Found::kNow);
  }

  void check(DeviceIndex device) {
    DeviceErrors* errors = devices_[device].load();
    if (errors == nullptr) return;
    const c10::cuda::CUDAGuard guard(device);
    TORCH_CHECK(!is_capturing(), "check_errors: the current stream of cuda:", int{device},
                " is capturing a graph, so nothing can wait for the device. Call it after the "
                "graph's replay.");
    const CUDAStreamCaptureModeGuard relaxed(cudaStreamCaptureModeRelaxed);
    C10_CUDA_CHECK(cudaDeviceSynchronize());
    if (errors->pending()) raise(device, *errors, Found::kEarlier);
  }

  void check_all() {
    for (size_t device = 0; device < devices_.size(); ++device) {
      check(static_cast<DeviceIndex>(device));
    }
  }

 private:
  enum class Found { kEarlier, kNow };

  DeviceErrors& allocate(DeviceIndex device) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (DeviceErrors* errors = devices_[device].load()) return *errors;
    const CUDAStreamCaptureModeGuard relaxed(cudaStreamCaptureModeRelaxed);
    // Of CUDA itself, not of torch's pools: it is to outlive them, and to belong to no graph's.
    void* record = nullptr;
    C10_CUDA_CHECK(cudaHostAlloc(&record, sizeof(IndexErrorRecord),
                                 cudaHostAllocMapped | cudaHostAllocPortable));
    std::memset(record, 0, sizeof(IndexErrorRecord));
    IndexErrorSlot slot{};
    void* mapped = nullptr;
    C10_CUDA_CHECK(cudaHostGetDevicePointer(&mapped, record, 0));
    slot.record = static_cast<IndexErrorRecord*>(mapped);

    auto* errors = new DeviceErrors;
    errors->record = static_cast<const IndexErrorRecord*>(record);
    C10_CUDA_CHECK(cudaMalloc(&errors->slot, sizeof(slot)));
    const auto stream = at::cuda::getCurrentCUDAStream();
    C10_CUDA_CHECK(
        cudaMemcpyAsync(errors->slot, &slot, sizeof(slot), cudaMemcpyHostToDevice, stream));
    C10_CUDA_CHECK(cudaStreamSynchronize(stream));  // kernels on other streams use it next
    devices_[device] = errors;
    return *errors;
  }

  // Raises what is pending and makes room for the next, unless another thread has just done so.
  void raise(DeviceIndex device, DeviceErrors& errors, Found found) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!errors.pending()) return;
    const CUDAStreamCaptureModeGuard relaxed(cudaStreamCaptureModeRelaxed);
    // Kernels of the failed call that still ran would record once more, and a good retry be blamed.
    C10_CUDA_CHECK(cudaDeviceSynchronize());
    const IndexErrorRecord record = *errors.record;
    errors.raised = record.sequence;
    // After the record was read: from here on it may be written.
    const auto stream = at::cuda::getCurrentCUDAStream();
    C10_CUDA_CHECK(cudaMemsetAsync(&errors.slot->claimed, 0, sizeof(errors.slot->claimed), stream));
    C10_CUDA_CHECK(cudaStreamSynchronize(stream));
    const std::string where =
        found == Found::kNow ? ""
                             : c10::str(" (Found on cuda:", int{device},
                                        " by an earlier call; torch_ops.set_error_mode(\"sync\") "
                                        "raises at the call itself.)");
    TORCH_CHECK_INDEX(false, describe(record), where);
  }

  std::array<std::atomic<DeviceErrors*>, std::numeric_limits<DeviceIndex>::max() + 1> devices_{};
  std::mutex mutex_;
};

CudaIndexErrors& cuda_index_errors() {
  static auto* const errors = new CudaIndexErrors;  // outlives all that may call it
  return *errors;
}

int64_t address() {
  return reinterpret_cast<int64_t>(&static_cast<IndexErrors&>(cuda_index_errors()));
}

}  // namespace

void check_cuda_errors(std::optional<int64_t> device) {
  if (!device) return cuda_index_errors().check_all();
  cuda_index_errors().check(static_cast<DeviceIndex>(*device));
}

// How the ops' modules find the records: index_errors() in common/index_errors.h.
TORCH_LIBRARY_FRAGMENT(torch_ops, m) { m.def("_index_errors", address); }

}  // namespace torch_ops
