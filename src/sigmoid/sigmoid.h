// The launchers of sigmoid: flat arrays of one dtype on one device; they check nothing.
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
