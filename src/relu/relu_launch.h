// relu and leaky_relu in the kernel library: relu_cpu.cpp and relu_cuda.cu. T is float, double,
// Float16 or BFloat16. Nothing is checked; arrays may be empty, and the output may be an input. A
// mask has the bits of common/elementwise/bit_mask.h, in the order of the walk. No torch.
#pragma once

#include <cstdint>
#include <optional>

#include "common/elementwise/strided_walk.h"
#include "common/host/host_program.h"

namespace torch_ops {

// Which activation: leaky_relu with this slope, or relu if there is none.
using Slope = std::optional<double>;

namespace kernels {

// No mask is written if `mask` is null.
template <class T>
TORCH_OPS_KERNELS_API void relu(OnCpu on, Slope slope, const StridedWalk<2>& walk, uint8_t* mask,
                                T* output, const T* input);
template <class T>
TORCH_OPS_KERNELS_API void relu(OnCuda on, Slope slope, const StridedWalk<2>& walk, uint8_t* mask,
                                T* output, const T* input);

template <class T>
TORCH_OPS_KERNELS_API void relu_backward(OnCpu on, Slope slope, const StridedWalk<3>& walk,
                                         T* grad_input, const T* grad_output, const T* output);
template <class T>
TORCH_OPS_KERNELS_API void relu_backward(OnCuda on, Slope slope, const StridedWalk<3>& walk,
                                         T* grad_input, const T* grad_output, const T* output);

template <class T>
TORCH_OPS_KERNELS_API void relu_mask_backward(OnCpu on, Slope slope, const StridedWalk<2>& walk,
                                              const uint8_t* mask, T* grad_input,
                                              const T* grad_output);
template <class T>
TORCH_OPS_KERNELS_API void relu_mask_backward(OnCuda on, Slope slope, const StridedWalk<2>& walk,
                                              const uint8_t* mask, T* grad_input,
                                              const T* grad_output);

}  // namespace kernels
}  // namespace torch_ops
