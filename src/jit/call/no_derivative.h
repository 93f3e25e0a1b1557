// Of what has no derivative: a history that says so in the backward pass.
#pragma once

#include <torch/csrc/autograd/VariableTypeUtils.h>
#include <torch/csrc/autograd/functions/basic_ops.h>

#include <string>

#include "common/torch/compat.h"

namespace torch_ops::jit {

// `inputs` require grad.
inline void refuse_gradient(const std::string& message, at::TensorList inputs,
                            at::TensorList outputs) {
  const auto node = compat::make_node<torch::autograd::Error>(
      message, torch::autograd::collect_next_edges(inputs));
  for (const at::Tensor& output : outputs) {
    if (torch::autograd::isDifferentiableType(output.scalar_type())) {
      torch::autograd::set_history(output, node);
    }
  }
}

}  // namespace torch_ops::jit
