// What the derivatives of kernels have in common.
#pragma once

#include <torch/csrc/autograd/functions/basic_ops.h>

#include <algorithm>
#include <string>
#include <vector>

#include "common/torch/registration/autograd.h"
#include "jit/call/registered.h"

namespace torch_ops::jit {

// The history of what has no derivative: it says so in the backward pass. `inputs` require grad.
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

// A node that finds its kernel by the op's name, so that compiled autograd can make it again.
template <class Node, class Kernel>
struct KernelNode : autograd::DerivativeNode<Node> {
  std::string op_name;
  std::vector<int64_t> positions;  // of numbers
  std::vector<Scalar> numbers;

  void keep(const Kernel& forward, const OpInputs& inputs) {
    op_name = forward.op_name;
    positions = inputs.positions.vec();
    numbers = inputs.numbers.vec();
  }
  std::string name() const override {
    const auto found = find_kernel<Kernel>(op_name);
    return (found ? found->name : op_name) + "_backward";
  }
  std::shared_ptr<Kernel> forward() const {
    auto found = find_kernel<Kernel>(op_name);
    TORCH_CHECK(found, "torch_ops.jit: there is no kernel ", op_name, " in this process.");
    return found;
  }
  template <class Visit>
  void fields_of_call(Visit& visit) {
    visit(op_name);
    visit(positions);
    visit(numbers);
  }
};

// In place of the gradient of an output that has none: a number that converts to any type.
inline const Argument kNoGradient{nullptr, false};

inline std::vector<bool> defined(const autograd::variable_list& grads) {
  std::vector<bool> flags;
  for (const Tensor& grad : grads) flags.push_back(grad.defined());
  return flags;
}

inline bool any_complex(at::TensorList tensors) {
  return std::any_of(tensors.begin(), tensors.end(), [](auto& t) { return t.is_complex(); });
}

inline bool any_tangent(at::TensorList tensors) {
  return std::any_of(tensors.begin(), tensors.end(),
                     [](auto& t) { return torch::autograd::isFwGradDefined(t); });
}

// `kind` is the kernel's class in Python.
template <class Kernel>
std::string complex_has_none(const char* kind, const Kernel& kernel) {
  return std::string(kind) + " \"" + kernel.name +
         "\" has no derivative on complex tensors. Detach its inputs, or wrap it in a "
         "torch.autograd.Function.";
}

// Records the node at the outputs, or refuses gradients of complex tensors. Returns whether it was
// recorded.
template <class Kernel, class Node>
bool record_outputs(const char* kind, const Kernel& kernel, const Node& node, at::TensorList inputs,
                    at::TensorList outputs) {
  if (any_complex(inputs) || any_complex(outputs)) {
    refuse_gradient(complex_has_none(kind, kernel), inputs, outputs);
    return false;
  }
  for (const Tensor& output : outputs) {
    if (at::isFloatingType(output.scalar_type())) {
      autograd::record(output, node);
    } else {
      node->add_input_metadata(torch::autograd::Node::undefined_input());
    }
  }
  return true;
}

// Gives the outputs their tangents, if an input has one. jvp(wanted, arguments) computes them; the
// arguments are the inputs' values and then the tangents of those wanted.
template <class Kernel, class Jvp>
void set_tangents(const char* kind, const Kernel& kernel, const OpInputs& inputs,
                  at::TensorList outputs, Jvp&& jvp) {
  if (!any_tangent(inputs.tensors)) return;
  TORCH_CHECK(!any_complex(inputs.tensors) && !any_complex(outputs),
              complex_has_none(kind, kernel));
  std::vector<Tensor> primals, tangents;
  for (const Tensor& tensor : inputs.tensors) primals.push_back(autograd::primal(tensor));
  Arguments arguments = join_arguments(kernel, inputs.with(primals));
  const Arguments given = join_arguments(kernel, inputs);
  std::vector<bool> wanted(arguments.size());
  tangents.reserve(arguments.size());
  for (size_t k = 0; k < given.size(); ++k) {
    wanted[k] = given[k].tensor && torch::autograd::isFwGradDefined(*given[k].tensor);
    if (!wanted[k]) continue;
    tangents.push_back(given[k].tensor->_fw_grad(/*level=*/0));
    arguments.push_back({&tangents.back(), 0});
  }
  const std::vector<Tensor> made = jvp(wanted, arguments);
  for (size_t k = 0; k < outputs.size(); ++k) {
    if (!at::isFloatingType(outputs[k].scalar_type())) continue;
    outputs[k]._set_fw_grad(made.at(k), /*level=*/0, /*is_inplace_op=*/false);
  }
}

}  // namespace torch_ops::jit
