#include "common/elementwise/elementwise_cpu.h"
#include "sigmoid/sigmoid_float32.h"
#include "sigmoid/sigmoid_kernels.h"
#include "sigmoid/sigmoid_launch.h"

namespace torch_ops::kernels {

template <class T>
void sigmoid(OnCpu on, const StridedWalk<2>& walk, T* output, const T* input) {
  const HostScope scope(on.program);
  map_cpu(CpuSigmoid<T>(), walk, output, input);
}

template <class T>
void sigmoid_backward(OnCpu on, const StridedWalk<3>& walk, T* grad_input, const T* grad_output,
                      const T* output) {
  const HostScope scope(on.program);
  map_cpu(SigmoidBackward(), walk, grad_input, grad_output, output);
}

#define INSTANTIATE(T)                                               \
  template void sigmoid(OnCpu, const StridedWalk<2>&, T*, const T*); \
  template void sigmoid_backward(OnCpu, const StridedWalk<3>&, T*, const T*, const T*);
TORCH_OPS_FOR_EACH_FLOAT(INSTANTIATE)

}  // namespace torch_ops::kernels
