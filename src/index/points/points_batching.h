// torch.vmap over index arrays that are broadcast against each other.
#pragma once

#include <algorithm>
#include <vector>

#include "common/torch/registration/batching.h"

namespace torch_ops::points {

using batching::Batched;

inline bool any_batched(const std::vector<Batched>& picks) {
  return std::any_of(picks.begin(), picks.end(), [](const Batched& each) { return each.axis; });
}

// The number of axes that a sample's index arrays have, broadcast.
inline int64_t rank_of(const std::vector<Batched>& picks) {
  int64_t rank = 0;
  for (const Batched& each : picks) rank = std::max(rank, each.rank());
  return rank;
}

inline std::vector<Tensor> values_of(const std::vector<Batched>& picks) {
  std::vector<Tensor> values;
  for (const Batched& each : picks) values.push_back(each.value);
  return values;
}

// The index arrays with the hidden axis at `position` of the broadcast one, which has `rank` axes
// without it. An array that has no hidden axis is broadcast along it.
inline std::vector<Tensor> with_axis(const std::vector<Batched>& picks, int64_t rank,
                                     int64_t position) {
  std::vector<Tensor> values;
  for (const Batched& each : picks) {
    Tensor value = each.axis ? each.at(0) : each.value.unsqueeze(0);
    while (value.dim() < rank + 1) value = value.unsqueeze(1);
    values.push_back(value.movedim(0, position));
  }
  return values;
}

// Axes of a table after a hidden one in front.
inline std::vector<int64_t> shifted(at::IntArrayRef dims) {
  std::vector<int64_t> axes;
  for (const int64_t dim : dims) axes.push_back(dim + 1);
  return axes;
}

}  // namespace torch_ops::points
