#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "common/host/parallel.h"
#include "peers/peers_launch.h"

namespace torch_ops::kernels {
namespace {

// What one task copies at least.
constexpr int64_t kBytesPerTask = 4 * kElementsPerTask;

int64_t rows_per_task(int64_t row_bytes) {
  return std::max<int64_t>(kBytesPerTask / std::max<int64_t>(row_bytes, 1), 1);
}

// Rows [begin, end) of the output.
template <class Index>
int64_t gather_some(const PeerGather& call, const Index* index, int64_t begin, int64_t end) {
  const RowLayout& layout = call.layout;
  auto* out = static_cast<char*>(call.output) + begin * call.row_bytes;
  for (int64_t n = begin; n < end; ++n, out += call.row_bytes) {
    const int64_t row =
        call.policy.rule.resolve(static_cast<int64_t>(index[n * layout.index_entry_stride]));
    if (in_range(row, layout.axis_size)) {
      const int64_t owner = row / call.length;
      const auto* part = reinterpret_cast<const char*>(call.parts[owner]);
      std::memcpy(out, part + (row - owner * call.length) * call.row_bytes, call.row_bytes);
    } else if (call.policy.rule.raises()) {
      return n;
    } else {
      const FillPattern& fill = call.policy.fill;
      for (int64_t at = 0; at < call.row_bytes; at += FillPattern::kBytes) {
        std::memcpy(out + at, fill.bytes,
                    std::min<int64_t>(FillPattern::kBytes, call.row_bytes - at));
      }
    }
  }
  return kNoBadEntry;
}

int64_t* pad_of(const PeerPads& pads, int64_t rank) {
  return reinterpret_cast<int64_t*>(pads.pads[rank]);
}

// A rank that has not come to a meeting, or one that has come with an error; kAllMet if none is.
int64_t look_for_peers(const PeerPads& pads, int64_t meeting, bool with_errors) {
  const int64_t* const own = pad_of(pads, pads.rank);
  const int64_t* const failed = own + (1 + meeting % 2) * pads.ranks;
  int64_t missing = kAllMet;
  for (int64_t rank = 0; rank < pads.ranks; ++rank) {
    if (__atomic_load_n(own + rank, __ATOMIC_ACQUIRE) < meeting) {
      missing = kAllMet - 1 - rank;
    } else if (with_errors && __atomic_load_n(failed + rank, __ATOMIC_RELAXED) == meeting) {
      return rank;
    }
  }
  return missing;
}

}  // namespace

int64_t gather_peers(OnCpu on, const PeerGather& call) {
  const HostScope scope(on.program);
  return dispatch_index(call.index, [&](const auto* index) {
    return parallel_min(
        call.layout.entries, rows_per_task(call.row_bytes),
        [&](int64_t begin, int64_t end) { return gather_some(call, index, begin, end); });
  });
}

void put_to_peers(OnCpu on, const PeerSums& call) {
  const HostScope scope(on.program);
  int64_t most = 0;
  for (int64_t owner = 0; owner < call.ranks; ++owner) {
    most = std::max(most, call.bounds[owner + 1] - call.bounds[owner]);
  }
  for (int64_t owner = 0; owner < call.ranks; ++owner) {
    auto* const inbox = reinterpret_cast<char*>(call.inboxes[owner]);
    auto* const header = reinterpret_cast<int64_t*>(inbox) + 2 * call.rank;
    header[0] = call.bounds[owner + 1] - call.bounds[owner];
    header[1] = most;
    if (owner == call.rank) continue;
    const int64_t from = call.bounds[owner] + call.first;
    const int64_t count = std::min(call.capacity, call.bounds[owner + 1] - from);
    const int64_t place = call.slot(call.rank, owner) * call.capacity;
    auto* const rows = reinterpret_cast<int64_t*>(inbox + call.rows_offset) + place;
    auto* const values = inbox + call.values_offset + place * call.row_bytes;
    parallel_for(count, rows_per_task(call.row_bytes), [&](int64_t begin, int64_t end) {
      for (int64_t n = begin; n < end; ++n) rows[n] = call.rows[from + n] - owner * call.length;
      std::memcpy(values + begin * call.row_bytes, call.values + (from + begin) * call.row_bytes,
                  (end - begin) * call.row_bytes);
    });
  }
}

void arrive(OnCpu, const PeerPads& pads, int64_t meeting, bool failed) {
  for (int64_t other = 0; other < pads.ranks; ++other) {
    int64_t* const pad = pad_of(pads, other);
    if (failed) {
      int64_t* const with_error = pad + (1 + meeting % 2) * pads.ranks + pads.rank;
      __atomic_store_n(with_error, meeting, __ATOMIC_RELAXED);
    }
    __atomic_store_n(pad + pads.rank, meeting, __ATOMIC_RELEASE);
  }
}

int64_t await_peers(OnCpu, const PeerPads& pads, int64_t meeting, bool with_errors,
                    int64_t milliseconds) {
  using std::chrono::steady_clock;
  constexpr int kSpins = 200;
  constexpr std::chrono::microseconds kShortest(5), kLongest(500);
  const auto end = steady_clock::now() + std::chrono::milliseconds(milliseconds);
  auto pause = kShortest;
  for (int n = 0;; ++n) {
    const int64_t found = look_for_peers(pads, meeting, with_errors);
    if (found >= kAllMet || steady_clock::now() >= end) return found;
    if (n < kSpins) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(pause);
      pause = std::min(2 * pause, kLongest);
    }
  }
}

}  // namespace torch_ops::kernels
