// What an in-place op, `op_(Tensor(a!) input, ...) -> Tensor(a!)`, needs in addition to its kernel:
// the version counter, and its functional form under torch.compile and torch.export.
#pragma once

#include <ATen/FunctionalTensorWrapper.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/autograd/variable.h>

#include <vector>

namespace torch_ops::inplace {

// For the ADInplaceOrView key: a saved copy of the old value is now out of date.
template <class Op, class... Args>
decltype(auto) bump_version(c10::DispatchKeySet keys, const Op& op, at::Tensor& input,
                            const Args&... args) {
  const auto call = [&]() -> decltype(auto) {
    at::AutoDispatchBelowADInplaceOrView guard;
    return op.redispatch(keys & c10::after_ADInplaceOrView_keyset, input, args...);
  };
  decltype(auto) result = call();  // first: if it raises, nothing has changed
  torch::autograd::impl::bump_version(input);
  return result;
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

// The tensor inside a wrapper.
inline at::Tensor unwrap(const at::Tensor& tensor) {
  namespace wrapped = at::functionalization::impl;
  if (!wrapped::isFunctionalTensor(tensor)) return tensor;
  wrapped::sync(tensor);
  return wrapped::from_functional_tensor(tensor);
}

inline std::vector<at::Tensor> unwrap(at::TensorList tensors) {
  std::vector<at::Tensor> unwrapped;
  for (const at::Tensor& tensor : tensors) unwrapped.push_back(unwrap(tensor));
  return unwrapped;
}

// For the Functionalize key: `input` becomes the value of `functional`. Both functions take the
// input and the other tensors, of which each may be a list.
template <class Inplace, class Functional, class... Tensors>
at::Tensor& functionalize_call(Inplace&& inplace, Functional&& functional, at::Tensor& input,
                               const Tensors&... others) {
  namespace wrapped = at::functionalization::impl;
  if (!wrapped::isFunctionalTensor(input)) {
    at::AutoDispatchSkipFunctionalize guard;
    inplace(input, unwrap(others)...);
  } else {
    replace(input, [&](const at::Tensor& before) { return functional(before, unwrap(others)...); });
  }
  return input;
}

}  // namespace torch_ops::inplace
