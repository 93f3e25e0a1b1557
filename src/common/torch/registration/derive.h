// The derivative of most ops: what the node keeps, and what backward computes from it.
//
//   struct Foo {  // register.h has the rest
//     static constexpr const char* kNode = "FooBackward";
//     // Takes the op's arguments. Tensors among the results become SavedVariables.
//     static auto keep(const Tensor& input, const Tensor& index, int64_t dim) {
//       return std::tuple(index, input.sym_size(dim), dim);
//     }
//     static Tensor backward(const Tensor& grad_output, const Tensor& index,
//                            const c10::SymInt& size, int64_t dim);
//     // For forward-mode AD, if Foo is not linear in its first argument:
//     static Tensor tangent(const Tensor& tangent, const Tensor& input, ...);
//   };
//
// This is for an op of which only the first argument has a gradient. One with two such arguments
// has its own `derive`, with autograd::Node<Foo>, and its `backward` first gets which of the two
// gradients are needed, and returns both. A `backward` that needs the node gets it first.
#pragma once

#include <array>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "common/torch/registration/autograd.h"
#include "common/torch/registration/register.h"

namespace torch_ops::autograd {

using Needed = std::array<bool, 2>;

// A result of the op among what it keeps, which a node must not own.
struct Output {
  Tensor tensor;
  operator const Tensor&() const { return tensor; }
};

// As the node keeps it.
template <class T>
T save(T value) {
  return value;
}
inline SavedVariable save(const Tensor& tensor) { return {tensor, /*is_output=*/false}; }
inline SavedVariable save(const std::optional<Tensor>& tensor) {
  return save(tensor.value_or(Tensor()));
}
inline SavedVariable save(const Output& output) { return {output.tensor, /*is_output=*/true}; }
inline std::vector<SavedVariable> save(const std::vector<Tensor>& tensors) {
  std::vector<SavedVariable> saved;
  for (const Tensor& tensor : tensors) saved.push_back(save(tensor));
  return saved;
}

template <class Op, class Kept>
struct KeepingNode;

template <class Op, class... Kept>
struct KeepingNode<Op, std::tuple<Kept...>> final
    : DerivativeNode<KeepingNode<Op, std::tuple<Kept...>>> {
  static constexpr const auto& kName = Op::kNode;
  std::tuple<decltype(save(std::declval<Kept>()))...> kept;

  template <class Visit>
  void fields(Visit&& visit) {
    std::apply([&](auto&... each) { (visit(each, std::is_same_v<Kept, Output>), ...); }, kept);
  }

  template <class... Args>
  void keep(const Args&... args) {
    std::apply([&](auto&&... each) { kept = decltype(kept)(save(std::move(each))...); },
               Op::keep(args...));
  }

  variable_list backward(const Tensor& grad_output) {
    return std::apply(
        [&](const auto&... each) -> variable_list {
          using Backward = decltype(Op::backward);
          if constexpr (std::is_invocable_v<Backward, const Tensor&, Kept...>) {
            return {Op::backward(grad_output, as_kept<Kept>(each)...)};
          } else if constexpr (std::is_invocable_v<Backward, Needed, const Tensor&, Kept...>) {
            const Needed needed = {this->needs_input_grad(0), this->needs_input_grad(1)};
            return Op::backward(needed, grad_output, as_kept<Kept>(each)...);
          } else {
            return {Op::backward(*this, grad_output, as_kept<Kept>(each)...)};
          }
        },
        kept);
  }

 private:
  template <class T, class Field>
  decltype(auto) as_kept(const Field& field) {
    if constexpr (std::is_same_v<T, std::optional<Tensor>>) {
      Tensor tensor = this->unpack(field);
      return tensor.defined() ? std::optional<Tensor>(std::move(tensor)) : std::nullopt;
    } else {
      return this->unpack(field);
    }
  }
};

template <class Return, class... Args>
Return result_of(Return (*)(Args...));

template <class Op>
using Node = KeepingNode<Op, decltype(result_of(&Op::keep))>;

// Registered for the Autograd key.
template <class Op, class... Args>
Tensor derive(c10::DispatchKeySet keys, const Tensor& input, const Args&... args) {
  const auto node = make_node<Node<Op>>(input);
  Tensor output = below_autograd(keys, op_of<Op>(), input, args...);
  record(output, node);
  set_tangent(
      output,
      [&](const Tensor& tangent) {
        if constexpr (registration::has_tangent<Op>) {
          return Op::tangent(tangent, input, args...);
        } else {
          return op_of<Op>().call(tangent, args...);
        }
      },
      input);
  if (node) node->keep(input, args...);
  return output;
}

// The base of an op whose result, such as positions, has no derivative.
template <class Op>
struct WithoutDerivative {
  template <class... Args>
  static Tensor derive(c10::DispatchKeySet keys, const Args&... args) {
    return below_autograd(keys, op_of<Op>(), args...);
  }
};

}  // namespace torch_ops::autograd
