// The records of bad index entries on each device: host code alone. How they are written and read
// is told in docs/internals/kernels/index_errors.md.
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAGuard.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <limits>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "common/gather_family/index_errors.h"
#include "common/gather_family/indexing.h"
#include "torch_cuda/error_record.h"
#include "torch_cuda/parts.h"

namespace torch_ops {
namespace {

std::atomic<bool> sync_errors{false};

using c10::DeviceIndex;
using c10::cuda::CUDAStream;
using c10::cuda::CUDAStreamCaptureModeGuard;

constexpr int kMostDevices = std::numeric_limits<DeviceIndex>::max() + 1;

// No other stream is waited for, and no device: CUDA ends every capture on a device that is waited
// for. The capture mode is relaxed here and below, wherever something is allocated or waited for:
// by default a capture in one thread forbids that to all others.
void synchronize(cudaStream_t stream) {
  const CUDAStreamCaptureModeGuard relaxed(cudaStreamCaptureModeRelaxed);
  C10_CUDA_CHECK(cudaStreamSynchronize(stream));
}

// CUDA captures no default stream, so that the usual call need not ask.
bool is_default(const CUDAStream& stream) { return stream.id() == 0; }

bool is_capturing(const CUDAStream& stream) {
  if (is_default(stream)) return false;
  cudaStreamCaptureStatus status{};
  C10_CUDA_CHECK(cudaStreamIsCapturing(stream, &status));
  return status != cudaStreamCaptureStatusNone;
}

// Is it a stream that torch has not made? Such a one may be destroyed at any time.
bool is_external(const CUDAStream& stream) {
  return !is_default(stream) && reinterpret_cast<cudaStream_t>(stream.id()) == stream.stream();
}

// All streams that torch deals out on a device. It deals them out in turn, and tells of no end: the
// first call here draws until no new one comes.
std::vector<CUDAStream> draw_streams(DeviceIndex device) {
  constexpr int kInVain = 64;  // twice what torch has for a priority
  std::vector<CUDAStream> streams;
  for (int priority = 0; priority < c10::cuda::max_compile_time_stream_priorities; ++priority) {
    for (int known = 0; known < kInVain; ++known) {
      const CUDAStream stream = c10::cuda::getStreamFromPool(-priority, device);
      if (std::find(streams.begin(), streams.end(), stream) != streams.end()) continue;
      streams.push_back(stream);
      known = 0;
    }
  }
  return streams;
}

ErrorRecord* make_record(cudaStream_t stream) {
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
  IndexErrorSlot* on_device = nullptr;
  C10_CUDA_CHECK(cudaMalloc(&on_device, sizeof(slot)));
  C10_CUDA_CHECK(cudaMemcpyAsync(on_device, &slot, sizeof(slot), cudaMemcpyHostToDevice, stream));
  C10_CUDA_CHECK(cudaStreamSynchronize(stream));  // kernels on other streams use it next
  return new ErrorRecord(on_device, static_cast<const IndexErrorRecord*>(record));
}

// Is never freed, as its records are not.
struct DeviceErrors {
  ErrorRecord* launched;           // of calls that do not wait
  ErrorRecord* captured;           // of CUDA graphs
  std::vector<ErrorRecord*> free;  // for calls that wait: each has one to itself
  std::vector<CUDAStream> streams;
  std::atomic<bool> on_streams{false};  // was there a call on another stream than the default?
  // After all calls on external streams. Both are made for the first of these.
  cudaStream_t follower = nullptr;
  cudaEvent_t launches = nullptr;
  std::mutex mutex;  // of what is not const or atomic

  bool pending() const { return launched->pending() || captured->pending(); }
};

std::string describe(const IndexErrorRecord& record) {
  const IndexErrorSite& site = record.site;
  const int64_t position = record.row / site.entries / site.outer * site.entries +  // the batch
                           record.row % site.entries;
  std::optional<at::IntArrayRef> sizes;
  if (site.rank <= kMaxNamedRank) sizes = at::IntArrayRef(site.sizes, site.rank);
  const bool from_end = site.from_end != 0;
  const bool is_point = site.first_axis >= 0;
  const std::string entry =
      is_point ? indexing::name_coordinate(sizes, position, record.axis - site.first_axis,
                                           record.axis, from_end)
      : sizes  ? indexing::name_entry(site.op, *sizes, position)
               : c10::str("entry ", position, " of ", indexing::names_of(site.op).index,
                          " (counted in row-major order)");
  const bool resolved = from_end && !is_point && record.value < 0;
  const int64_t value = record.value - (resolved ? site.axis_size : 0);
  return indexing::out_of_range_text(site.op, entry, value, site.axis_size, from_end);
}

class CudaIndexErrors final : public IndexErrors {
 public:
  Place before_launch(bool wait) override {
    const CUDAStream stream = c10::cuda::getCurrentCUDAStream();
    const bool capturing = is_capturing(stream);
    DeviceErrors* errors = devices_[stream.device_index()].load();
    if (errors == nullptr) {
      if (capturing) return {};
      errors = &allocate(stream);
    }
    if (!is_default(stream) && !errors->on_streams) errors->on_streams = true;
    // A graph holds the place for ever, so the errors that were raised count from 0 there.
    if (capturing) return {errors->captured->slot()};
    wait = wait || sync_errors;
    if (wait) synchronize(stream);  // what is pending then is not this call's
    // The usual call ends here, after a look at the host's own memory.
    if (errors->pending()) raise(stream, *errors);
    if (wait) {
      ErrorRecord* own = take_own(stream, *errors);
      return {own->slot(), own->raised(), own};
    }
    const ErrorRecord& shared = *errors->launched;
    return {shared.slot(), shared.raised(), nullptr, is_external(stream)};
  }

  void after_launch(const Place& place) override {
    const CUDAStream stream = c10::cuda::getCurrentCUDAStream();
    DeviceErrors& errors = *devices_[stream.device_index()].load();
    if (place.own == nullptr) return follow(stream, errors);
    const std::optional<IndexErrorRecord> found = give_back(place, stream, errors);
    if (found) TORCH_CHECK_INDEX(false, describe(*found));
  }

  void abandon(const Place& place) noexcept override {
    // The record is lost where the wait fails: kernels may still write it.
    try {
      const CUDAStream stream = c10::cuda::getCurrentCUDAStream();
      give_back(place, stream, *devices_[stream.device_index()].load());
    } catch (const std::exception&) {
    }
  }

  void check(DeviceIndex device) {
    DeviceErrors* errors = devices_[device].load();
    if (errors == nullptr) return;
    const c10::cuda::CUDAGuard guard(device);
    const CUDAStream stream = c10::cuda::getCurrentCUDAStream();
    TORCH_CHECK(!is_capturing(stream), "check_errors: the current stream of cuda:", int{device},
                " is capturing a graph, so nothing can wait for the device. Call it after the "
                "graph's replay.");
    wait_for_streams(stream, *errors);
    if (errors->pending()) raise(stream, *errors);
  }

 private:
  DeviceErrors& allocate(const CUDAStream& stream) {
    const std::lock_guard<std::mutex> lock(mutex_);
    auto& device = devices_[stream.device_index()];
    if (DeviceErrors* errors = device.load()) return *errors;
    auto* errors = new DeviceErrors;
    errors->launched = make_record(stream);
    errors->captured = make_record(stream);
    device = errors;
    return *errors;
  }

  static ErrorRecord* take_own(const CUDAStream& stream, DeviceErrors& errors) {
    {
      const std::lock_guard<std::mutex> lock(errors.mutex);
      if (!errors.free.empty()) {
        ErrorRecord* own = errors.free.back();
        errors.free.pop_back();
        return own;
      }
    }
    return make_record(stream);
  }

  // Waits for the call that has a record to itself, and returns its error.
  static std::optional<IndexErrorRecord> give_back(const Place& place, const CUDAStream& stream,
                                                   DeviceErrors& errors) {
    synchronize(stream);
    auto* own = static_cast<ErrorRecord*>(place.own);
    std::optional<IndexErrorRecord> found;
    if (own->pending()) found = own->take();
    const std::lock_guard<std::mutex> lock(errors.mutex);
    errors.free.push_back(own);
    return found;
  }

  // An external stream may be gone when check() asks, so one of our own waits for its calls.
  static void follow(const CUDAStream& stream, DeviceErrors& errors) {
    const std::lock_guard<std::mutex> lock(errors.mutex);
    if (errors.follower == nullptr) {
      const CUDAStreamCaptureModeGuard relaxed(cudaStreamCaptureModeRelaxed);
      C10_CUDA_CHECK(cudaEventCreateWithFlags(&errors.launches, cudaEventDisableTiming));
      C10_CUDA_CHECK(cudaStreamCreateWithFlags(&errors.follower, cudaStreamNonBlocking));
    }
    C10_CUDA_CHECK(cudaEventRecord(errors.launches, stream));
    C10_CUDA_CHECK(cudaStreamWaitEvent(errors.follower, errors.launches, 0));
  }

  // Stream by stream, but for those that capture: to wait for the device would end their capture.
  static void wait_for_streams(const CUDAStream& current, DeviceErrors& errors) {
    std::vector<CUDAStream> streams{c10::cuda::getDefaultCUDAStream(current.device_index()),
                                    current};
    cudaStream_t follower = nullptr;
    {
      const std::lock_guard<std::mutex> lock(errors.mutex);
      if (errors.on_streams && errors.streams.empty()) {
        const CUDAStreamCaptureModeGuard relaxed(cudaStreamCaptureModeRelaxed);
        errors.streams = draw_streams(current.device_index());
      }
      streams.insert(streams.end(), errors.streams.begin(), errors.streams.end());
      follower = errors.follower;
    }
    for (const CUDAStream& stream : streams) {
      if (!is_capturing(stream)) synchronize(stream);
    }
    if (follower != nullptr) synchronize(follower);
  }

  static std::optional<IndexErrorRecord> take_pending(const CUDAStream& stream,
                                                      DeviceErrors& errors) {
    const std::lock_guard<std::mutex> lock(errors.mutex);
    if (errors.launched->pending()) return errors.launched->take();
    if (!errors.captured->pending()) return std::nullopt;
    const IndexErrorRecord record = errors.captured->take();
    // Graphs are launched with what they were captured with, so theirs must begin anew at 0. After
    // the record was read: from here on it may be written.
    uint32_t* claimed = &errors.captured->slot()->claimed;
    C10_CUDA_CHECK(cudaMemsetAsync(claimed, 0, sizeof(*claimed), stream));
    synchronize(stream);
    return record;
  }

  // Raises what is pending of earlier calls, unless another thread has just done so.
  static void raise(const CUDAStream& stream, DeviceErrors& errors) {
    const std::optional<IndexErrorRecord> record = take_pending(stream, errors);
    if (!record) return;
    TORCH_CHECK_INDEX(false, describe(*record), " (Found on cuda:", int{stream.device_index()},
                      " by an earlier call; torch_ops.set_error_mode(\"sync\") raises at the call "
                      "itself.)");
  }

  std::array<std::atomic<DeviceErrors*>, kMostDevices> devices_{};
  std::mutex mutex_;
};

CudaIndexErrors& records() {
  static auto* const errors = new CudaIndexErrors;  // outlives all that may call it
  return *errors;
}

}  // namespace

IndexErrors& cuda_index_errors() { return records(); }

void set_sync_errors(bool sync) { sync_errors = sync; }

void check_cuda_errors(std::optional<int64_t> device) {
  if (device) return records().check(static_cast<DeviceIndex>(*device));
  for (int each = 0; each < kMostDevices; ++each) records().check(static_cast<DeviceIndex>(each));
}

}  // namespace torch_ops
