// The op of scatter_add that other ops here call, and that nobody else does: its handle.
#pragma once

#include "common/gather_family/gather_ops.h"

namespace torch_ops::ops {

// (values, index, dim_size, dim, batch_dims, deterministic, mode): as scatter_add, but the sums of
// 16-bit floats stay in float32.
inline const auto& scatter_sum() {
  static const auto op = find_op<Tensor(const Tensor&, const Tensor&, c10::SymInt, Dim, int64_t,
                                        std::optional<bool>, std::string_view)>("_scatter_sum");
  return op;
}

}  // namespace torch_ops::ops
