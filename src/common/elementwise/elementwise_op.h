// An elementwise op of one tensor, for torch: schemas, kernels for the CPU, CUDA and Meta,
// derivatives of any order, forward mode, in-place form, torch.vmap. An op is a struct, registered
// in one line:
//
//   struct SigmoidOp final : ElementwiseOp<SigmoidOp> {
//     static constexpr const char* kName = "sigmoid";  // with sigmoid_ and sigmoid_backward
//     static constexpr const char* kNode = "Sigmoid";  // autograd's node is SigmoidBackward
//     static constexpr bool kSavesOutput = true;       // for the derivative; else the input
//
//     TORCH_OPS_LAUNCHED_BY(kernels::sigmoid)          // and by kernels::sigmoid_backward
//
//     // The derivative of sigmoid_backward by what is saved.
//     static Tensor slope(const Tensor& grad_output, const Tensor& output);
//   };
//   TORCH_OPS_REGISTER_ELEMENTWISE(SigmoidOp)
//
// leaky_relu (relu/relu.h) is an op with a parameter and an option.
#pragma once

#include <ATen/Dispatch.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/zeros_like.h>
#include <torch/library.h>

#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "common/elementwise/elementwise_layout.h"
#include "common/torch/autograd.h"
#include "common/torch/batching.h"
#include "common/torch/call_kernels.h"
#include "common/torch/checks.h"
#include "common/torch/inplace.h"
#include "common/torch/new_output.h"
#include "common/torch/op.h"
#include "common/torch/python_call.h"

namespace torch_ops {

template <class... T>
struct Types {};

// Parameters go to the kernels of both passes, options only to the forward op.
template <class Op, class Parameters = Types<>, class Options = Types<>>
struct ElementwiseOp;

template <class Op, class... P, class... O>
struct ElementwiseOp<Op, Types<P...>, Types<O...>> {
  using Tensor = at::Tensor;
  using SavedVariable = autograd::SavedVariable;
  using variable_list = autograd::variable_list;
  using Keys = c10::DispatchKeySet;

  // ---- What an op may replace -------------------------------------------------------------------

  // What follows the tensors in the schemas, such as ", float negative_slope=0.01".
  static constexpr const char* kArguments = "";
  static constexpr const char* kBackwardArguments = "";

  // slope() is zero everywhere, and an op has none.
  static constexpr bool kPiecewiseLinear = false;

  // Is it the output that is saved, with these parameters?
  static bool saves_output(P...) { return Op::kSavesOutput; }

  // For dtypes that the kernels do not compute. An op that torch has too passes them to torch's.
  static Tensor other_dtype(const Tensor& input, P...) {
    CHECK_FLOATING(Op::kName, input);
    return input;
  }
  static Tensor& other_dtype_(Tensor& input, P...) {
    CHECK_FLOATING(inplace_name(), input);
    return input;
  }

  // ---- The registered ops -----------------------------------------------------------------------

  static std::string inplace_name() { return std::string(Op::kName) + "_"; }
  static std::string backward_name() { return std::string(Op::kName) + "_backward"; }

  static const auto& op() {
    static const auto found = find_op<Tensor(const Tensor&, P..., O...)>(Op::kName);
    return found;
  }

  static const auto& inplace_op() {
    static const auto found = find_op<Tensor&(Tensor&, P..., O...)>(inplace_name().c_str());
    return found;
  }

  static const auto& backward_op() {
    static const auto found =
        find_op<Tensor(const Tensor&, const Tensor&, P...)>(backward_name().c_str());
    return found;
  }

  // ---- CPU, CUDA and Meta kernels: `On` says which ----------------------------------------------

  template <class On>
  static Tensor forward(const Tensor& input, P... parameters, O...) {
    if (!is_kernel_float(input)) return Op::other_dtype(input, parameters...);
    Tensor output = new_output_like(input);
    call_launch<On>(output, input, parameters...);
    return output;
  }

  template <class On>
  static Tensor& forward_(Tensor& input, P... parameters, O...) {
    if (!is_kernel_float(input)) return Op::other_dtype_(input, parameters...);
    at::assert_no_internal_overlap(input);
    call_launch<On>(input, input, parameters...);
    return input;
  }

  template <class On>
  static Tensor backward(const Tensor& grad_output, const Tensor& saved, P... parameters) {
    if constexpr (Op::kSavesOutput) {
      check_backward_by_output(grad_output, saved);
    } else {
      check_backward_by_input(grad_output, saved);
    }
    Tensor grad_input = new_output_like(saved);
    with_kernels<On>(grad_input, [&](auto on) {
      AT_DISPATCH_FLOATING_TYPES_AND2(
          at::kHalf, at::kBFloat16, saved.scalar_type(), Op::kName, [&] {
            Op::launch_backward(on, make_walk(grad_input, grad_output, saved),
                                output_of<scalar_t>(grad_input), input_of<scalar_t>(grad_output),
                                input_of<scalar_t>(saved), parameters...);
          });
    });
    return grad_input;
  }

  // ---- Derivative -------------------------------------------------------------------------------

  struct Node final : autograd::DerivativeNode<Node> {
    static inline const std::string kName = std::string(Op::kNode) + "Backward";
    SavedVariable saved;
    std::tuple<P...> parameters{};

    template <class Visit>
    void fields(Visit&& visit) {
      visit(saved, /*is_output=*/std::apply(Op::saves_output, parameters));
      std::apply([&](auto&... each) { (visit(each), ...); }, parameters);
    }

    variable_list backward(const Tensor& grad_output) {
      return {std::apply(
          [&](P... each) { return backward_op().call(grad_output, this->unpack(saved), each...); },
          parameters)};
    }
  };

  static Tensor forward_autograd(Keys keys, const Tensor& input, P... parameters, O... options) {
    // torch's derivative, or its error.
    if (input.is_complex()) return Op::other_dtype(input, parameters...);
    const bool saves_output = Op::saves_output(parameters...);
    const auto node = autograd::make_node<Node>(input);
    Tensor output = autograd::below_autograd(keys, op(), input, parameters..., options...);
    autograd::record(output, node);
    autograd::set_tangent(
        output,
        [&](const Tensor& tangent) {
          const Tensor& saved = saves_output ? output : input;
          return backward_op().call(tangent, autograd::primal(saved), parameters...);
        },
        input);
    if (node) {
      node->parameters = {parameters...};
      node->saved = SavedVariable(saves_output ? output : input, saves_output);
    }
    return output;
  }

  static Tensor& inplace_autograd(Keys keys, Tensor& input, P... parameters, O... options) {
    if (input.is_complex()) return Op::other_dtype_(input, parameters...);
    torch::autograd::check_inplace(input, torch::autograd::compute_requires_grad(input));
    const auto node = autograd::make_node<Node>(input);
    Tensor before;
    if (!Op::saves_output(parameters...) && (node || torch::autograd::isFwGradDefined(input))) {
      before = input.clone();  // with its history, for the second derivative
    }
    autograd::below_autograd(keys, inplace_op(), input, parameters..., options...);
    if (node) torch::autograd::rebase_history(input, node);
    autograd::change_tangent(input, [&](const Tensor& tangent) {
      const Tensor& saved = before.defined() ? before : input;
      return backward_op().call(tangent, autograd::primal(saved), parameters...);
    });
    if (node) {
      node->parameters = {parameters...};
      node->saved = before.defined() ? SavedVariable(before, /*is_output=*/false)
                                     : SavedVariable(input, /*is_output=*/true, input.is_view());
    }
    return input;
  }

  // grad_input is linear in grad_output, so its derivative by that is the backward op itself.
  struct BackwardNode final : autograd::DerivativeNode<BackwardNode> {
    static inline const std::string kName = std::string(Op::kNode) + "BackwardBackward";
    SavedVariable grad_output;  // left empty where slope() is zero
    SavedVariable saved;
    std::tuple<P...> parameters{};

    template <class Visit>
    void fields(Visit&& visit) {
      if constexpr (!Op::kPiecewiseLinear) visit(grad_output);
      visit(saved);
      std::apply([&](auto&... each) { (visit(each), ...); }, parameters);
    }

    variable_list backward(const Tensor& grad) {
      const Tensor value = this->unpack(saved);
      variable_list grads(2);
      std::apply(
          [&](P... each) {
            if (this->needs_input_grad(0)) grads[0] = backward_op().call(grad, value, each...);
            if (!this->needs_input_grad(1)) return;
            if constexpr (Op::kPiecewiseLinear) {
              grads[1] = at::zeros_like(grad);  // which exists, as in torch
            } else {
              grads[1] = grad * Op::slope(this->unpack(grad_output), value, each...);
            }
          },
          parameters);
      return grads;
    }
  };

  static Tensor backward_autograd(Keys keys, const Tensor& grad_output, const Tensor& saved,
                                  P... parameters) {
    const auto node = autograd::make_node<BackwardNode>(grad_output, saved);
    Tensor grad_input =
        autograd::below_autograd(keys, backward_op(), grad_output, saved, parameters...);
    autograd::record(grad_input, node);
    autograd::set_tangent(
        grad_input,
        [&](const Tensor& grad_tangent, const Tensor& saved_tangent) {
          const Tensor value = autograd::primal(saved);
          Tensor by_grad, by_saved;
          if (grad_tangent.defined())
            by_grad = backward_op().call(grad_tangent, value, parameters...);
          if constexpr (!Op::kPiecewiseLinear) {
            if (saved_tangent.defined()) {
              by_saved =
                  saved_tangent * Op::slope(autograd::primal(grad_output), value, parameters...);
            }
          }
          if (!by_grad.defined()) return by_saved.defined() ? by_saved : at::zeros_like(grad_input);
          return by_saved.defined() ? by_grad + by_saved : by_grad;
        },
        grad_output, saved);
    if (node) {
      if (!Op::kPiecewiseLinear && node->should_compute_output(1)) {
        node->grad_output = SavedVariable(grad_output, /*is_output=*/false);
      }
      node->saved = SavedVariable(saved, /*is_output=*/false);
      node->parameters = {parameters...};
    }
    return grad_input;
  }

  // ---- In-place form, torch.vmap ----------------------------------------------------------------

  static Tensor& inplace_version(Keys keys, Tensor& input, P... parameters, O... options) {
    return inplace::bump_version(keys, inplace_op(), input, parameters..., options...);
  }

  static Tensor& inplace_functionalize(Tensor& input, P... parameters, O... options) {
    return inplace::functionalize(inplace_op(), op(), input, parameters..., options...);
  }

  static Tensor forward_batched(const Tensor& input, P... parameters, O... options) {
    return batching::unary(op(), input, parameters..., options...);
  }

  static Tensor& inplace_batched(Tensor& input, P... parameters, O... options) {
    return batching::unary_inplace(inplace_op(), input, parameters..., options...);
  }

  static Tensor backward_batched(const Tensor& grad_output, const Tensor& saved, P... parameters) {
    return batching::binary(backward_op(), grad_output, saved, parameters...);
  }

  // ---- Registration -----------------------------------------------------------------------------

  static void register_ops(torch::Library& m) {
    // Jagged nested tensors pass their values to an op that is tagged as pointwise.
    const std::vector<at::Tag> tags{at::Tag::pt2_compliant_tag, at::Tag::pointwise};
    const std::string arguments = Op::kArguments;
    const std::string saved = Op::kSavesOutput ? "output" : "input";
    const auto def = [&](const std::string& schema) { m.def(schema.c_str(), tags); };
    def(std::string(Op::kName) + "(Tensor input" + arguments + ") -> Tensor");
    def(inplace_name() + "(Tensor(a!) input" + arguments + ") -> Tensor(a!)");
    def(backward_name() + "(Tensor grad_output, Tensor " + saved + Op::kBackwardArguments +
        ") -> Tensor");
    using Key = c10::DispatchKey;
    const auto implement = [&](const std::string& name, Key key, auto* function) {
      m.impl(name.c_str(), torch::dispatch(key, function));
    };
    const auto implement_all = [&](Key key, auto* forward, auto* inplace, auto* backward) {
      implement(Op::kName, key, forward);
      implement(inplace_name(), key, inplace);
      implement(backward_name(), key, backward);
    };
    implement_all(Key::CPU, &Op::template forward<OnCpu>, &Op::template forward_<OnCpu>,
                  &Op::template backward<OnCpu>);
    implement_all(Key::CUDA, &Op::template forward<OnCuda>, &Op::template forward_<OnCuda>,
                  &Op::template backward<OnCuda>);
    implement_all(Key::Meta, &Op::template forward<OnMeta>, &Op::template forward_<OnMeta>,
                  &Op::template backward<OnMeta>);
    implement_all(Key::Autograd, &Op::forward_autograd, &Op::inplace_autograd,
                  &Op::backward_autograd);
    implement_all(Key::FuncTorchBatched, &Op::forward_batched, &Op::inplace_batched,
                  &Op::backward_batched);
    implement(inplace_name(), Key::ADInplaceOrView, &Op::inplace_version);
    implement(inplace_name(), Key::Functionalize, &Op::inplace_functionalize);
  }

  // For the op's module: call_<name> and call_<name>_, and the names of its nodes.
  static void def_calls(pybind11::module_& m) {
    autograd::name_nodes_in_python();
    const std::string name = std::string("call_") + Op::kName;
    python_call::def(m, name.c_str(), op());
    python_call::def(m, (name + "_").c_str(), inplace_op());
  }

 private:
  template <class On>
  static void call_launch(const Tensor& output, const Tensor& input, P... parameters) {
    with_kernels<On>(output, [&](auto on) {
      AT_DISPATCH_FLOATING_TYPES_AND2(
          at::kHalf, at::kBFloat16, input.scalar_type(), Op::kName, [&] {
            Op::launch(on, make_walk(output, input), output_of<scalar_t>(output),
                       input_of<scalar_t>(input), parameters...);
          });
    });
  }

  // Messages show the names of arguments.
  static void check_backward_by_output(const Tensor& grad_output, const Tensor& output) {
    CHECK_FLOATING(backward_name(), output);
    CHECK_SAME_TYPE(backward_name(), grad_output, output);
    CHECK_SAME_SHAPE(backward_name(), grad_output, output);
    CHECK_SAME_DEVICE(backward_name(), grad_output, output);
  }

  static void check_backward_by_input(const Tensor& grad_output, const Tensor& input) {
    CHECK_FLOATING(backward_name(), input);
    CHECK_SAME_TYPE(backward_name(), grad_output, input);
    CHECK_SAME_SHAPE(backward_name(), grad_output, input);
    CHECK_SAME_DEVICE(backward_name(), grad_output, input);
  }
};

}  // namespace torch_ops

// In an op's struct: the launchers of common/elementwise/launchers.h.
#define TORCH_OPS_LAUNCHED_BY(name)                                          \
  static constexpr auto launch = [](const auto&... args) { name(args...); }; \
  static constexpr auto launch_backward = [](const auto&... args) { name##_backward(args...); };

#define TORCH_OPS_REGISTER_ELEMENTWISE(Op) \
  TORCH_LIBRARY_FRAGMENT(torch_ops, m) { Op::register_ops(m); }
