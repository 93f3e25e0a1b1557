// An elementwise op of one tensor, for torch: kernels for the CPU, CUDA and Meta, derivatives of
// any order, forward mode, in-place form, torch.vmap. An op is a struct, registered in one line:
//
//   struct SigmoidOp final : ElementwiseOp<SigmoidOp> {
//     TORCH_OPS_SCHEMAS("sigmoid", "output")           // with sigmoid_ and sigmoid_backward
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
#include <ATen/TensorOperators.h>
#include <ATen/ops/zeros_like.h>
#include <torch/library.h>

#include <string>
#include <tuple>
#include <vector>

#include "common/elementwise/elementwise_layout.h"
#include "common/torch/calls/call_kernels.h"
#include "common/torch/calls/checks.h"
#include "common/torch/calls/new_output.h"
#include "common/torch/calls/python_call.h"
#include "common/torch/registration/autograd.h"
#include "common/torch/registration/batching.h"
#include "common/torch/registration/derive.h"
#include "common/torch/registration/inplace.h"
#include "common/torch/registration/register.h"

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
  using Batched = batching::Batched;

  // ---- What an op may replace -------------------------------------------------------------------

  // slope() is zero everywhere, and an op has none.
  static constexpr bool kPiecewiseLinear = false;

  // Is it the output that is saved, with these parameters?
  static bool saves_output(P...) { return Op::kSavesOutput; }

  // For dtypes and layouts that the kernels do not compute. An op that torch has too passes them to
  // torch's.
  static Tensor other(const Tensor& input, P...) {
    check_jagged_or_dense(registration::name_in(Op::kSchema), "input", input);
    check_floating(registration::name_in(Op::kSchema), "input", input);
    return input;
  }
  static Tensor& other_(Tensor& input, P...) {
    check_jagged_or_dense(registration::name_in(Op::kInplaceSchema), "input", input);
    check_floating(registration::name_in(Op::kInplaceSchema), "input", input);
    return input;
  }

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
          [&](P... each) {
            return op_of<Backward>().call(grad_output, this->unpack(saved), each...);
          },
          parameters)};
    }
  };

  // ---- The registered ops, in the form of register.h and derive.h -------------------------------

  struct Forward {
    static constexpr const char* kSchema = Op::kSchema;

    template <class On>
    static Tensor kernel(const Tensor& input, P... parameters, O...) {
      if (!is_kernel_float(input)) return Op::other(input, parameters...);
      Tensor output = new_output_like(input);
      call_launch<On>(output, input, parameters...);
      return output;
    }

    static Tensor others(const Tensor& input, P... parameters, O...) {
      return Op::other(input, parameters...);
    }

    static Tensor derive(Keys keys, const Tensor& input, P... parameters, O... options) {
      // torch's derivative, or its error.
      if (input.is_complex() || has_other_layout(input)) return Op::other(input, parameters...);
      const bool saves_output = Op::saves_output(parameters...);
      const auto node = autograd::make_node<Node>(input);
      Tensor output =
          autograd::below_autograd(keys, op_of<Forward>(), input, parameters..., options...);
      autograd::record(output, node);
      autograd::set_tangent(
          output,
          [&](const Tensor& tangent) {
            const Tensor& saved = saves_output ? output : input;
            return op_of<Backward>().call(tangent, autograd::primal(saved), parameters...);
          },
          input);
      if (node) {
        node->parameters = {parameters...};
        node->saved = SavedVariable(saves_output ? output : input, saves_output);
      }
      return output;
    }

    static Tensor batch(const Tensor& input, P... parameters, O... options) {
      return batching::apply(
          [&](const Batched& x) -> Batched {
            return {op_of<Forward>().call(x.value, parameters..., options...), x.axis};
          },
          input);
    }
  };

  struct Inplace {
    static constexpr const char* kSchema = Op::kInplaceSchema;

    template <class On>
    static Tensor& kernel(Tensor& input, P... parameters, O...) {
      if (!is_kernel_float(input)) return Op::other_(input, parameters...);
      check_no_overlap(registration::name_in(kSchema), "input", input);
      call_launch<On>(input, input, parameters...);
      return input;
    }

    static Tensor& others(Tensor& input, P... parameters, O...) {
      return Op::other_(input, parameters...);
    }

    static Tensor& derive(Keys keys, Tensor& input, P... parameters, O... options) {
      if (input.is_complex() || has_other_layout(input)) return Op::other_(input, parameters...);
      torch::autograd::check_inplace(input, torch::autograd::compute_requires_grad(input));
      const auto node = autograd::make_node<Node>(input);
      Tensor before;
      if (!Op::saves_output(parameters...) && (node || torch::autograd::isFwGradDefined(input))) {
        before = input.clone();  // with its history, for the second derivative
      }
      autograd::below_autograd(keys, op_of<Inplace>(), input, parameters..., options...);
      if (node) torch::autograd::rebase_history(input, node);
      autograd::change_tangent(input, [&](const Tensor& tangent) {
        const Tensor& saved = before.defined() ? before : input;
        // The tangent is overwritten: for a second derivative a copy of it is kept.
        const bool keeps = !Op::kPiecewiseLinear && c10::GradMode::is_enabled();
        return op_of<Backward>().call(keeps ? tangent.clone() : tangent, autograd::primal(saved),
                                      parameters...);
      });
      if (node) {
        node->parameters = {parameters...};
        node->saved = before.defined() ? SavedVariable(before, /*is_output=*/false)
                                       : SavedVariable(input, /*is_output=*/true, input.is_view());
      }
      return input;
    }

    static Tensor& functionalize(Tensor& input, P... parameters, O... options) {
      return inplace::functionalize_call(
          [&](Tensor& x) { op_of<Inplace>().call(x, parameters..., options...); },
          [&](const Tensor& x) { return op_of<Forward>().call(x, parameters..., options...); },
          input);
    }

    static Tensor& batch(Tensor& input, P... parameters, O... options) {
      batching::apply(
          [&](Batched x) {
            op_of<Inplace>().call(x.value, parameters..., options...);
            return x;
          },
          input);
      return input;
    }
  };

  struct Backward {
    static constexpr const char* kSchema = Op::kBackwardSchema;
    static inline const std::string kNode = std::string(Op::kNode) + "BackwardBackward";

    template <class On>
    static Tensor kernel(const Tensor& grad_output, const Tensor& saved, P... parameters) {
      check(grad_output, Op::kSavesOutput ? "output" : "input", saved);
      Tensor grad_input = new_output_like(saved);
      with_kernels<On>(grad_input, [&](auto on) {
        AT_DISPATCH_FLOATING_TYPES_AND2(
            at::kHalf, at::kBFloat16, saved.scalar_type(), kSchema, [&] {
              Op::launch_backward(on, make_walk(grad_input, grad_output, saved),
                                  output_of<scalar_t>(grad_input), input_of<scalar_t>(grad_output),
                                  input_of<scalar_t>(saved), parameters...);
            });
      });
      return grad_input;
    }

    // grad_input is linear in grad_output, so its derivative by that is the op itself. Where
    // slope() is zero, grad_output is not kept.
    static auto keep(const Tensor& grad_output, const Tensor& saved, P... parameters) {
      return std::tuple(grad_output, saved, parameters...);
    }

    static variable_list backward(autograd::Needed needed, const Tensor& grad,
                                  const Tensor& grad_output, const Tensor& saved, P... parameters) {
      variable_list grads(2);
      if (needed[0]) grads[0] = op_of<Backward>().call(grad, saved, parameters...);
      if (!needed[1]) return grads;
      if constexpr (Op::kPiecewiseLinear) {
        grads[1] = at::zeros_like(grad);  // which exists, as in torch
      } else {
        grads[1] = grad * Op::slope(grad_output, saved, parameters...);
      }
      return grads;
    }

    static Tensor derive(Keys keys, const Tensor& grad_output, const Tensor& saved,
                         P... parameters) {
      const auto& op = op_of<Backward>();
      const auto node = autograd::make_node<autograd::Node<Backward>>(grad_output, saved);
      Tensor grad_input = autograd::below_autograd(keys, op, grad_output, saved, parameters...);
      autograd::record(grad_input, node);
      autograd::set_tangent(
          grad_input,
          [&](const Tensor& grad_tangent, const Tensor& saved_tangent) {
            const Tensor value = autograd::primal(saved);
            Tensor by_grad, by_saved;
            if (grad_tangent.defined()) by_grad = op.call(grad_tangent, value, parameters...);
            if constexpr (!Op::kPiecewiseLinear) {
              if (saved_tangent.defined()) {
                by_saved =
                    saved_tangent * Op::slope(autograd::primal(grad_output), value, parameters...);
              }
            }
            if (!by_grad.defined()) {
              return by_saved.defined() ? by_saved : at::zeros_like(grad_input);
            }
            return by_saved.defined() ? by_grad + by_saved : by_grad;
          },
          grad_output, saved);
      if (node) {
        const bool has_slope = !Op::kPiecewiseLinear && node->should_compute_output(1);
        node->keep(has_slope ? grad_output : Tensor(), saved, parameters...);
      }
      return grad_input;
    }

    // Both tensors have one shape for each sample.
    static Tensor batch(const Tensor& grad_output, const Tensor& saved, P... parameters) {
      const auto& op = op_of<Backward>();
      return batching::apply(
          [&](const Batched& g, const Batched& s) -> Batched {
            if (!g.axis && !s.axis) return {op.call(g.value, s.value, parameters...), std::nullopt};
            const c10::SymInt size = g.axis ? g.size() : s.size();
            return {op.call(g.expanded_at(0, size), s.expanded_at(0, size), parameters...), 0};
          },
          grad_output, saved);
    }

   private:
    static constexpr std::string_view kName = registration::name_in(kSchema);

    static void check(const Tensor& grad_output, const char* name, const Tensor& saved) {
      check_floating(kName, name, saved);
      check_same_type(kName, "grad_output", grad_output, name, saved);
      TORCH_CHECK_VALUE(grad_output.sym_sizes() == saved.sym_sizes(), kName, ": grad_output and ",
                        name, " must have one shape, but grad_output has ", grad_output.sym_sizes(),
                        " and ", name, " has ", saved.sym_sizes(), ".");
      check_one_device(kName, "grad_output", grad_output, name, saved);
    }
  };

  static void register_ops(torch::Library& m) {
    // Jagged nested tensors pass their values to an op that is tagged as pointwise.
    const std::vector<at::Tag> tags{at::Tag::pt2_compliant_tag, at::Tag::pointwise};
    register_op<typename Op::Forward>(m, tags);
    register_op<typename Op::Inplace>(m, tags);
    register_op<Backward>(m, tags);
  }

  // For the op's module: call_<name> and call_<name>_, and the names of its nodes.
  static void def_calls(pybind11::module_& m) {
    autograd::name_nodes_in_python();
    const std::string name = "call_" + std::string(registration::name_in(Op::kSchema));
    python_call::def(m, name, op_of<Forward>());
    python_call::def(m, name + "_", op_of<Inplace>());
  }

 private:
  template <class On>
  static void call_launch(const Tensor& output, const Tensor& input, P... parameters) {
    with_kernels<On>(output, [&](auto on) {
      AT_DISPATCH_FLOATING_TYPES_AND2(
          at::kHalf, at::kBFloat16, input.scalar_type(), Op::kSchema, [&] {
            Op::launch(on, make_walk(output, input), output_of<scalar_t>(output),
                       input_of<scalar_t>(input), parameters...);
          });
    });
  }
};

}  // namespace torch_ops

// In an op's struct: its schemas, if it has no parameters; `saved` is "output" or "input".
#define TORCH_OPS_SCHEMAS(name, saved)                                                    \
  static constexpr const char* kSchema = name "(Tensor input) -> Tensor";                 \
  static constexpr const char* kInplaceSchema = name "_(Tensor(a!) input) -> Tensor(a!)"; \
  static constexpr const char* kBackwardSchema =                                          \
      name "_backward(Tensor grad_output, Tensor " saved ") -> Tensor";

// In an op's struct: the launchers of common/elementwise/launchers.h.
#define TORCH_OPS_LAUNCHED_BY(name)                                          \
  static constexpr auto launch = [](const auto&... args) { name(args...); }; \
  static constexpr auto launch_backward = [](const auto&... args) { name##_backward(args...); };

#define TORCH_OPS_REGISTER_ELEMENTWISE(Op) \
  TORCH_LIBRARY_FRAGMENT(torch_ops, m) { Op::register_ops(m); }
