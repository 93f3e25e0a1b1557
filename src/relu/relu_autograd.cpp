// The derivatives of relu and leaky_relu, and what else stands above their kernels: torch.vmap,
// in-place forms.
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros_like.h>
#include <torch/library.h>

#include "common/elementwise/elementwise_layout.h"
#include "common/torch/autograd.h"
#include "common/torch/batching.h"
#include "common/torch/checks.h"
#include "common/torch/inplace.h"
#include "common/torch/op.h"
#include "relu/relu.h"

namespace torch_ops {
namespace {

using at::Tensor;
using autograd::SavedVariable;
using autograd::variable_list;

template <class... SlopeArg>
const auto& activation_op() {
  static const auto op = find_op<Tensor(const Tensor&, SlopeArg..., bool)>(kOpName<SlopeArg...>);
  return op;
}

template <class... SlopeArg>
const auto& activation__op() {
  static const auto op = find_op<Tensor&(Tensor&, SlopeArg..., bool)>(
      (std::string(kOpName<SlopeArg...>) + "_").c_str());
  return op;
}

template <class... SlopeArg>
const auto& backward_op() {
  static const auto op = find_op<Tensor(const Tensor&, const Tensor&, SlopeArg...)>(
      (std::string(kOpName<SlopeArg...>) + "_backward").c_str());
  return op;
}

const auto& mask_op() {
  static const auto op = find_op<std::tuple<Tensor, Tensor>(const Tensor&, Slope)>("_relu_mask");
  return op;
}

const auto& mask__op() {
  static const auto op = find_op<Tensor(Tensor&, Slope)>("_relu_mask_");
  return op;
}

const auto& mask_backward_op() {
  static const auto op =
      find_op<Tensor(const Tensor&, const Tensor&, at::IntArrayRef, Slope)>("_relu_mask_backward");
  return op;
}

// The gradient from a tensor that is kept where the input is.
Tensor backward_by(const Tensor& reference, const Tensor& grad_output, Slope slope) {
  return slope ? backward_op<double>().call(grad_output, reference, *slope)
               : backward_op<>().call(grad_output, reference);
}

// Is that the output? With a negative slope it is not, for its sign is always the same.
bool output_tells(Slope slope) { return slope.value_or(0) >= 0; }

// ---- Derivative ---------------------------------------------------------------------------------

// The order in which a mask goes through the elements, for _relu_mask_backward: none where the
// result is contiguous.
std::vector<int64_t> mask_order(const Tensor& result) {
  if (result.is_contiguous()) return {};
  const AxisOrder order = memory_order(result);
  return {order.begin(), order.end()};
}

// Saves the mask alone.
struct MaskNode final : autograd::DerivativeNode<MaskNode> {
  static constexpr const char* kName = "ReluMaskBackward";
  SavedVariable mask;
  std::vector<int64_t> order;
  Slope slope;

  template <class Visit>
  void fields(Visit&& visit) {
    visit(mask);
    visit(order);
    visit(slope);
  }

  variable_list backward(const Tensor& grad_output) {
    const Tensor grad = mask_backward_op().call(grad_output, unpack(mask), order, slope);
    // Under create_graph=True the gradient depends on the input, if only by zeros: a Hessian of
    // relu is zeros, not an error. A saved output would tell autograd so by itself.
    return {autograd::with_zero_gradient(grad, *this)};
  }

  void save(const Tensor& result, const Tensor& saved_mask, Slope of_slope) {
    mask = SavedVariable(saved_mask, /*is_output=*/false);
    order = mask_order(result);
    slope = of_slope;
  }
};

// Saves the output, or the input where the output does not tell.
struct OutputNode final : autograd::DerivativeNode<OutputNode> {
  static constexpr const char* kName = "ReluBackward";
  SavedVariable reference;
  Slope slope;

  template <class Visit>
  void fields(Visit&& visit) {
    visit(reference, /*is_output=*/output_tells(slope));
    visit(slope);
  }

  variable_list backward(const Tensor& grad_output) {
    return {backward_by(unpack(reference), grad_output, slope)};
  }
};

// Under a transform of torch.func the output is saved: a mask has no axis that torch.vmap could
// hide, and what a transform saves is gone when it returns. So it is of a nested tensor: torch
// hands its values to ops that return one tensor.
bool saves_mask(const Tensor& input, bool save_mask) {
  return save_mask && is_kernel_float(input) && !input.is_nested() &&
         torch::autograd::compute_requires_grad(input) &&
         !at::functorch::maybeCurrentDynamicLayer();
}

template <class... SlopeArg>
Tensor activation_autograd(c10::DispatchKeySet keys, const Tensor& input, SlopeArg... slope_arg,
                           bool save_mask) {
  const Slope slope = slope_of(slope_arg...);
  Tensor output;
  const auto tangent = [&](const Tensor& input_tangent) {
    const Tensor& reference = output_tells(slope) ? output : input;
    return backward_by(autograd::primal(reference), input_tangent, slope);
  };
  if (saves_mask(input, save_mask)) {
    const auto node = autograd::make_node<MaskNode>(input);
    Tensor mask;
    std::tie(output, mask) = autograd::below_autograd(keys, mask_op(), input, slope);
    autograd::record(output, node);
    autograd::set_tangent(output, tangent, input);
    node->save(output, mask, slope);
    return output;
  }
  const auto node = autograd::make_node<OutputNode>(input);
  output =
      autograd::below_autograd(keys, activation_op<SlopeArg...>(), input, slope_arg..., save_mask);
  autograd::record(output, node);
  autograd::set_tangent(output, tangent, input);
  if (node) {
    node->slope = slope;
    node->reference = output_tells(slope) ? SavedVariable(output, /*is_output=*/true)
                                          : SavedVariable(input, /*is_output=*/false);
  }
  return output;
}

template <class... SlopeArg>
Tensor& activation__autograd(c10::DispatchKeySet keys, Tensor& input, SlopeArg... slope_arg,
                             bool save_mask) {
  const Slope slope = slope_of(slope_arg...);
  torch::autograd::check_inplace(input, torch::autograd::compute_requires_grad(input));
  if (saves_mask(input, save_mask)) {
    const auto node = autograd::make_node<MaskNode>(input);
    const Tensor mask = autograd::below_autograd(keys, mask__op(), input, slope);
    torch::autograd::rebase_history(input, node);
    node->save(input, mask, slope);
    autograd::change_tangent(input, [&](const Tensor& tangent) {
      return mask_backward_op().call(tangent, mask, node->order, slope);
    });
    return input;
  }
  const auto node = autograd::make_node<OutputNode>(input);
  Tensor before;
  if (!output_tells(slope) && (node || torch::autograd::isFwGradDefined(input))) {
    before = autograd::primal(input).detach().clone();
  }
  autograd::below_autograd(keys, activation__op<SlopeArg...>(), input, slope_arg..., save_mask);
  if (node) torch::autograd::rebase_history(input, node);
  autograd::change_tangent(input, [&](const Tensor& tangent) {
    return backward_by(before.defined() ? before : autograd::primal(input), tangent, slope);
  });
  if (node) {
    node->slope = slope;
    node->reference = before.defined() ? SavedVariable(before, /*is_output=*/false)
                                       : SavedVariable(input, /*is_output=*/true, input.is_view());
  }
  return input;
}

// The second derivatives: both activations are piecewise linear, so only grad_output gets a
// gradient; output's is zero (and exists, as it does in torch).
struct BackwardNode final : autograd::DerivativeNode<BackwardNode> {
  static constexpr const char* kName = "ReluBackwardBackward";
  SavedVariable output;
  Slope slope;

  template <class Visit>
  void fields(Visit&& visit) {
    visit(output);
    visit(slope);
  }

  variable_list backward(const Tensor& grad) {
    variable_list grads(2);
    if (needs_input_grad(0)) grads[0] = backward_by(unpack(output), grad, slope);
    if (needs_input_grad(1)) grads[1] = at::zeros_like(grad);
    return grads;
  }
};

template <class... SlopeArg>
Tensor backward_autograd(c10::DispatchKeySet keys, const Tensor& grad_output, const Tensor& output,
                         SlopeArg... slope_arg) {
  const Slope slope = slope_of(slope_arg...);
  const auto node = autograd::make_node<BackwardNode>(grad_output, output);
  Tensor grad_input =
      autograd::below_autograd(keys, backward_op<SlopeArg...>(), grad_output, output, slope_arg...);
  autograd::record(grad_input, node);
  autograd::set_tangent(
      grad_input,
      [&](const Tensor& tangent, const Tensor& /*output's: it changes nothing*/) {
        return tangent.defined() ? backward_by(autograd::primal(output), tangent, slope)
                                 : at::zeros_like(grad_input);
      },
      grad_output, output);
  if (node) {
    node->output = SavedVariable(output, /*is_output=*/false);
    node->slope = slope;
  }
  return grad_input;
}

// Linear in grad_output, so its derivative is the op itself; a mask has none.
Tensor mask_backward_autograd(c10::DispatchKeySet keys, const Tensor& grad_output,
                              const Tensor& mask, at::IntArrayRef order, Slope slope) {
  const auto node = autograd::make_node<MaskNode>(grad_output);
  Tensor grad_input =
      autograd::below_autograd(keys, mask_backward_op(), grad_output, mask, order, slope);
  autograd::record(grad_input, node);
  autograd::set_tangent(
      grad_input,
      [&](const Tensor& tangent) { return mask_backward_op().call(tangent, mask, order, slope); },
      grad_output);
  if (node) {
    node->mask = SavedVariable(mask, /*is_output=*/false);
    node->order = order.vec();
    node->slope = slope;
  }
  return grad_input;
}

// ---- In-place forms: version counter, functional form -------------------------------------------

template <class... SlopeArg>
Tensor& activation__version(c10::DispatchKeySet keys, Tensor& input, SlopeArg... slope_arg,
                            bool save_mask) {
  return inplace::bump_version(keys, activation__op<SlopeArg...>(), input, slope_arg..., save_mask);
}

Tensor mask__version(c10::DispatchKeySet keys, Tensor& input, Slope slope) {
  return inplace::bump_version(keys, mask__op(), input, slope);
}

template <class... SlopeArg>
Tensor& activation__functionalize(Tensor& input, SlopeArg... slope_arg, bool save_mask) {
  return inplace::functionalize(activation__op<SlopeArg...>(), activation_op<SlopeArg...>(), input,
                                slope_arg..., save_mask);
}

Tensor mask__functionalize(Tensor& input, Slope slope) {
  namespace functional = at::functionalization::impl;
  if (!functional::isFunctionalTensor(input)) {
    at::AutoDispatchSkipFunctionalize guard;
    return mask__op().call(input, slope);
  }
  Tensor mask;
  inplace::replace(input, [&](const Tensor& before) {
    auto [after, its_mask] = mask_op().call(before, slope);
    mask = its_mask;
    return after;
  });
  return functional::to_functional_tensor(mask);
}

// ---- torch.vmap ---------------------------------------------------------------------------------

template <class... SlopeArg>
Tensor activation_batched(const Tensor& input, SlopeArg... slope_arg, bool save_mask) {
  return batching::unary(activation_op<SlopeArg...>(), input, slope_arg..., save_mask);
}

template <class... SlopeArg>
Tensor& activation__batched(Tensor& input, SlopeArg... slope_arg, bool save_mask) {
  return batching::unary_inplace(activation__op<SlopeArg...>(), input, slope_arg..., save_mask);
}

template <class... SlopeArg>
Tensor backward_batched(const Tensor& grad_output, const Tensor& output, SlopeArg... slope_arg) {
  return batching::binary(backward_op<SlopeArg...>(), grad_output, output, slope_arg...);
}

// Several gradients for one mask, which was written outside torch.vmap.
Tensor mask_backward_batched(const Tensor& grad_output, const Tensor& mask, at::IntArrayRef order,
                             Slope slope) {
  return batching::apply(
      [&](const batching::Batched& grad, const batching::Batched& bits) -> batching::Batched {
        TORCH_CHECK(!bits.axis, "_relu_mask_backward: torch.vmap cannot map over a mask.");
        if (!grad.axis) {
          return {mask_backward_op().call(grad.value, bits.value, order, slope), std::nullopt};
        }
        const Tensor all = grad.at(0);
        // 1 where the mask is set, else 0: in the place of an output.
        const Tensor ones = at::ones_like(all.select(0, 0));
        const Tensor output = mask_backward_op().call(ones, bits.value, order, std::nullopt);
        return {backward_by(output.expand_as(all), all, slope), 0};
      },
      grad_output, mask);
}

// ---- Registration -------------------------------------------------------------------------------

template <class... SlopeArg>
void register_autograd(torch::Library& m) {
  const std::string name = kOpName<SlopeArg...>;
  m.impl(name.c_str(), activation_autograd<SlopeArg...>);
  m.impl((name + "_").c_str(), activation__autograd<SlopeArg...>);
  m.impl((name + "_backward").c_str(), backward_autograd<SlopeArg...>);
}

template <class... SlopeArg>
void register_batching(torch::Library& m) {
  const std::string name = kOpName<SlopeArg...>;
  m.impl(name.c_str(), activation_batched<SlopeArg...>);
  m.impl((name + "_").c_str(), activation__batched<SlopeArg...>);
  m.impl((name + "_backward").c_str(), backward_batched<SlopeArg...>);
}

}  // namespace

TORCH_LIBRARY_IMPL(torch_ops, Autograd, m) {
  register_autograd<>(m);
  register_autograd<double>(m);
  m.impl("_relu_mask_backward", mask_backward_autograd);
}

TORCH_LIBRARY_IMPL(torch_ops, FuncTorchBatched, m) {
  register_batching<>(m);
  register_batching<double>(m);
  m.impl("_relu_mask_backward", mask_backward_batched);
}

TORCH_LIBRARY_IMPL(torch_ops, ADInplaceOrView, m) {
  m.impl("relu_", activation__version<>);
  m.impl("leaky_relu_", activation__version<double>);
  m.impl("_relu_mask_", mask__version);
}

TORCH_LIBRARY_IMPL(torch_ops, Functionalize, m) {
  m.impl("relu_", activation__functionalize<>);
  m.impl("leaky_relu_", activation__functionalize<double>);
  m.impl("_relu_mask_", mask__functionalize);
}

}  // namespace torch_ops
