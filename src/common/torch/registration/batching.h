// torch.vmap: the frame of a batching rule.
//
// A rule gets each tensor without the axis that vmap hides, and the position of that axis
// (nothing for a tensor that is the same for every sample). It returns its result in this form.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/functorch/DynamicLayer.h>
#include <ATen/functorch/PlumbingHelper.h>

#include <optional>
#include <utility>
#include <vector>

namespace torch_ops::batching {

using at::Tensor;

struct Batched {
  Tensor value;
  std::optional<int64_t> axis;

  // That of a sample.
  int64_t rank() const { return value.dim() - (axis ? 1 : 0); }

  // The hidden axis moved to `position`.
  Tensor at(int64_t position) const { return value.movedim(*axis, position); }

  // The same with an axis of size `size` added if there is none.
  Tensor expanded_at(int64_t position, const c10::SymInt& size) const {
    if (axis) return at(position);
    const Tensor added = value.unsqueeze(position);
    c10::SymDimVector sizes(added.sym_sizes().begin(), added.sym_sizes().end());
    sizes[position] = size;
    return added.expand_symint(sizes);
  }

  c10::SymInt size() const { return value.sym_size(*axis); }
};

// The vmap that a rule is called for.
inline int64_t current_level() {
  const auto layer = at::functorch::maybeCurrentDynamicLayer();
  TORCH_INTERNAL_ASSERT(layer.has_value(), "a batching rule was called outside torch.vmap");
  return layer->layerId();
}

inline Batched unwrap(const Tensor& tensor, int64_t level) {
  auto [value, axis] = at::functorch::unwrapTensorAtLevel(tensor, level);
  return Batched{std::move(value), axis};
}

inline std::vector<Batched> unwrap(at::TensorList tensors, int64_t level) {
  std::vector<Batched> unwrapped;
  for (const Tensor& tensor : tensors) unwrapped.push_back(unwrap(tensor, level));
  return unwrapped;
}

// One sample of an input, copied, since the rule may be that of an in-place op.
inline Batched sample_of(const Batched& input, int64_t at) {
  return {(input.axis ? input.value.select(*input.axis, at) : input.value).clone(), std::nullopt};
}

inline std::vector<Batched> sample_of(const std::vector<Batched>& inputs, int64_t at) {
  std::vector<Batched> samples;
  for (const Batched& input : inputs) samples.push_back(sample_of(input, at));
  return samples;
}

// Calls the rule; if it raises, once more for each sample alone. The error of a sample names
// the shapes and positions that the caller knows; those of the batch have one more axis.
template <class Rule, class... Inputs>
Batched call_rule(Rule&& rule, const Inputs&... inputs) {
  try {
    return rule(inputs...);
  } catch (const c10::Error&) {
    const c10::SymInt size = at::functorch::maybeCurrentDynamicLayer()->batchSize();
    const int64_t samples = size.maybe_as_int().value_or(0);
    for (int64_t at = 0; at < samples; ++at) rule(sample_of(inputs, at)...);
    throw;  // an error of the batch only
  }
}

// Registered for the FuncTorchBatched key: unwraps this vmap's level, calls the rule below it,
// wraps the result. A list of tensors reaches the rule as a vector.
template <class Rule, class... Tensors>
Tensor apply(Rule&& rule, const Tensors&... tensors) {
  c10::impl::ExcludeDispatchKeyGuard guard(c10::DispatchKey::FuncTorchBatched);
  const int64_t level = current_level();
  Batched result = call_rule(rule, unwrap(tensors, level)...);
  if (!result.axis) return result.value;
  return at::functorch::makeBatched(std::move(result.value), result.axis, level);
}

}  // namespace torch_ops::batching
