#include "common/elementwise/elementwise_cuda.cuh"
#include "relu/relu_kernels.h"
#include "relu/relu_launch.h"

namespace torch_ops::kernels {

template <class T>
void relu(OnCuda on, Slope slope, const StridedWalk<2>& walk, uint8_t* mask, T* output,
          const T* input) {
  const HostScope scope(on.program);
  with_activation<T>(slope, [&](auto activation) {
    if (mask != nullptr) {
      map_cuda<Bits::kWrites>(activation, walk, mask, output, input);
    } else {
      map_cuda(activation, walk, nullptr, output, input);
    }
  });
}

template <class T>
void relu_backward(OnCuda on, Slope slope, const StridedWalk<3>& walk, T* grad_input,
                   const T* grad_output, const T* output) {
  const HostScope scope(on.program);
  with_activation<T>(slope, [&](auto activation) {
    map_cuda(Backward(activation), walk, nullptr, grad_input, grad_output, output);
  });
}

template <class T>
void relu_mask_backward(OnCuda on, Slope slope, const StridedWalk<2>& walk, const uint8_t* mask,
                        T* grad_input, const T* grad_output) {
  const HostScope scope(on.program);
  with_activation<T>(slope, [&](auto activation) {
    map_cuda<Bits::kReads>(Backward(activation), walk, const_cast<uint8_t*>(mask), grad_input,
                           grad_output);
  });
}

#define INSTANTIATE(T)                                                                       \
  template void relu(OnCuda, Slope, const StridedWalk<2>&, uint8_t*, T*, const T*);          \
  template void relu_backward(OnCuda, Slope, const StridedWalk<3>&, T*, const T*, const T*); \
  template void relu_mask_backward(OnCuda, Slope, const StridedWalk<2>&, const uint8_t*, T*, \
                                   const T*);
TORCH_OPS_FOR_EACH_FLOAT(INSTANTIATE)

}  // namespace torch_ops::kernels
