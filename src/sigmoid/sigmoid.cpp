// The contract of sigmoid: schemas, checks, allocation, derivative, binding.
#include <ATen/Dispatch.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/sigmoid.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/library.h>

#include "common/elementwise/elementwise_layout.h"
#include "common/torch/autograd.h"
#include "common/torch/batching.h"
#include "common/torch/call_kernels.h"
#include "common/torch/checks.h"
#include "common/torch/inplace.h"
#include "common/torch/new_output.h"
#include "common/torch/op.h"
#include "common/torch/python_call.h"
#include "sigmoid/sigmoid_launch.h"

namespace torch_ops {
namespace {

using at::Tensor;
using autograd::SavedVariable;
using autograd::variable_list;

const auto& sigmoid_op() {
  static const auto op = find_op<Tensor(const Tensor&)>("sigmoid");
  return op;
}

const auto& sigmoid__op() {
  static const auto op = find_op<Tensor&(Tensor&)>("sigmoid_");
  return op;
}

const auto& sigmoid_backward_op() {
  static const auto op = find_op<Tensor(const Tensor&, const Tensor&)>("sigmoid_backward");
  return op;
}

// ---- Calls of the kernel library: tensors of one shape, one dtype and any strides ---------------

template <class On>
void launch(const Tensor& input, const Tensor& output) {
  with_kernels<On>(output, [&](auto on) {
    AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, input.scalar_type(), "sigmoid", [&] {
      kernels::sigmoid(on, make_walk(output, input), output_of<scalar_t>(output),
                       input_of<scalar_t>(input));
    });
  });
}

template <class On>
void launch_backward(const Tensor& grad_output, const Tensor& output, const Tensor& grad_input) {
  with_kernels<On>(grad_input, [&](auto on) {
    AT_DISPATCH_FLOATING_TYPES_AND2(
        at::kHalf, at::kBFloat16, output.scalar_type(), "sigmoid_backward", [&] {
          kernels::sigmoid_backward(on, make_walk(grad_input, grad_output, output),
                                    output_of<scalar_t>(grad_input),
                                    input_of<scalar_t>(grad_output), input_of<scalar_t>(output));
        });
  });
}

// ---- CPU, CUDA and Meta kernels: `On` says which ------------------------------------------------

// Integers, complex numbers and the errors for all else are torch's.
template <class On>
Tensor sigmoid(const Tensor& input) {
  if (!is_kernel_float(input)) return at::sigmoid(input);
  Tensor output = new_output_like(input);
  launch<On>(input, output);
  return output;
}

template <class On>
Tensor& sigmoid_(Tensor& input) {
  if (!is_kernel_float(input)) return at::sigmoid_(input);
  at::assert_no_internal_overlap(input);
  launch<On>(input, input);
  return input;
}

template <class On>
Tensor sigmoid_backward(const Tensor& grad_output, const Tensor& output) {
  CHECK_FLOATING("sigmoid_backward", output);
  CHECK_SAME_TYPE("sigmoid_backward", grad_output, output);
  CHECK_SAME_SHAPE("sigmoid_backward", grad_output, output);
  CHECK_SAME_DEVICE("sigmoid_backward", grad_output, output);
  Tensor grad_input = new_output_like(output);
  launch_backward<On>(grad_output, output, grad_input);
  return grad_input;
}

// ---- Derivative ---------------------------------------------------------------------------------

struct SigmoidNode final : autograd::DerivativeNode<SigmoidNode> {
  static constexpr const char* kName = "SigmoidBackward";
  SavedVariable output;

  template <class Visit>
  void fields(Visit&& visit) {
    visit(output, /*is_output=*/true);
  }

  variable_list backward(const Tensor& grad_output) {
    return {sigmoid_backward_op().call(grad_output, unpack(output))};
  }
};

Tensor sigmoid_autograd(c10::DispatchKeySet keys, const Tensor& input) {
  if (input.is_complex()) return at::sigmoid(input);  // with torch's derivative
  const auto node = autograd::make_node<SigmoidNode>(input);
  Tensor output = autograd::below_autograd(keys, sigmoid_op(), input);
  autograd::record(output, node);
  autograd::set_tangent(
      output, [&](const Tensor& tangent) { return sigmoid_backward_op().call(tangent, output); },
      input);
  if (node) node->output = SavedVariable(output, /*is_output=*/true);
  return output;
}

Tensor& sigmoid__autograd(c10::DispatchKeySet keys, Tensor& input) {
  if (input.is_complex()) return at::sigmoid_(input);
  torch::autograd::check_inplace(input, torch::autograd::compute_requires_grad(input));
  const auto node = autograd::make_node<SigmoidNode>(input);
  autograd::below_autograd(keys, sigmoid__op(), input);
  if (node) torch::autograd::rebase_history(input, node);
  autograd::change_tangent(input, [&](const Tensor& tangent) {
    return sigmoid_backward_op().call(tangent, autograd::primal(input));
  });
  if (node) node->output = SavedVariable(input, /*is_output=*/true, input.is_view());
  return input;
}

Tensor& sigmoid__version(c10::DispatchKeySet keys, Tensor& input) {
  return inplace::bump_version(keys, sigmoid__op(), input);
}

Tensor& sigmoid__functionalize(Tensor& input) {
  return inplace::functionalize(sigmoid__op(), sigmoid_op(), input);
}

// The second derivative. grad_input = g y (1 - y) is linear in g; its derivative by y is
// g (1 - 2 y).
Tensor slope_by_output(const Tensor& grad_output, const Tensor& output) {
  return grad_output * (1 - 2 * output);
}

struct SigmoidBackwardNode final : autograd::DerivativeNode<SigmoidBackwardNode> {
  static constexpr const char* kName = "SigmoidBackwardBackward";
  SavedVariable grad_output;
  SavedVariable output;

  template <class Visit>
  void fields(Visit&& visit) {
    visit(grad_output);
    visit(output);
  }

  variable_list backward(const Tensor& grad) {
    const Tensor y = unpack(output);
    variable_list grads(2);
    if (needs_input_grad(0)) grads[0] = sigmoid_backward_op().call(grad, y);
    if (needs_input_grad(1)) grads[1] = grad * slope_by_output(unpack(grad_output), y);
    return grads;
  }
};

Tensor sigmoid_backward_autograd(c10::DispatchKeySet keys, const Tensor& grad_output,
                                 const Tensor& output) {
  const auto node = autograd::make_node<SigmoidBackwardNode>(grad_output, output);
  Tensor grad_input = autograd::below_autograd(keys, sigmoid_backward_op(), grad_output, output);
  autograd::record(grad_input, node);
  autograd::set_tangent(
      grad_input,
      [&](const Tensor& grad_tangent, const Tensor& output_tangent) {
        const Tensor y = autograd::primal(output);
        Tensor by_grad, by_output;
        if (grad_tangent.defined()) by_grad = sigmoid_backward_op().call(grad_tangent, y);
        if (output_tangent.defined()) {
          by_output = output_tangent * slope_by_output(autograd::primal(grad_output), y);
        }
        if (!by_grad.defined()) return by_output;
        return by_output.defined() ? by_grad + by_output : by_grad;
      },
      grad_output, output);
  if (node) {
    if (node->should_compute_output(1)) {
      node->grad_output = SavedVariable(grad_output, /*is_output=*/false);
    }
    node->output = SavedVariable(output, /*is_output=*/false);
  }
  return grad_input;
}

// ---- torch.vmap ---------------------------------------------------------------------------------

Tensor sigmoid_batched(const Tensor& input) { return batching::unary(sigmoid_op(), input); }

Tensor& sigmoid__batched(Tensor& input) { return batching::unary_inplace(sigmoid__op(), input); }

Tensor sigmoid_backward_batched(const Tensor& grad_output, const Tensor& output) {
  return batching::binary(sigmoid_backward_op(), grad_output, output);
}

// ---- The direct pair: outside autograd, on contiguous CUDA tensors ------------------------------

Tensor forward(const Tensor& input) {
  CHECK_INPUT(input);
  return sigmoid<OnCuda>(input);
}

Tensor backward(const Tensor& grad_output, const Tensor& output) {
  CHECK_INPUT(grad_output);
  CHECK_INPUT(output);
  return sigmoid_backward<OnCuda>(grad_output, output);
}

// ---- Registration -------------------------------------------------------------------------------

template <class On>
void register_backend(torch::Library& m) {
  m.impl("sigmoid", sigmoid<On>);
  m.impl("sigmoid_", sigmoid_<On>);
  m.impl("sigmoid_backward", sigmoid_backward<On>);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(torch_ops, m) {
  // Jagged nested tensors hand their values to an op that is tagged as pointwise.
  const std::vector<at::Tag> tags{at::Tag::pt2_compliant_tag, at::Tag::pointwise};
  m.def("sigmoid(Tensor input) -> Tensor", tags);
  m.def("sigmoid_(Tensor(a!) input) -> Tensor(a!)", tags);
  m.def("sigmoid_backward(Tensor grad_output, Tensor output) -> Tensor", tags);
}

TORCH_LIBRARY_IMPL(torch_ops, CPU, m) { register_backend<OnCpu>(m); }
TORCH_LIBRARY_IMPL(torch_ops, CUDA, m) { register_backend<OnCuda>(m); }
TORCH_LIBRARY_IMPL(torch_ops, Meta, m) { register_backend<OnMeta>(m); }

TORCH_LIBRARY_IMPL(torch_ops, Autograd, m) {
  m.impl("sigmoid", sigmoid_autograd);
  m.impl("sigmoid_", sigmoid__autograd);
  m.impl("sigmoid_backward", sigmoid_backward_autograd);
}

TORCH_LIBRARY_IMPL(torch_ops, FuncTorchBatched, m) {
  m.impl("sigmoid", sigmoid_batched);
  m.impl("sigmoid_", sigmoid__batched);
  m.impl("sigmoid_backward", sigmoid_backward_batched);
}

TORCH_LIBRARY_IMPL(torch_ops, ADInplaceOrView, m) { m.impl("sigmoid_", sigmoid__version); }

TORCH_LIBRARY_IMPL(torch_ops, Functionalize, m) { m.impl("sigmoid_", sigmoid__functionalize); }

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.doc() = "The direct kernels of sigmoid, on contiguous CUDA tensors and outside autograd.";
  m.def("forward", &forward, "1 / (1 + exp(-input))", py::arg("input"));
  m.def("backward", &backward, "grad_output * output * (1 - output)", py::arg("grad_output"),
        py::arg("output"));
  python_call::def(m, "call", sigmoid_op());
  python_call::def(m, "call_inplace", sigmoid__op());
}

}  // namespace torch_ops
