// The order in which elementwise ops go through tensors, from their strides.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <algorithm>
#include <numeric>

#include "common/elementwise/strided_walk.h"

namespace torch_ops {

using AxisOrder = c10::SmallVector<int64_t, 6>;

// The axes in the order of the tensor's memory, outermost first.
inline AxisOrder memory_order(const at::Tensor& tensor) {
  AxisOrder order(tensor.dim());
  std::iota(order.begin(), order.end(), 0);
  const c10::SymIntArrayRef strides = tensor.sym_strides();
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return strides[a] > strides[b]; });
  return order;
}

// In the order of the result's memory. All tensors have its shape.
template <class... Inputs>
StridedWalk<1 + sizeof...(Inputs)> make_walk(const at::Tensor& result, const Inputs&... inputs) {
  constexpr int kArrays = 1 + sizeof...(Inputs);
  const bool dense = result.is_non_overlapping_and_dense();
  if (dense && ((result.strides() == inputs.strides()) && ...)) {
    return StridedWalk<kArrays>(result.numel());
  }
  StridedWalk<kArrays> walk;
  const AxisOrder order = memory_order(result);
  std::for_each(order.rbegin(), order.rend(), [&](int64_t axis) {
    walk.add_axis(result.size(axis), {result.stride(axis), inputs.stride(axis)...});
  });
  return walk;
}

}  // namespace torch_ops
