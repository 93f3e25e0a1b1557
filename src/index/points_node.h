// What the derivatives of gather_points and put_points keep: the index arrays and how they were
// meant.
#pragma once

#include <vector>

#include "common/torch/autograd.h"

namespace torch_ops::points {

template <class Op>
struct PointsNode : autograd::DerivativeNode<Op> {
  int64_t count = 0;
  std::vector<autograd::SavedVariable> coordinates;
  std::vector<int64_t> dims;
  int64_t batch_dims = 0;
  bool front = false;

  template <class Visit>
  void fields_of_points(Visit& visit) {
    visit(count);
    coordinates.resize(count);  // of a node that compiled autograd makes
    for (autograd::SavedVariable& coordinate : coordinates) visit(coordinate);
    visit(dims);
    visit(batch_dims);
    visit(front);
  }

  void save_points(at::TensorList arrays, at::IntArrayRef axes, int64_t batch_axes, bool first) {
    count = static_cast<int64_t>(arrays.size());
    for (const at::Tensor& array : arrays) coordinates.emplace_back(array, /*is_output=*/false);
    dims = axes.vec();
    batch_dims = batch_axes;
    front = first;
  }

  std::vector<at::Tensor> unpack_points() {
    std::vector<at::Tensor> arrays;
    for (const auto& coordinate : coordinates) arrays.push_back(this->unpack(coordinate));
    return arrays;
  }
};

}  // namespace torch_ops::points
