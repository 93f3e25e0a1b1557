// The contract of relu: schemas, checks, allocation, derivative, binding.
#include "relu/relu.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/library.h>

#include "common/autograd.h"
#include "common/batching.h"
#include "common/checks.h"
#include "common/elementwise_layout.h"
#include "common/inplace.h"
#include "common/op.h"

namespace torch_ops {
namespace {

using at::Tensor;
using autograd::SavedVariable;
using autograd::variable_list;

const auto& relu_op() {
  static const auto op = find_op<Tensor(const Tensor&)>("relu");
  return op;
}

const auto& relu__op() {
  static const auto op = find_op<Tensor&(Tensor&)>("relu_");
  return op;
}

const auto& relu_backward_op() {
  static const auto op = find_op<Tensor(const Tensor&, const Tensor&)>("relu_backward");
  return op;
}

// ---- CPU, CUDA and Meta kernels -----------------------------------------------------------------

template <auto launch>
Tensor relu(const Tensor& input) {
  CHECK_FLOATING("relu", input);
  const Tensor source = dense(input);
  Tensor output = at::empty_like(source);
  launch(source, output);
  return output;
}

template <auto launch>
Tensor& relu_(Tensor& input) {
  CHECK_FLOATING("relu_", input);
  at::assert_no_internal_overlap(input);
  if (input.is_non_overlapping_and_dense()) {
    launch(input, input);
  } else {
    const Tensor copy = dense(input);
    launch(copy, copy);
    input.copy_(copy);
  }
  return input;
}

void check_backward(const Tensor& grad_output, const Tensor& output) {
  CHECK_FLOATING("relu_backward", output);
  CHECK_SAME_TYPE("relu_backward", grad_output, output);
  CHECK_SAME_SHAPE("relu_backward", grad_output, output);
  CHECK_SAME_DEVICE("relu_backward", grad_output, output);
}

template <auto launch>
Tensor relu_backward(const Tensor& grad_output, const Tensor& output) {
  check_backward(grad_output, output);
  const Tensor mask = dense(output);
  Tensor grad_input = at::empty_like(mask);
  launch(dense_like(grad_output, mask), mask, grad_input);
  return grad_input;
}

Tensor relu_meta(const Tensor& input) {
  CHECK_FLOATING("relu", input);
  return at::empty_like(input);
}

Tensor& relu__meta(Tensor& input) {
  CHECK_FLOATING("relu_", input);
  return input;
}

Tensor relu_backward_meta(const Tensor& grad_output, const Tensor& output) {
  check_backward(grad_output, output);
  return at::empty_like(output);
}

// ---- Derivative ---------------------------------------------------------------------------------

struct ReluNode final : autograd::DerivativeNode<ReluNode> {
  static constexpr const char* kName = "ReluBackward";
  SavedVariable output;

  template <class Visit>
  void fields(Visit&& visit) {
    visit(output, /*is_output=*/true);
  }

  variable_list backward(const Tensor& grad_output) {
    return {relu_backward_op().call(grad_output, unpack(output))};
  }
};

Tensor relu_autograd(c10::DispatchKeySet keys, const Tensor& input) {
  const auto node = autograd::make_node<ReluNode>(input);
  Tensor output = autograd::below_autograd(keys, relu_op(), input);
  autograd::record(output, node);
  autograd::set_tangent(
      output, [&](const Tensor& tangent) { return relu_backward_op().call(tangent, output); },
      input);
  if (node) node->output = SavedVariable(output, /*is_output=*/true);
  return output;
}

Tensor& relu__autograd(c10::DispatchKeySet keys, Tensor& input) {
  torch::autograd::check_inplace(input, torch::autograd::compute_requires_grad(input));
  const auto node = autograd::make_node<ReluNode>(input);
  autograd::below_autograd(keys, relu__op(), input);
  if (node) torch::autograd::rebase_history(input, node);
  if (torch::autograd::isFwGradDefined(input)) {
    // In place, so that the tangents of views of `input` follow.
    const Tensor tangent = input._fw_grad(/*level=*/0);
    tangent.copy_(relu_backward_op().call(tangent, autograd::primal(input)));
    input._set_fw_grad(tangent, /*level=*/0, /*is_inplace_op=*/true);
  }
  if (node) node->output = SavedVariable(input, /*is_output=*/true, input.is_view());
  return input;
}

// The second derivative: relu is piecewise linear, so only grad_output gets a gradient; output's is
// zero (and exists, as it does in torch: a Hessian of relu is zeros, not an error).
struct ReluBackwardNode final : autograd::DerivativeNode<ReluBackwardNode> {
  static constexpr const char* kName = "ReluBackwardBackward";
  SavedVariable output;

  template <class Visit>
  void fields(Visit&& visit) {
    visit(output);
  }

  variable_list backward(const Tensor& grad) {
    variable_list grads(2);
    if (needs_input_grad(0)) grads[0] = relu_backward_op().call(grad, unpack(output));
    if (needs_input_grad(1)) grads[1] = at::zeros_like(grad);
    return grads;
  }
};

Tensor relu_backward_autograd(c10::DispatchKeySet keys, const Tensor& grad_output,
                              const Tensor& output) {
  const auto node = autograd::make_node<ReluBackwardNode>(grad_output, output);
  Tensor grad_input = autograd::below_autograd(keys, relu_backward_op(), grad_output, output);
  autograd::record(grad_input, node);
  autograd::set_tangent(
      grad_input,
      [&](const Tensor& tangent, const Tensor& /*output's: it changes nothing*/) {
        return tangent.defined() ? relu_backward_op().call(tangent, autograd::primal(output))
                                 : at::zeros_like(grad_input);
      },
      grad_output, output);
  if (node) node->output = SavedVariable(output, /*is_output=*/false);
  return grad_input;
}

Tensor& relu__version(c10::DispatchKeySet keys, Tensor& input) {
  return inplace::bump_version(keys, relu__op(), input);
}

Tensor& relu__functionalize(Tensor& input) {
  return inplace::functionalize(relu__op(), relu_op(), input);
}

// ---- torch.vmap ---------------------------------------------------------------------------------

Tensor relu_batched(const Tensor& input) { return batching::unary(relu_op(), input); }

Tensor& relu__batched(Tensor& input) { return batching::unary_inplace(relu__op(), input); }

Tensor relu_backward_batched(const Tensor& grad_output, const Tensor& output) {
  return batching::binary(relu_backward_op(), grad_output, output);
}

// ---- The direct pair: outside autograd, on contiguous CUDA tensors ------------------------------

Tensor forward(const Tensor& input) {
  CHECK_INPUT(input);
  return relu<relu_cuda>(input);
}

Tensor backward(const Tensor& grad_output, const Tensor& output) {
  CHECK_INPUT(grad_output);
  CHECK_INPUT(output);
  return relu_backward<relu_backward_cuda>(grad_output, output);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(torch_ops, m) {
  m.def("relu(Tensor input) -> Tensor", {at::Tag::pt2_compliant_tag});
  m.def("relu_(Tensor(a!) input) -> Tensor(a!)", {at::Tag::pt2_compliant_tag});
  m.def("relu_backward(Tensor grad_output, Tensor output) -> Tensor", {at::Tag::pt2_compliant_tag});
}

TORCH_LIBRARY_IMPL(torch_ops, CPU, m) {
  m.impl("relu", relu<relu_cpu>);
  m.impl("relu_", relu_<relu_cpu>);
  m.impl("relu_backward", relu_backward<relu_backward_cpu>);
}

TORCH_LIBRARY_IMPL(torch_ops, CUDA, m) {
  m.impl("relu", relu<relu_cuda>);
  m.impl("relu_", relu_<relu_cuda>);
  m.impl("relu_backward", relu_backward<relu_backward_cuda>);
}

TORCH_LIBRARY_IMPL(torch_ops, Meta, m) {
  m.impl("relu", relu_meta);
  m.impl("relu_", relu__meta);
  m.impl("relu_backward", relu_backward_meta);
}

TORCH_LIBRARY_IMPL(torch_ops, Autograd, m) {
  m.impl("relu", relu_autograd);
  m.impl("relu_", relu__autograd);
  m.impl("relu_backward", relu_backward_autograd);
}

TORCH_LIBRARY_IMPL(torch_ops, FuncTorchBatched, m) {
  m.impl("relu", relu_batched);
  m.impl("relu_", relu__batched);
  m.impl("relu_backward", relu_backward_batched);
}

TORCH_LIBRARY_IMPL(torch_ops, ADInplaceOrView, m) { m.impl("relu_", relu__version); }

TORCH_LIBRARY_IMPL(torch_ops, Functionalize, m) { m.impl("relu_", relu__functionalize); }

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.doc() = "The direct kernels of relu, on contiguous CUDA tensors and outside autograd.";
  m.def("forward", &forward, "max(input, 0), NaN kept", py::arg("input"));
  m.def("backward", &backward, "grad_output where output is positive or NaN, else 0",
        py::arg("grad_output"), py::arg("output"));
}

}  // namespace torch_ops
