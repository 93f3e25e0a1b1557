// What an in-place op of one tensor, `op_(Tensor(a!) input) -> Tensor(a!)`, needs beside its
// kernel: the version counter, and its functional form under torch.compile and torch.export.
#pragma once

#include <ATen/FunctionalTensorWrapper.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/autograd/variable.h>

namespace torch_ops::inplace {

// For the ADInplaceOrView key: a saved copy of the old value is now out of date.
template <class Op, class... Args>
decltype(auto) bump_version(c10::DispatchKeySet keys, const Op& op, at::Tensor& input,
                            Args... args) {
  torch::autograd::impl::bump_version(input);
  at::AutoDispatchBelowADInplaceOrView guard;
  return op.redispatch(keys & c10::after_ADInplaceOrView_keyset, input, args...);
}

// For the Functionalize key: `input`, a functional tensor, becomes compute(its value).
template <class Compute>
void replace(at::Tensor& input, Compute&& compute) {
  namespace functional = at::functionalization::impl;
  functional::sync(input);
  const at::Tensor before = functional::from_functional_tensor(input);
  at::Tensor after;
  {
    at::AutoDispatchSkipFunctionalize guard;
    after = compute(before);
  }
  functional::replace_(input, after);
  functional::commit_update(input);
  functional::sync(input);
}

// For the Functionalize key: `input` becomes the value of the functional op.
template <class InplaceOp, class FunctionalOp, class... Args>
at::Tensor& functionalize(const InplaceOp& inplace_op, const FunctionalOp& functional_op,
                          at::Tensor& input, Args... args) {
  if (!at::functionalization::impl::isFunctionalTensor(input)) {
    at::AutoDispatchSkipFunctionalize guard;
    return inplace_op.call(input, args...);
  }
  replace(input, [&](const at::Tensor& before) { return functional_op.call(before, args...); });
  return input;
}

}  // namespace torch_ops::inplace
