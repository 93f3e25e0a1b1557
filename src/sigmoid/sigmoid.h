// The launchers of sigmoid: tensors of one shape, one dtype, one device and any strides; they check
// nothing. The result may be an input.
#pragma once

#include <ATen/core/Tensor.h>

#include "common/checks.h"

namespace torch_ops {

void sigmoid_cpu(const at::Tensor& input, const at::Tensor& output);
void sigmoid_backward_cpu(const at::Tensor& grad_output, const at::Tensor& output,
                          const at::Tensor& grad_input);

TORCH_OPS_CUDA_LAUNCHER(void sigmoid_cuda(const at::Tensor& input, const at::Tensor& output))
TORCH_OPS_CUDA_LAUNCHER(void sigmoid_backward_cuda(const at::Tensor& grad_output,
                                                   const at::Tensor& output,
                                                   const at::Tensor& grad_input))

}  // namespace torch_ops
