// Of what has no derivative: a history that says so in the backward pass.
#pragma once

#include <torch/csrc/autograd/VariableTypeUtils.h>
#include <torch/csrc/autograd/functions/basic_ops.h>

#include <memory>
#include <string>

namespace torch_ops::jit {

// `inputs` require grad.
inline void refuse_gradient(const std::string& message, at::TensorList inputs,
                            at::TensorList outputs) {
  const std::shared_ptr<torch::autograd::Node> node(
      new torch::autograd::Error(message, torch::autograd::collect_next_edges(inputs)),
      torch::autograd::deleteNode);
  for (const at::Tensor& output : outputs) {
    if (torch::autograd::isDifferentiableType(output.scalar_type())) {
      torch::autograd::set_history(output, node);
    }
  }
}

}  // namespace torch_ops::jit
