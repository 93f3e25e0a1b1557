// How an elementwise op goes through tensors of one shape and any strides: element by element, in
// the order in which the result is in memory. No torch.
#pragma once

#include <cstdint>

namespace torch_ops {

constexpr int kMaxAxes = 64;  // the most axes of a tensor of torch

// Array 0 is the result. Axes that one stride walks in every array are joined, so that tensors
// without gaps, in one order of axes, are a single axis. Strides count elements.
template <int kArrays>
struct StridedWalk {
  int64_t numel = 1;
  int axes = 0;  // innermost first
  int64_t size[kMaxAxes];
  int64_t stride[kArrays][kMaxAxes];

  StridedWalk() = default;

  // A single axis of `numel` elements, adjacent in each array.
  explicit StridedWalk(int64_t numel) : numel(1) {
    int64_t ones[kArrays];
    for (int64_t& one : ones) one = 1;
    add_axis(numel, ones);
  }

  // Adds an axis outside the existing ones.
  void add_axis(int64_t length, const int64_t (&strides)[kArrays]) {
    numel *= length;
    if (length == 1) return;
    bool joins = axes > 0;
    for (int a = 0; joins && a < kArrays; ++a) {
      joins = strides[a] == stride[a][axes - 1] * size[axes - 1];
    }
    if (joins) {
      size[axes - 1] *= length;
      return;
    }
    size[axes] = length;
    for (int a = 0; a < kArrays; ++a) stride[a][axes] = strides[a];
    ++axes;
  }

  // Are the elements of this array in the order of the walk, without gaps?
  bool is_flat(int array) const { return axes == 0 || (axes == 1 && stride[array][0] == 1); }

  // Are an array's neighbours in memory those along the second axis, as in a transposed tensor?
  bool is_crossed(int array) const {
    return axes >= 2 && stride[array][0] > 1 && stride[array][1] == 1;
  }

  // Is every element of this array the same one?
  bool is_constant(int array) const {
    for (int axis = 0; axis < axes; ++axis) {
      if (stride[array][axis] != 0) return false;
    }
    return axes > 0;
  }

  bool is_flat() const {
    for (int a = 0; a < kArrays; ++a) {
      if (!is_flat(a)) return false;
    }
    return true;
  }
};

}  // namespace torch_ops
