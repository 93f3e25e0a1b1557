#include "common/elementwise/elementwise_cpu.h"
#include "relu/relu_kernels.h"
#include "relu/relu_launch.h"
#include "relu/relu_masked.h"

namespace torch_ops::kernels {
namespace {

// Calls loop(simd, begin, end) over parts of a walk that share no byte of a mask.
template <class Loop>
void for_each_mask_part(int64_t numel, Loop loop) {
  const Simd simd = cpu_simd();
  const int64_t blocks = (numel + kPiece - 1) / kPiece;
  parallel_for(blocks, kElementsPerTask / kPiece, [&](int64_t begin, int64_t end) {
    loop(simd, begin * kPiece, std::min(end * kPiece, numel));
  });
}

}  // namespace

template <class T>
void relu(OnCpu on, Slope slope, const StridedWalk<2>& walk, uint8_t* mask, T* output,
          const T* input) {
  const HostScope scope(on.program);
  with_activation<T>(slope, [&](auto activation) {
    if (mask == nullptr) return map_cpu(activation, walk, output, input);
    for_each_mask_part(walk.numel, [&](Simd simd, int64_t begin, int64_t end) {
      write_masked(simd, activation, walk, begin, end, output, input, mask);
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
    for_each_mask_part(walk.numel, [&](Simd simd, int64_t begin, int64_t end) {
      read_masked(simd, activation, walk, begin, end, grad_input, grad_output, mask);
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
