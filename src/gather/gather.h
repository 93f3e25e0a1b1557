// Common code of the contracts of gather and gather_elements.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>

#include "common/gather_family/call_indexed.h"
#include "common/gather_family/index_mode_args.h"
#include "gather/gather_launch.h"

namespace torch_ops {

// The fill for rows that do not exist.
inline GatherPolicy make_policy(IndexMode mode, int64_t axis_size,
                                const std::optional<at::Scalar>& fill_value,
                                const at::Tensor& source) {
  return {IndexRule(mode, axis_size), indexing::make_fill(mode, fill_value, source.scalar_type())};
}

// In an empty axis there is no row that a kernel could read: if that is not an error, fills the
// output and returns true.
inline bool fill_empty_axis(const GatherPolicy& policy, const at::Tensor& output) {
  if (policy.rule.mode() != IndexMode::kFill || policy.rule.axis_size() > 0) return false;
  output.fill_(at::from_blob(const_cast<unsigned char*>(policy.fill.bytes), {},
                             at::TensorOptions(output.scalar_type())));
  return true;
}

// Layout is a RowLayout, or an ElementLayout, whose elements the index has in their order. If an
// entry is an error: raises in the name of `op`, as call_indexed does.
template <class On, class Layout>
void launch_gather(const char* op, const at::Tensor& source, const at::Tensor& index,
                   const Layout& layout, const GatherPolicy& policy, const at::Tensor& output) {
  const GatherCall<Layout> call{
      source.const_data_ptr(),  source.element_size(), index_array(index), layout, policy,
      output.mutable_data_ptr()};
  call_indexed<On>(
      op, index, layout, policy.rule.mode(), output,
      [&](auto on, const auto&... errors) { return kernels::gather(on, call, errors...); });
}

}  // namespace torch_ops
