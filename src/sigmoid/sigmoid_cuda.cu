#include "common/elementwise/elementwise_cuda.cuh"
#include "sigmoid/sigmoid_kernels.h"
#include "sigmoid/sigmoid_launch.h"

namespace torch_ops::kernels {

template <class T>
void sigmoid(OnCuda on, const StridedWalk<2>& walk, T* output, const T* input) {
  const HostScope scope(on.program);
  map_cuda(Sigmoid(), walk, nullptr, output, input);
}

template <class T>
void sigmoid_backward(OnCuda on, const StridedWalk<3>& walk, T* grad_input, const T* grad_output,
                      const T* output) {
  const HostScope scope(on.program);
  map_cuda(SigmoidBackward(), walk, nullptr, grad_input, grad_output, output);
}

#define INSTANTIATE(T)                                                \
  template void sigmoid(OnCuda, const StridedWalk<2>&, T*, const T*); \
  template void sigmoid_backward(OnCuda, const StridedWalk<3>&, T*, const T*, const T*);
TORCH_OPS_FOR_EACH_FLOAT(INSTANTIATE)

}  // namespace torch_ops::kernels
