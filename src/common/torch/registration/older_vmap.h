// The rule of ops that take lists of tensors for the older vmap, that of
// torch.autograd.grad(is_grads_batched=True) and gradcheck, which loops over samples if an op has
// no rule, but cannot do so for lists. The op is called under torch.vmap instead, whose rule it
// has.
//
//   TORCH_LIBRARY_IMPL(torch_ops, Batched, m) { m.impl("foo", older_vmap::rule()); }
#pragma once

// clang-format off: functorch's headers after the older vmap's find two functions of each name.
#include <ATen/functorch/DynamicLayer.h>
#include <ATen/functorch/PlumbingHelper.h>
#include <ATen/LegacyBatchedTensorImpl.h>
// clang-format on
#include <ATen/core/stack.h>
#include <torch/library.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

namespace torch_ops::older_vmap {

using at::Tensor;

// A torch.vmap for its scope.
struct Scope {
  int64_t level;
  explicit Scope(const c10::SymInt& samples)
      : level(at::functorch::initAndPushDynamicLayer(at::functorch::TransformType::Vmap, samples,
                                                     at::functorch::RandomnessType::Error)) {}
  Scope(const Scope&) = delete;
  ~Scope() { at::functorch::popDynamicLayerAndDeleteMetadata(); }
};

// Changes the tensors among the last `count` values of a stack, also those in lists.
template <class Change>
void change_tensors(torch::jit::Stack& stack, size_t count, const Change& change) {
  std::for_each(stack.end() - static_cast<int64_t>(count), stack.end(), [&](c10::IValue& value) {
    if (value.isTensor()) {
      value = change(value.toTensor());
    } else if (value.isTensorList()) {
      c10::List<Tensor> changed;
      for (const Tensor& each : value.toTensorVector()) changed.push_back(change(each));
      value = std::move(changed);
    }
  });
}

// `tensor` without the axis that the innermost vmap, `level`, hides, as a torch.vmap's.
inline Tensor hidden_anew(const Tensor& tensor, int64_t level, int64_t new_level) {
  const auto* const batched = at::maybeGetBatchedImpl(tensor);
  if (batched == nullptr || batched->bdims().back().level() != level) return tensor;
  const int64_t axis = batched->bdims().back().dim();
  at::BatchDims outer;
  int64_t outer_before = 0;
  for (const at::BatchDim& each : batched->bdims().slice(0, batched->bdims().size() - 1)) {
    outer.push_back(each);
    outer_before += each.dim() < axis ? 1 : 0;
  }
  Tensor value = batched->value();
  if (!outer.empty()) value = at::makeBatched(std::move(value), std::move(outer));
  return at::functorch::makeBatched(std::move(value), axis - outer_before, new_level);
}

// Takes the place of the innermost vmap. For others the op is called again.
inline void call(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const size_t count = op.schema().arguments().size(), results = op.schema().returns().size();
  int64_t level = -1;
  c10::SymInt samples;
  change_tensors(*stack, count, [&](const Tensor& tensor) {
    const auto* const batched = at::maybeGetBatchedImpl(tensor);
    if (batched != nullptr && batched->bdims().back().level() > level) {
      level = batched->bdims().back().level();
      samples = batched->value().sym_size(batched->bdims().back().dim());
    }
    return tensor;
  });
  const c10::IValue first = torch::jit::peek(*stack, 0, count);
  std::vector<std::optional<int64_t>> axes;
  {
    const Scope scope(samples);
    change_tensors(*stack, count,
                   [&](const Tensor& tensor) { return hidden_anew(tensor, level, scope.level); });
    op.callBoxed(stack);
    change_tensors(*stack, results, [&](const Tensor& tensor) {
      const auto [value, axis] = at::functorch::unwrapTensorAtLevel(tensor, scope.level);
      axes.push_back(axis);
      return value;
    });
  }
  if (op.schema().is_mutable()) {  // it was written to its first argument
    stack->back() = first;
    return;
  }
  // as_strided wants an axis that the older vmap hides to be in front, in memory too.
  auto axis = axes.begin();
  change_tensors(*stack, results, [&](const Tensor& tensor) {
    const std::optional<int64_t> hidden = *axis++;
    return hidden ? at::addBatchDim(tensor.movedim(*hidden, 0).contiguous(), level, 0) : tensor;
  });
}

inline torch::CppFunction rule() { return torch::CppFunction::makeFromBoxedFunction<&call>(); }

}  // namespace torch_ops::older_vmap
