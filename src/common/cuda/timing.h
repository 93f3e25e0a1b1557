// How long work on a CUDA stream takes, by events: right although launches return before their
// kernels run. No torch. Installed as torch_ops/timing.h, for any program.
//
//   torch_ops::CudaTimer timer;                     // its events are used again and again
//   timer.start(stream);
//   kernel<<<grid, block, 0, stream>>>(data);
//   timer.stop(stream);
//   float ms = timer.milliseconds();                // waits for the kernel
//
//   TORCH_OPS_TIME(kernel<<<grid, block>>>(data));  // prints: file:line: kernel<<<...: 0.123 ms
//   float ms = TORCH_OPS_TIMED(kernel<<<grid, block>>>(data));
//   TORCH_OPS_TIME_ON(stream, kernel<<<grid, block, 0, stream>>>(data));
//   float ms = TORCH_OPS_TIMED_ON(stream, kernel<<<grid, block, 0, stream>>>(data));
//
// An error of the launch, or of the kernel, throws (cuda_check.h).
#pragma once

#include <cuda_runtime_api.h>

#include <cstdio>

#if __has_include("common/cuda/cuda_check.h")
#include "common/cuda/cuda_check.h"
#else
#include "cuda_check.h"
#endif

namespace torch_ops {

// Belongs to the device that is current when it first starts; start and stop must be on one stream.
class CudaTimer {
 public:
  CudaTimer() = default;
  CudaTimer(const CudaTimer&) = delete;
  CudaTimer& operator=(const CudaTimer&) = delete;
  ~CudaTimer() {
    for (cudaEvent_t event : events_) {
      if (event != nullptr) cudaEventDestroy(event);  // may fail when the process ends: harmless
    }
  }

  void start(cudaStream_t stream = nullptr) {
    for (cudaEvent_t& event : events_) {
      if (event == nullptr) TORCH_OPS_CHECK_CUDA(cudaEventCreate(&event));
    }
    TORCH_OPS_CHECK_CUDA(cudaEventRecord(events_[0], stream));
  }

  void stop(cudaStream_t stream = nullptr) {
    TORCH_OPS_CHECK_CUDA(cudaEventRecord(events_[1], stream));
  }

  // From start to stop. Waits for the work before stop.
  float milliseconds() const {
    TORCH_OPS_CHECK_CUDA(cudaEventSynchronize(events_[1]));
    float result = 0;
    TORCH_OPS_CHECK_CUDA(cudaEventElapsedTime(&result, events_[0], events_[1]));
    return result;
  }

 private:
  cudaEvent_t events_[2] = {};
};

// The thread's own for the current device, to which a timer's events belong.
inline CudaTimer& thread_timer() {
  constexpr int kDevices = 64;
  static thread_local CudaTimer timers[kDevices];
  int device = 0;
  TORCH_OPS_CHECK_CUDA(cudaGetDevice(&device));
  TORCH_OPS_CHECK(device < kDevices, "device ", device);
  return timers[device];
}

// The milliseconds of the work that `work` queues on the stream.
template <class Work>
float timed(cudaStream_t stream, Work&& work) {
  CudaTimer& timer = thread_timer();
  timer.start(stream);
  work();
  TORCH_OPS_CHECK_LAUNCH();
  timer.stop(stream);
  return timer.milliseconds();
}

}  // namespace torch_ops

#define TORCH_OPS_TIMED_ON(stream, ...) ::torch_ops::timed((stream), [&] { __VA_ARGS__; })
#define TORCH_OPS_TIMED(...) TORCH_OPS_TIMED_ON(nullptr, __VA_ARGS__)
#define TORCH_OPS_TIME_ON(stream, ...)                                  \
  std::printf("%s:%d: %s: %.3f ms\n", __FILE__, __LINE__, #__VA_ARGS__, \
              static_cast<double>(TORCH_OPS_TIMED_ON(stream, __VA_ARGS__)))
#define TORCH_OPS_TIME(...) TORCH_OPS_TIME_ON(nullptr, __VA_ARGS__)
