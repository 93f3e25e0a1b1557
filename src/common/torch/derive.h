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
// gradients are needed, and returns both.
#pragma once

#include <array>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "common/torch/autograd.h"
#include "common/torch/register.h"

namespace torch_ops::autograd {

using Needed = std::array<bool, 2>;

template <class T>
struct Saved {
  using type = T;
};
template <>
struct Saved<Tensor> {
  using type = SavedVariable;
};
template <>
struct Saved<std::vector<Tensor>> {
  using type = std::vector<SavedVariable>;
};

template <class T>
T save(T value) {
  return value;
}
inline SavedVariable save(const Tensor& tensor) { return {tensor, /*is_output=*/false}; }
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
  std::tuple<typename Saved<Kept>::type...> kept;

  template <class Visit>
  void fields(Visit&& visit) {
    std::apply([&](auto&... each) { (visit(each), ...); }, kept);
  }

  template <class... Args>
  void keep(const Args&... args) {
    std::apply([&](auto&&... each) { kept = decltype(kept)(save(std::move(each))...); },
               Op::keep(args...));
  }

  variable_list backward(const Tensor& grad_output) {
    return std::apply(
        [&](const auto&... each) -> variable_list {
          if constexpr (std::is_invocable_v<decltype(Op::backward), const Tensor&, Kept...>) {
            return {Op::backward(grad_output, this->unpack(each)...)};
          } else {
            const Needed needed = {this->needs_input_grad(0), this->needs_input_grad(1)};
            return Op::backward(needed, grad_output, this->unpack(each)...);
          }
        },
        kept);
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

}  // namespace torch_ops::autograd
