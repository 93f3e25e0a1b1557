// The axes that generated code walks, with a stride for each tensor.
#pragma once

#include <c10/util/SmallVector.h>

#include <algorithm>
#include <utility>

#include "jit/call/plan.h"

namespace torch_ops::jit {

struct Axis {
  int64_t size;
  c10::SmallVector<int64_t, 8> strides;
};
using Axes = c10::SmallVector<Axis, 4>;

// Joins neighbours that one stride walks for all tensors; the innermost axis stands first.
inline void add_axis(Axes& axes, Axis axis) {
  if (axis.size == 1) return;
  bool joins = !axes.empty();
  for (size_t k = 0; joins && k < axis.strides.size(); ++k) {
    joins = axis.strides[k] == axes.back().strides[k] * axes.back().size;
  }
  if (joins) {
    axes.back().size *= axis.size;
  } else {
    axes.push_back(std::move(axis));
  }
}

// No array is empty in C++: where there is no axis, one that nothing walks; of no operands one.
inline void put_axes(Words& words, const Axes& axes, size_t operands) {
  const size_t strides = std::max<size_t>(operands, 1);
  for (size_t w = 0; axes.empty() && w < 1 + strides; ++w) words.put(int64_t{w == 0});
  for (const Axis& axis : axes) {
    words.put(axis.size);
    for (const int64_t stride : axis.strides) words.put(stride);
    if (axis.strides.empty()) words.put(int64_t{0});
  }
}

inline int64_t product(const Axes& axes) {
  int64_t result = 1;
  for (const Axis& axis : axes) result *= axis.size;
  return result;
}

inline int64_t power_of_two_up_to(int64_t value) {
  int64_t power = 1;
  while (power * 2 <= value) power *= 2;
  return power;
}

}  // namespace torch_ops::jit
