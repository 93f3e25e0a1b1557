// What the ops that add call: the op that nobody else does, and the transpose of sums.
#pragma once

#include "common/gather_family/gather_ops.h"

namespace torch_ops::ops {

// As scatter_add, but the sums of 16-bit floats stay in float32.
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
