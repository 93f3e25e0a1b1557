// at::parallel_for for loops that look for the first of something.
#pragma once

#include <ATen/Parallel.h>

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace torch_ops {

constexpr int64_t kElementsPerTask = 32768;  // a smaller task costs more to hand out than to do

// The smallest value that `range(begin, end)` returns over the tasks of [0, work), of `grain` each
// at least.
template <class Range>
int64_t parallel_min(int64_t work, int64_t grain, Range&& range) {
  std::atomic<int64_t> smallest{INT64_MAX};
  at::parallel_for(0, work, std::max<int64_t>(grain, 1), [&](int64_t begin, int64_t end) {
    const int64_t found = range(begin, end);
    int64_t seen = smallest.load();
    while (found < seen && !smallest.compare_exchange_weak(seen, found)) {
    }
  });
  return smallest.load();
}

}  // namespace torch_ops
