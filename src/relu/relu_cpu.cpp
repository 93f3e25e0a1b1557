#include "common/elementwise/elementwise_cpu.h"
#include "relu/relu_kernels.h"
#include "relu/relu_launch.h"
#include "relu/relu_masked.h"

namespace torch_ops::kernels {

template <class T>
void relu(OnCpu on, Slope slope, const StridedWalk<2>& walk, uint8_t* mask, T* output,
          const T* input) {
  const HostScope scope(on.program);
  with_activation<T>(slope, [&](auto activation) {
    if (mask == nullptr) return map_cpu(activation, walk, output, input);
    for_each_masked_piece(walk, output, input,
                          [=](Simd simd, int64_t n, T* to, const T* from, int64_t byte) {
                            write_masked_piece(simd, activation, n, to, from, mask + byte);
                          });
  });
}

template <class T>
void relu_backward(OnCpu on, Slope slope, const StridedWalk<3>& walk, T* grad_input,
                   const T* grad_output, const T* output) {
  const HostScope scope(on.program);
  with_activation<T>(slope, [&](auto activation) {
    map_cpu(Backward(activation), walk, grad_input, grad_output, output);
  });
}

template <class T>
void relu_mask_backward(OnCpu on, Slope slope, const StridedWalk<2>& walk, const uint8_t* mask,
                        T* grad_input, const T* grad_output) {
  const HostScope scope(on.program);
  with_activation<T>(slope, [&](auto activation) {
    for_each_masked_piece(walk, grad_input, grad_output,
                          [=](Simd simd, int64_t n, T* to, const T* from, int64_t byte) {
                            read_masked_piece(simd, activation, n, to, from, mask + byte);
                          });
  });
}

#define INSTANTIATE(T)                                                                      \
  template void relu(OnCpu, Slope, const StridedWalk<2>&, uint8_t*, T*, const T*);          \
  template void relu_backward(OnCpu, Slope, const StridedWalk<3>&, T*, const T*, const T*); \
  template void relu_mask_backward(OnCpu, Slope, const StridedWalk<2>&, const uint8_t*, T*, \
                                   const T*);
TORCH_OPS_FOR_EACH_FLOAT(INSTANTIATE)

}  // namespace torch_ops::kernels
