// Loops over the host program's threads (host_program.h), and such loops that look for the first of
// something. No torch.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <vector>

#include "common/host/host_program.h"

namespace torch_ops {

constexpr int64_t kElementsPerTask = 32768;  // a smaller task takes longer to hand out than to do

inline int64_t num_threads() { return host_program().num_threads(); }

// Calls body(begin, end) for even parts of [0, work), each of at least `grain`.
template <class Body>
void parallel_for(int64_t work, int64_t grain, const Body& body) {
  struct Call {
    const HostProgram& program;
    const Body& body;
    int64_t work, parts;
  };
  if (work <= 0) return;
  const int64_t most = (work + grain - 1) / grain;
  const HostProgram& program = host_program();
  Call call{program, body, work, std::clamp<int64_t>(program.num_threads(), 1, most)};
  if (call.parts == 1) return body(0, work);
  const auto run = [](void* context, int64_t n) {
    const Call& call = *static_cast<const Call*>(context);
    const HostScope scope(call.program);
    const int64_t each = call.work / call.parts, more = call.work % call.parts;
    const int64_t begin = n * each + std::min(n, more);
    call.body(begin, begin + each + (n < more));
  };
  program.run_parts(call.parts, run, &call);
}

template <class T>
void parallel_fill(T* values, int64_t count, T value) {
  parallel_for(count, kElementsPerTask,
               [=](int64_t begin, int64_t end) { std::fill(values + begin, values + end, value); });
}

// The smallest value that `range(begin, end)` returns over the tasks of [0, work), each of at least
// `grain`.
template <class Range>
int64_t parallel_min(int64_t work, int64_t grain, Range&& range) {
  std::atomic<int64_t> smallest{INT64_MAX};
  parallel_for(work, std::max<int64_t>(grain, 1), [&](int64_t begin, int64_t end) {
    const int64_t found = range(begin, end);
    int64_t seen = smallest.load();
    while (found < seen && !smallest.compare_exchange_weak(seen, found)) {
    }
  });
  return smallest.load();
}

// The smallest value that `worker(deal)` returns, over the threads. A worker calls
// deal(begin, end) for its next part of [0, tasks), of at most `grain` tasks, until that returns
// false. Each first has its own share, in succession (two threads that write to one page for
// the first time delay each other), and then helps with the others', so that tasks of unequal
// length keep all threads busy to the end. `elements` is all work: little is left to one thread.
template <class Worker>
int64_t parallel_min_shared(int64_t tasks, int64_t grain, int64_t elements, Worker&& worker) {
  const int64_t workers = std::min<int64_t>(
      {num_threads(), (tasks + grain - 1) / grain, elements / kElementsPerTask + 1});
  const auto share = [=](int64_t n) { return tasks * n / workers; };
  std::vector<std::atomic<int64_t>> next(workers);
  for (int64_t n = 0; n < workers; ++n) next[n] = share(n);
  return parallel_min(workers, 1, [&](int64_t first, int64_t last) {
    if (first >= last) return INT64_MAX;
    int64_t from = first;  // whose share
    const auto deal = [&](int64_t& begin, int64_t& end) {
      for (; from < first + workers; ++from) {
        const int64_t share_end = share(from % workers + 1);
        begin = next[from % workers].fetch_add(grain, std::memory_order_relaxed);
        end = std::min(begin + grain, share_end);
        if (begin < share_end) return true;
      }
      return false;
    };
    return worker(deal);
  });
}

}  // namespace torch_ops
