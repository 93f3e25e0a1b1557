#include <ATen/Parallel.h>

#include <algorithm>
#include <vector>

#include "common/parallel.h"
#include "index/mask.h"

namespace torch_ops {
namespace {

// Each task counts its part of the mask, then writes behind what those before it have.
template <class Position>
void write_positions(const bool* mask, int64_t entries, Position* positions, int64_t room) {
  const int64_t tasks = (entries + kElementsPerTask - 1) / kElementsPerTask;
  std::vector<int64_t> begins(tasks + 1);
  const auto part = [=](int64_t task) {
    return std::pair(task * kElementsPerTask, std::min((task + 1) * kElementsPerTask, entries));
  };
  at::parallel_for(0, tasks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const auto [first, last] = part(task);
      begins[task + 1] = std::count(mask + first, mask + last, true);
    }
  });
  for (int64_t task = 0; task < tasks; ++task) begins[task + 1] += begins[task];
  at::parallel_for(0, tasks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const auto [first, last] = part(task);
      int64_t place = begins[task];
      for (int64_t n = first; n < last && place < room; ++n) {
        if (mask[n]) positions[place++] = static_cast<Position>(n);
      }
    }
  });
}

}  // namespace

void mask_positions_cpu(const at::Tensor& mask, const at::Tensor& positions) {
  if (mask.numel() == 0 || positions.numel() == 0) return;
  const bool* from = mask.const_data_ptr<bool>();
  if (positions.scalar_type() == at::kInt) {
    write_positions(from, mask.numel(), positions.mutable_data_ptr<int32_t>(), positions.numel());
  } else {
    write_positions(from, mask.numel(), positions.mutable_data_ptr<int64_t>(), positions.numel());
  }
}

}  // namespace torch_ops
