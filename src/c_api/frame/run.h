// The frame of a call: where it is computed, with which pointers, and how an error of an index's
// entry is reported.
#pragma once

#include <chrono>
#include <type_traits>

#include "c_api/frame/arguments.h"
#include "c_api/gpu/gpu.h"
#include "common/host/host_program.h"
#include "common/indexing/index_error.h"

namespace torch_ops {

// Does the call, and reports its time.
template <class Body>
void timed_on_cpu(float* milliseconds, Body&& body) {
  const auto start = std::chrono::steady_clock::now();
  body();
  if (milliseconds == nullptr) return;
  const std::chrono::duration<float, std::milli> taken = std::chrono::steady_clock::now() - start;
  *milliseconds = taken.count();
}

// Raises the error of an entry whose position a launcher for the CPU has returned.
inline void raise_if_bad(const IndexArray& index, int64_t position, const EntryKind& kind) {
  if (position == kNoBadEntry) return;
  const int64_t value = dispatch_index(
      index, [&](const auto* entries) { return static_cast<int64_t>(entries[position]); });
  fail_at_entry({position, value, kind.bound, kind.mode == IndexMode::kFromEnd});
}

// An axis without rows has none that an entry could name.
inline void check_axis_not_empty(int64_t entries, const EntryKind& kind, int64_t coordinate = -1) {
  if (entries > 0 && kind.bound == 0 && kind.mode != IndexMode::kFill) {
    fail_at_entry({0, 0, 0, /*from_end=*/false, coordinate});
  }
}

// Calls a launcher of the kernel library: `launch(errors...)`, on the CPU without errors.
template <class On, class Launch, class... Errors>
void checked(On, const IndexArray& index, const EntryKind& kind, Launch&& launch,
             const Errors&... errors) {
  if constexpr (std::is_same_v<On, OnCpu>) {
    raise_if_bad(index, launch(), kind);
  } else {
    launch(errors...);
  }
}

// Computes a call by compute(on, pointers, errors...): on a device with an IndexErrorSite, in which
// its kernels record a bad entry; on the CPU without, where it throws. Host-pointer calls go to a
// device only if that is demanded, and as a whole.
template <class Compute>
void run(const Arrays& arrays, const EntryKind& kind, torch_ops_memory memory,
         torch_ops_stream stream, float* milliseconds, Compute&& compute) {
  if (memory == TORCH_OPS_DEVICE || memory == TORCH_OPS_HOST_GPU) {
    const auto launch = [&]([[maybe_unused]] const Pointers& at,
                            [[maybe_unused]] const IndexErrorSite& errors) {
#ifdef TORCH_OPS_WITH_CUDA
      compute(OnCuda{host_program()}, at, errors);
#endif
    };
    const auto go = memory == TORCH_OPS_DEVICE ? gpu::run_there : gpu::run_copied;
    return go(arrays, kind, stream, milliseconds, launch);
  }
  timed_on_cpu(milliseconds, [&] { compute(OnCpu{host_program()}, pointers_of(arrays)); });
}

}  // namespace torch_ops
