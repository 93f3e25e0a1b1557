// The steps of frame/steps.h on a device.
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
// For each type of sums and of results; integers are summed without a sign.
#define INSTANTIATE_SUMS(Step)          \
  INSTANTIATE(Step<float, Float16>)     \
  INSTANTIATE(Step<float, BFloat16>)    \
  INSTANTIATE(Step<float, float>)       \
  INSTANTIATE(Step<double, double>)     \
  INSTANTIATE(Step<uint8_t, uint8_t>)   \
  INSTANTIATE(Step<uint16_t, uint16_t>) \
  INSTANTIATE(Step<uint32_t, uint32_t>) \
  INSTANTIATE(Step<unsigned long long, unsigned long long>)

INSTANTIATE(Fill<uint8_t>)
INSTANTIATE(Fill<uint16_t>)
INSTANTIATE(Fill<uint32_t>)
INSTANTIATE(Fill<uint64_t>)
INSTANTIATE(RoundSums<float, Float16>)
INSTANTIATE(RoundSums<float, BFloat16>)
INSTANTIATE(RoundSums<uint32_t, uint8_t>)
INSTANTIATE(RoundSums<uint32_t, uint16_t>)
INSTANTIATE_SUMS(AddSums)
INSTANTIATE_SUMS(DivideSums)
INSTANTIATE(DivideSums<int8_t, int8_t>)
INSTANTIATE(DivideSums<int16_t, int16_t>)
INSTANTIATE(DivideSums<int32_t, int32_t>)
INSTANTIATE(DivideSums<int64_t, int64_t>)

}  // namespace torch_ops
