#include "c_api/gpu/pipeline.cuh"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <vector>

#include "c_api/gpu/gpu.h"
#include "c_api/gpu/runtime.cuh"
#include "common/host/parallel.h"

namespace torch_ops::gpu {
namespace {

// By all threads: a single one copies slower than the bus.
void copy_memory(char* to, const char* from, int64_t bytes) {
  constexpr int64_t kPart = int64_t{1} << 20;
  parallel_for(bytes, kPart, [&](int64_t begin, int64_t end) {
    std::memcpy(to + begin, from + begin, end - begin);
  });
}

}  // namespace

Event::~Event() {
  if (event_ != nullptr) cudaEventDestroy(event_);
}

void Event::record(cudaStream_t stream) {
  if (event_ == nullptr) {
    TORCH_OPS_CHECK_CUDA(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming));
  }
  TORCH_OPS_CHECK_CUDA(cudaEventRecord(event_, stream));
}

void Event::hold_up(cudaStream_t stream) const {
  if (event_ != nullptr) TORCH_OPS_CHECK_CUDA(cudaStreamWaitEvent(stream, event_, 0));
}

void Event::wait() const {
  if (event_ != nullptr) TORCH_OPS_CHECK_CUDA(cudaEventSynchronize(event_));
}

HostArray::HostArray(const void* memory)
    : memory(static_cast<char*>(const_cast<void*>(memory))), pinned(is_pinned(memory)) {}

const char* HostArray::on_device() const {
  void* address = nullptr;
  TORCH_OPS_CHECK_CUDA(cudaHostGetDevicePointer(&address, memory, 0));
  return static_cast<const char*>(address);
}

Pipeline::Pipeline() {
  for (cudaStream_t* stream : {&in_, &run_, &out_}) {
    TORCH_OPS_CHECK_CUDA(cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking));
  }
}

void Pipeline::begin(cudaStream_t stream, bool timed) {
  timed_ = timed;
  timers_.clear();
  started_.record(stream);
  for (cudaStream_t each : {in_, run_, out_}) started_.hold_up(each);
}

void Pipeline::finish() {
  for (Slot& slot : out_slots_) empty(slot);
  for (cudaStream_t stream : {in_, run_, out_}) TORCH_OPS_CHECK_CUDA(cudaStreamSynchronize(stream));
  milliseconds_ = 0;
  for (const CudaTimer& timer : timers_) milliseconds_ += timer.milliseconds();
}

void Pipeline::abandon() noexcept {
  for (cudaStream_t stream : {in_, run_, out_}) cudaStreamSynchronize(stream);
  for (Slot& slot : out_slots_) slot.to = nullptr;
  cudaGetLastError();
}

void Pipeline::need(Slot& slot) {
  if (slot.memory == nullptr) slot.memory = static_cast<char*>(pinned_alloc(kPieceBytes));
}

void Pipeline::empty(Slot& slot) {
  if (slot.to == nullptr) return;
  slot.copied.wait();
  copy_memory(slot.to, slot.memory, slot.bytes);
  slot.to = nullptr;
}

void Pipeline::upload(void* to, const HostArray& from, int64_t offset, int64_t bytes,
                      const Event& before) {
  before.hold_up(in_);
  for (int64_t done = 0; done < bytes; done += kPieceBytes) {
    const int64_t some = from.pinned ? bytes : std::min(kPieceBytes, bytes - done);
    const char* memory = from.at(offset + done);
    Slot* slot = nullptr;
    if (!from.pinned) {
      slot = &in_slots_[next_in_++ % kInSlots];
      need(*slot);
      slot->copied.wait();
      copy_memory(slot->memory, memory, some);
      memory = slot->memory;
    }
    TORCH_OPS_CHECK_CUDA(
        cudaMemcpyAsync(static_cast<char*>(to) + done, memory, some, cudaMemcpyHostToDevice, in_));
    if (slot == nullptr) return;
    slot->copied.record(in_);
  }
}

void Pipeline::download(const HostArray& to, int64_t offset, const void* from, int64_t bytes,
                        const Event& before, Event& done) {
  before.hold_up(out_);
  for (int64_t at = 0; at < bytes; at += kPieceBytes) {
    const int64_t some = to.pinned ? bytes : std::min(kPieceBytes, bytes - at);
    char* memory = to.at(offset + at);
    Slot* slot = nullptr;
    if (!to.pinned) {
      slot = &out_slots_[next_out_++ % kOutSlots];
      need(*slot);
      empty(*slot);
      slot->to = memory;
      slot->bytes = some;
      memory = slot->memory;
    }
    const cudaError_t error = cudaMemcpyAsync(memory, static_cast<const char*>(from) + at, some,
                                              cudaMemcpyDeviceToHost, out_);
    TORCH_OPS_CHECK_CUDA(error);
    if (slot == nullptr) break;
    slot->copied.record(out_);
  }
  done.record(out_);
}

namespace {

struct Pipelines {
  std::mutex mutex;
  std::vector<Pipeline*> free[kMaxDevices];
};

// Kept until the process ends, like their memory and streams.
Pipelines& pipelines() {
  static auto* const all = new Pipelines;
  return *all;
}

}  // namespace

PipelineLease lease_pipeline() {
  int device = 0;
  TORCH_OPS_CHECK_CUDA(cudaGetDevice(&device));
  {
    const std::lock_guard<std::mutex> lock(pipelines().mutex);
    auto& free = pipelines().free[device];
    if (!free.empty()) {
      PipelineLease lease(free.back(), {device});
      free.pop_back();
      return lease;
    }
  }
  return {new Pipeline, {device}};
}

void GiveBack::operator()(Pipeline* pipeline) const {
  pipeline->abandon();
  const std::lock_guard<std::mutex> lock(pipelines().mutex);
  pipelines().free[device].push_back(pipeline);
}

int64_t memory_budget() {
  size_t free = 0, all = 0;
  TORCH_OPS_CHECK_CUDA(cudaMemGetInfo(&free, &all));
  // An allocation must also fit after rounding up.
  const auto usable = static_cast<int64_t>(free - free / 16);
  const int64_t limit = memory_limit;
  return limit > 0 ? std::min(limit, usable) : usable;
}

DeviceBlock::DeviceBlock(int64_t bytes, Pipeline& pipeline) : pipeline_(pipeline) {
  TORCH_OPS_CHECK_CUDA(cudaMallocAsync(reinterpret_cast<void**>(&memory_), bytes, pipeline.run()));
  // The other streams of the pipeline use it too.
  TORCH_OPS_CHECK_CUDA(cudaStreamSynchronize(pipeline.run()));
}

DeviceBlock::~DeviceBlock() {
  pipeline_.abandon();
  if (memory_ != nullptr) cudaFreeAsync(memory_, pipeline_.run());
}

}  // namespace torch_ops::gpu
