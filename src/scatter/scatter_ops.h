// Common code of the ops that add or reduce: an op that no others call, the transpose of sums, and
// the names of reductions.
#pragma once

#include "common/gather_family/gather_ops.h"
#include "common/torch/registration/autograd.h"
#include "common/torch/registration/batching.h"

namespace torch_ops::ops {

// Like scatter_add, but the sums of 16-bit floats stay in float32.
inline const auto& scatter_sum() {
  static const auto op = find_op<Sum>("_scatter_sum");
  return op;
}

// The transpose: values that were dropped get zeros.
inline Tensor gather_back(const Tensor& grad_output, const Tensor& index, int64_t dim,
                          int64_t batch_dims, std::string_view mode) {
  return gather().call(grad_output, index, dim, batch_dims, mode, nothing(mode), std::nullopt);
}

}  // namespace torch_ops::ops

namespace torch_ops {

inline bool has_derivative(const at::Tensor& values) {
  return (values.requires_grad() && at::GradMode::is_enabled()) ||
         torch::autograd::isFwGradDefined(values);
}

// May a kernel that has neither a derivative nor a batching rule be called?
inline bool needs_values_alone(const at::Tensor& values) {
  return !has_derivative(values) && !at::functorch::maybeCurrentDynamicLayer().has_value() &&
         !values.key_set().has(c10::DispatchKey::Batched);
}

// The one name of a reduction that has two. Has `op` only the first five?
inline std::string_view canonical_reduction(const char* op, std::string_view reduce,
                                            bool five_only = false) {
  if (reduce == "add") return "sum";
  if (reduce == "mul") return "prod";
  if (reduce == "max") return "amax";
  if (reduce == "min") return "amin";
  for (const std::string_view known : {"sum", "mean", "amax", "amin", "prod"}) {
    if (reduce == known) return known;
  }
  for (const std::string_view known : {"var", "std", "any", "all"}) {
    if (reduce == known && !five_only) return known;
  }
  TORCH_CHECK_VALUE(false, op, R"(: reduce must be "sum", "mean", "amax", "amin")",
                    five_only ? R"( or "prod")" : R"(, "prod", "var", "std", "any" or "all")",
                    R"( (or "add", "max", "min", "mul"), but it is ")", reduce, R"(".)");
}

}  // namespace torch_ops
