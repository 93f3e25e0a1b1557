// The steps of calls/steps.h on a device.
#include "c_api/frame/steps.h"

#include "common/cuda/launch.cuh"

namespace torch_ops {
namespace {

template <class Step>
__global__ void step_kernel(Step step, int64_t count) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride) step(i);
}

}  // namespace

template <class Step>
void for_each(OnCuda, const Step& step, int64_t count) {
  if (count == 0) return;
  TORCH_OPS_LAUNCH(step_kernel<Step>, grid_x(count, kThreads), kThreads, 0, step, count);
}

void copy(OnCuda, void* to, const void* from, int64_t bytes) {
  TORCH_OPS_CUDA_CALL(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, current_stream()));
}

#define INSTANTIATE(...) template void for_each(OnCuda, const __VA_ARGS__&, int64_t);

#define INSTANTIATE_FILL(T) INSTANTIATE(Fill<T>)
INSTANTIATE_FILL(uint8_t)
INSTANTIATE_FILL(uint16_t)
INSTANTIATE_FILL(uint32_t)
INSTANTIATE_FILL(uint64_t)

#define INSTANTIATE_ROUND(Sum, Value) INSTANTIATE(RoundSums<Sum, Value>)
INSTANTIATE_ROUND(float, Float16)
INSTANTIATE_ROUND(float, BFloat16)
INSTANTIATE_ROUND(uint32_t, uint8_t)
INSTANTIATE_ROUND(uint32_t, uint16_t)

#define INSTANTIATE_ADD(Sum, Value) INSTANTIATE(AddSums<Sum, Value>)
INSTANTIATE_ADD(float, Float16)
INSTANTIATE_ADD(float, BFloat16)
INSTANTIATE_ADD(float, float)
INSTANTIATE_ADD(double, double)
INSTANTIATE_ADD(uint8_t, uint8_t)
INSTANTIATE_ADD(uint16_t, uint16_t)
INSTANTIATE_ADD(uint32_t, uint32_t)
INSTANTIATE_ADD(unsigned long long, unsigned long long)

#define INSTANTIATE_DIVIDE(Sum, Value) INSTANTIATE(DivideSums<Sum, Value>)
INSTANTIATE_DIVIDE(float, Float16)
INSTANTIATE_DIVIDE(float, BFloat16)
INSTANTIATE_DIVIDE(float, float)
INSTANTIATE_DIVIDE(double, double)
INSTANTIATE_DIVIDE(int8_t, int8_t)
INSTANTIATE_DIVIDE(uint8_t, uint8_t)
INSTANTIATE_DIVIDE(int16_t, int16_t)
INSTANTIATE_DIVIDE(uint16_t, uint16_t)
INSTANTIATE_DIVIDE(int32_t, int32_t)
INSTANTIATE_DIVIDE(uint32_t, uint32_t)
INSTANTIATE_DIVIDE(int64_t, int64_t)
INSTANTIATE_DIVIDE(unsigned long long, unsigned long long)

}  // namespace torch_ops
