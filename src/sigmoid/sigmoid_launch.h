// sigmoid in the kernel library: sigmoid_cpu.cpp and sigmoid_cuda.cu. T is float, double, Float16
// or BFloat16. Nothing is checked; arrays may be empty, and the output may be an input. No torch.
#pragma once

#include "common/elementwise/strided_walk.h"
#include "common/host/host_program.h"

namespace torch_ops::kernels {

template <class T>
TORCH_OPS_KERNELS_API void sigmoid(OnCpu on, const StridedWalk<2>& walk, T* output, const T* input);
template <class T>
TORCH_OPS_KERNELS_API void sigmoid(OnCuda on, const StridedWalk<2>& walk, T* output,
                                   const T* input);

template <class T>
TORCH_OPS_KERNELS_API void sigmoid_backward(OnCpu on, const StridedWalk<3>& walk, T* grad_input,
                                            const T* grad_output, const T* output);
template <class T>
TORCH_OPS_KERNELS_API void sigmoid_backward(OnCuda on, const StridedWalk<3>& walk, T* grad_input,
                                            const T* grad_output, const T* output);

}  // namespace torch_ops::kernels
