// Copies between host and device that overlap with each other and with kernels: three streams, and
// pinned staging memory for pageable memory.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <deque>
#include <memory>

#include "common/cuda/timing.h"
#include "torch_ops.h"

namespace torch_ops::gpu {

// An event that may be waited for before it was ever recorded.
class Event {
 public:
  Event() = default;
  Event(const Event&) = delete;
  ~Event();
  void record(cudaStream_t stream);
  void hold_up(cudaStream_t stream) const;  // until the recorded work is done
  void wait() const;                        // the same for the calling thread

 private:
  cudaEvent_t event_ = nullptr;
};

// An array in host memory.
struct HostArray {
  explicit HostArray(const void* memory);
  char* at(int64_t offset) const { return memory + offset; }
  const char* on_device() const;  // where the device sees it, if it is pinned
  char* memory;
  bool pinned;
};

// Belongs to one call at a time, on one device. Its streams and staging memory are kept for later
// calls.
class Pipeline {
 public:
  Pipeline();
  Pipeline(const Pipeline&) = delete;

  cudaStream_t run() const { return run_; }
  cudaStream_t out() const { return out_; }

  // Begins a call: its work starts when the work queued on `stream` is done.
  void begin(cudaStream_t stream, bool timed);
  // Ends it: all results are in host memory. To be called while the call's device memory exists.
  void finish();
  // The same for a call that failed; does nothing to one that has finished.
  void abandon() noexcept;
  // The time of the kernels of a timed call that has finished.
  float milliseconds() const { return milliseconds_; }

  // Queues a copy to the device, which starts once `before` is done.
  void upload(void* to, const HostArray& from, int64_t offset, int64_t bytes, const Event& before);
  // Launches by `launch()`, after all uploads so far and after `before`; then records `done`.
  template <class Launch>
  void launch(const Event& before, Event& done, Launch&& launch) {
    uploaded_.record(in_);
    uploaded_.hold_up(run_);
    before.hold_up(run_);
    if (timed_) timers_.emplace_back().start(run_);
    launch();
    if (timed_) timers_.back().stop(run_);
    done.record(run_);
  }
  // Queues a copy to the host after `before`; then records `done`.
  void download(const HostArray& to, int64_t offset, const void* from, int64_t bytes,
                const Event& before, Event& done);

 private:
  static constexpr int kInSlots = 3;
  static constexpr int kOutSlots = 2;
  struct Slot {
    char* memory = nullptr;
    Event copied;
    char* to = nullptr;  // where the slot's contents must go, if they are not there yet
    int64_t bytes = 0;
  };

  static void need(Slot& slot);
  static void empty(Slot& slot);

  cudaStream_t in_ = nullptr, run_ = nullptr, out_ = nullptr;
  Slot in_slots_[kInSlots], out_slots_[kOutSlots];
  int64_t next_in_ = 0, next_out_ = 0;
  Event started_, uploaded_;
  bool timed_ = false;
  float milliseconds_ = 0;
  std::deque<CudaTimer> timers_;
};

struct GiveBack {
  int device;
  void operator()(Pipeline* pipeline) const;
};
// A pipeline of the current device for the time of a call.
using PipelineLease = std::unique_ptr<Pipeline, GiveBack>;
PipelineLease lease_pipeline();

// The bytes of the current device that a call may use.
int64_t memory_budget();

// Device memory for the time of a call, cut into aligned pieces.
class DeviceBlock {
 public:
  DeviceBlock(int64_t bytes, Pipeline& pipeline);
  DeviceBlock(const DeviceBlock&) = delete;
  ~DeviceBlock();
  template <class T = char>
  T* take(int64_t bytes) {
    char* taken = memory_ + used_;
    used_ += aligned(bytes);
    return reinterpret_cast<T*>(taken);
  }
  static int64_t aligned(int64_t bytes) { return (bytes + 255) / 256 * 256; }

 private:
  char* memory_ = nullptr;
  int64_t used_ = 0;
  Pipeline& pipeline_;
};

constexpr int64_t kPieceBytes = int64_t{16} << 20;  // of a copy: 0.3 ms of PCIe 5.0

}  // namespace torch_ops::gpu
