// What gathers do about rows that there are not.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>

#include "common/index_mode_args.h"

namespace torch_ops {

inline GatherPolicy make_policy(IndexMode mode, int64_t axis_size,
                                const std::optional<at::Scalar>& fill_value,
                                const at::Tensor& source) {
  return {IndexRule(mode, axis_size), indexing::make_fill(mode, fill_value, source.scalar_type())};
}

// In an empty axis no kernel has a row to read in vain: where that is no error, fills the output
// and returns true.
inline bool fill_empty_axis(const GatherPolicy& policy, const at::Tensor& output) {
  if (policy.rule.mode() != IndexMode::kFill || policy.rule.axis_size() > 0) return false;
  output.fill_(at::from_blob(const_cast<unsigned char*>(policy.fill.bytes), {},
                             at::TensorOptions(output.scalar_type())));
  return true;
}

}  // namespace torch_ops
