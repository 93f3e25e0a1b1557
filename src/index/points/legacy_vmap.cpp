// Rules for the older vmap, that of torch.autograd.grad(is_grads_batched=True) and gradcheck. It
// loops over samples if an op has no rule, but cannot do so for ops that take lists of tensors.
// clang-format off: functorch's header after the older vmap's finds two functions of each name.
#include <ATen/functorch/BatchedTensorImpl.h>
#include <ATen/LegacyVmapTransforms.h>
// clang-format on
#include <torch/library.h>

#include <algorithm>
#include <optional>
#include <string_view>
#include <vector>

#include "common/gather_family/gather_ops.h"

namespace torch_ops {
namespace {

using at::Tensor;
using at::TensorList;

// The hidden axes of all tensors, in front; tensors without one are expanded.
struct Physical {
  at::VmapPhysicalViewVec views;  // the list, then `others`
  int64_t axes;
  std::vector<Tensor> coordinates;

  template <class... Tensors>
  explicit Physical(at::TensorList list, const Tensors&... others) {
    std::vector<Tensor> logical = list.vec();
    (logical.push_back(others), ...);
    views = at::MultiBatchVmapTransform::logicalToPhysical(logical);
    axes = views[0].numBatchDims();
    int64_t rank = 0;
    for (const Tensor& each : list) rank = std::max(rank, each.dim());
    for (size_t j = 0; j < list.size(); ++j) {
      Tensor value = views[j].tensor();
      while (value.dim() < axes + rank) value = value.unsqueeze(axes);
      coordinates.push_back(std::move(value));
    }
  }

  // The tensor that is this many after the list.
  const Tensor& other(size_t number) const { return views[coordinates.size() + number].tensor(); }

  std::vector<int64_t> shifted(at::IntArrayRef dims) const {
    std::vector<int64_t> moved;
    for (const int64_t dim : dims) moved.push_back(dim + axes);
    return moved;
  }

  Tensor hide(const Tensor& result) const {
    return views[0].getPhysicalToLogicalMap().apply(result);
  }
};

Tensor gather_points_legacy(const Tensor& source, TensorList coordinates, at::IntArrayRef dims,
                            int64_t batch_dims, bool front, std::string_view mode,
                            const ops::Fill& fill_value, ops::Axes axes, ops::Name name) {
  const Physical physical(coordinates, source);
  return physical.hide(ops::gather_points().call(physical.other(0), physical.coordinates,
                                                 physical.shifted(dims), batch_dims + physical.axes,
                                                 front, mode, fill_value, axes, name));
}

Tensor ravel_multi_index_legacy(TensorList coordinates, c10::SymIntArrayRef sizes,
                                std::string_view mode, ops::Axes axes, ops::Name name) {
  const Physical physical(coordinates);
  return physical.hide(
      ops::ravel_multi_index().call(physical.coordinates, sizes, mode, axes, name));
}

Tensor put_points_legacy(const Tensor& source, TensorList coordinates, at::IntArrayRef dims,
                         const Tensor& values, int64_t batch_dims, bool front, ops::Axes axes,
                         ops::Name name) {
  const Physical physical(coordinates, source, values);
  return physical.hide(ops::put_points().call(physical.other(0), physical.coordinates,
                                              physical.shifted(dims), physical.other(1),
                                              batch_dims + physical.axes, front, axes, name));
}

Tensor& put_points__legacy(Tensor& source, TensorList coordinates, at::IntArrayRef dims,
                           const Tensor& values, int64_t batch_dims, bool front, ops::Axes axes,
                           ops::Name name) {
  TORCH_CHECK(at::isBatchedTensor(source),
              "index_put_: vmap cannot write what differs between samples into a source that they "
              "share. Use index_put, which returns a source for each.");
  const Physical physical(coordinates, source, values);
  Tensor table = physical.other(0);
  ops::put_points_().call(table, physical.coordinates, physical.shifted(dims), physical.other(1),
                          batch_dims + physical.axes, front, axes, name);
  return source;
}

}  // namespace

TORCH_LIBRARY_IMPL(torch_ops, Batched, m) {
  m.impl("gather_points", gather_points_legacy);
  m.impl("ravel_multi_index", ravel_multi_index_legacy);
  m.impl("put_points", put_points_legacy);
  m.impl("put_points_", put_points__legacy);
}

}  // namespace torch_ops
