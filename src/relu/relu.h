// The launchers of relu and leaky_relu: tensors of one shape, one dtype, one device and any
// strides; they check nothing. The result may be an input.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "common/checks.h"

namespace torch_ops {

// Which activation: leaky_relu of this slope, or relu where there is none.
using Slope = std::optional<double>;

// Public ops come in two: relu, which has no slope, and leaky_relu. So the functions that are
// registered have a pack, `SlopeArg`, which is empty or a double.
template <class... SlopeArg>
constexpr const char* kOpName = sizeof...(SlopeArg) == 0 ? "relu" : "leaky_relu";
inline Slope slope_of() { return std::nullopt; }
inline Slope slope_of(double slope) { return slope; }

// A mask has the bits of `common/bit_mask.h`, in the order of the result's memory. Where the
// forward launchers are given none (undefined), they write none.
void relu_cpu(const at::Tensor& input, Slope slope, const at::Tensor& output,
              const at::Tensor& mask);
void relu_backward_cpu(const at::Tensor& grad_output, const at::Tensor& output, Slope slope,
                       const at::Tensor& grad_input);
void relu_mask_backward_cpu(const at::Tensor& grad_output, const at::Tensor& mask, Slope slope,
                            const at::Tensor& grad_input);

TORCH_OPS_CUDA_LAUNCHER(void relu_cuda(const at::Tensor& input, Slope slope,
                                       const at::Tensor& output, const at::Tensor& mask))
TORCH_OPS_CUDA_LAUNCHER(void relu_backward_cuda(const at::Tensor& grad_output,
                                                const at::Tensor& output, Slope slope,
                                                const at::Tensor& grad_input))
TORCH_OPS_CUDA_LAUNCHER(void relu_mask_backward_cuda(const at::Tensor& grad_output,
                                                     const at::Tensor& mask, Slope slope,
                                                     const at::Tensor& grad_input))

}  // namespace torch_ops
