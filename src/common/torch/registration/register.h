// Registration with the dispatcher. An op is a struct: its schema, and a function for each thing
// that the dispatcher asks of it. register_op registers those that exist, for all their keys.
//
//   struct Foo {
//     static constexpr const char* kSchema = "foo(Tensor input, int dim) -> Tensor";
//     template <class On>
//     static Tensor kernel(const Tensor& input, int64_t dim);
//     static Tensor batch(const Tensor& input, int64_t dim);
//   };
//   TORCH_LIBRARY_FRAGMENT(torch_ops, m) { register_op<Foo>(m); }
//
// An op has one of the first three, with the op's signature. The others may be templates.
//
//   kernel<On>      CPU, CUDA and Meta: On is OnCpu, OnCuda or OnMeta
//   others          for tensors that no kernel takes: sparse, quantized, nested, on other devices.
//                   Without it they are refused
//   compute         CompositeExplicitAutograd: one function for all backends
//   compose         CompositeImplicitAutograd: it only calls registered ops, so it needs no
//                   derivative. Also under torch.vmap and torch.func.functionalize, which would not
//                   decompose it by themselves
//   derive          Autograd; its first argument is the DispatchKeySet of the call
//   keep, backward  Autograd, for most ops (derive.h)
//   batch           FuncTorchBatched
//   functionalize   Functionalize
//   autocast        AutocastCUDA
//
// An op that works in place, whose first argument is a Tensor&, also counts versions
// (ADInplaceOrView), with inplace.h.
#pragma once

#include <torch/library.h>

#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "common/host/host_program.h"
#include "common/torch/calls/op.h"
#include "common/torch/registration/layout_errors.h"

namespace torch_ops {

struct OnMeta;

namespace autograd {
template <class Op, class... Args>
at::Tensor derive(c10::DispatchKeySet keys, const at::Tensor& input, const Args&... args);
}  // namespace autograd

namespace inplace {
template <class Op, class... Args>
decltype(auto) bump_version(c10::DispatchKeySet keys, const Op& op, at::Tensor& input,
                            const Args&... args);
}  // namespace inplace

namespace registration {

// has_foo<Op>: whether Op has a member foo, which may be a function template. In a class that
// inherits another foo the name is ambiguous.
#define TORCH_OPS_HAS(member)                     \
  struct Another_##member {                       \
    int member;                                   \
  };                                              \
  template <class Op>                             \
  struct Both_##member : Op, Another_##member {}; \
  template <class Op, class = void>               \
  constexpr bool has_##member = true;             \
  template <class Op>                             \
  constexpr bool has_##member<Op, std::void_t<decltype(&Both_##member<Op>::member)>> = false;

TORCH_OPS_HAS(kernel)
TORCH_OPS_HAS(others)
TORCH_OPS_HAS(compute)
TORCH_OPS_HAS(derive)
TORCH_OPS_HAS(backward)
TORCH_OPS_HAS(tangent)
TORCH_OPS_HAS(batch)
TORCH_OPS_HAS(functionalize)
TORCH_OPS_HAS(autocast)
#undef TORCH_OPS_HAS

template <class Op>
constexpr auto main_function() {
  if constexpr (has_kernel<Op>) {
    return &Op::template kernel<OnCpu>;
  } else if constexpr (has_compute<Op>) {
    return &Op::compute;
  } else {
    return &Op::compose;
  }
}

template <class Op>
using SignatureOf = std::remove_pointer_t<decltype(main_function<Op>())>;

constexpr std::string_view name_in(std::string_view schema) {
  return schema.substr(0, schema.find('('));
}

}  // namespace registration

// The handle of an op.
template <class Op>
const auto& op_of() {
  static const auto op = find_op<registration::SignatureOf<Op>>(registration::name_in(Op::kSchema));
  return op;
}

namespace registration {

// The functions of an op in the registered form: with its signature.
template <class Op, class Signature = SignatureOf<Op>>
struct Functions;

template <class Op, class Return, class... Args>
struct Functions<Op, Return(Args...)> {
  static constexpr bool kInPlace =
      std::is_same_v<std::tuple_element_t<0, std::tuple<Args...>>, at::Tensor&>;

  static Return derive(c10::DispatchKeySet keys, Args... args) {
    if constexpr (has_derive<Op>) {
      return Op::derive(keys, std::forward<Args>(args)...);
    } else {
      return autograd::derive<Op>(keys, std::forward<Args>(args)...);
    }
  }
  static Return count_version(c10::DispatchKeySet keys, Args... args) {
    return inplace::bump_version(keys, op_of<Op>(), std::forward<Args>(args)...);
  }
  static Return batch(Args... args) { return Op::batch(std::forward<Args>(args)...); }
  static Return functionalize(Args... args) {
    return Op::functionalize(std::forward<Args>(args)...);
  }
  static Return autocast(Args... args) { return Op::autocast(std::forward<Args>(args)...); }
};

}  // namespace registration

template <class Op>
void register_op(torch::Library& m,
                 const std::vector<at::Tag>& tags = {at::Tag::pt2_compliant_tag}) {
  using namespace registration;
  using c10::DispatchKey;
  using Functions = registration::Functions<Op>;
  const std::string name(name_in(Op::kSchema));
  const auto add = [&](DispatchKey key, auto* function) {
    m.impl(name.c_str(), torch::dispatch(key, function));
  };
  const auto refuse = [&](DispatchKey key) {
    if constexpr (has_others<Op>) return add(key, &Op::others);
    auto function = torch::CppFunction::makeFromBoxedFunction<&refuse_layout>();
    m.impl(name.c_str(), torch::dispatch(key, std::move(function)));
  };
  m.def(Op::kSchema, tags);
  if constexpr (has_kernel<Op>) {
    add(DispatchKey::CPU, &Op::template kernel<OnCpu>);
    add(DispatchKey::CUDA, &Op::template kernel<OnCuda>);
    add(DispatchKey::Meta, &Op::template kernel<OnMeta>);
    if constexpr (Functions::kInPlace) add(DispatchKey::ADInplaceOrView, &Functions::count_version);
  } else if constexpr (has_compute<Op>) {
    add(DispatchKey::CompositeExplicitAutograd, &Op::compute);
  } else {
    add(DispatchKey::CompositeImplicitAutograd, &Op::compose);
    if constexpr (!has_batch<Op>) add(DispatchKey::FuncTorchBatched, &Op::compose);
    if constexpr (Functions::kInPlace) add(DispatchKey::Functionalize, &Op::compose);
    refuse(DispatchKey::CompositeImplicitAutogradNestedTensor);
  }
  constexpr bool kHasDerivative = has_derive<Op> || has_backward<Op>;
  if constexpr (kHasDerivative) add(DispatchKey::Autograd, &Functions::derive);
  if constexpr (has_kernel<Op> || has_compute<Op>) {
    for (const DispatchKey key : {DispatchKey::NestedTensorCPU, DispatchKey::NestedTensorCUDA}) {
      refuse(key);
    }
    if constexpr (!kHasDerivative) refuse(DispatchKey::AutogradNestedTensor);
  }
  // Sparse and quantized tensors, and devices that there are no kernels for.
  if constexpr (has_kernel<Op>) refuse(DispatchKey::CompositeExplicitAutograd);
  if constexpr (has_batch<Op>) add(DispatchKey::FuncTorchBatched, &Functions::batch);
  if constexpr (has_functionalize<Op>) add(DispatchKey::Functionalize, &Functions::functionalize);
  if constexpr (has_autocast<Op>) add(DispatchKey::AutocastCUDA, &Functions::autocast);
}

}  // namespace torch_ops
