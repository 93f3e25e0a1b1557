#include <algorithm>
#include <utility>
#include <vector>

#include "common/host/parallel.h"
#include "index/masks/mask_launch.h"

namespace torch_ops::kernels {

// Each task counts its part of the mask, then writes after the entries of those before it.
template <class Position>
void mask_positions(OnCpu on, const bool* mask, int64_t entries, Position* positions,
                    int64_t room) {
  const HostScope scope(on.program);
  if (room == 0) return;
  const int64_t tasks = (entries + kElementsPerTask - 1) / kElementsPerTask;
  std::vector<int64_t> begins(tasks + 1);
  const auto part = [=](int64_t task) {
    return std::pair(task * kElementsPerTask, std::min((task + 1) * kElementsPerTask, entries));
  };
  parallel_for(tasks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const auto [first, last] = part(task);
      begins[task + 1] = std::count(mask + first, mask + last, true);
    }
  });
  for (int64_t task = 0; task < tasks; ++task) begins[task + 1] += begins[task];
  parallel_for(tasks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const auto [first, last] = part(task);
      int64_t place = begins[task];
      for (int64_t n = first; n < last && place < room; ++n) {
        if (mask[n]) positions[place++] = static_cast<Position>(n);
      }
    }
  });
}

template void mask_positions(OnCpu, const bool*, int64_t, int32_t*, int64_t);
template void mask_positions(OnCpu, const bool*, int64_t, int64_t*, int64_t);

}  // namespace torch_ops::kernels
