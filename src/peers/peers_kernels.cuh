// Kernels that read and write the memory of other GPUs. No torch.
#pragma once

#include <cuda/atomic>

#include "common/cuda/fast_divisor.cuh"
#include "common/cuda/vectorized.cuh"
#include "common/indexing/index_error.cuh"
#include "common/indexing/index_view.cuh"
#include "peers/peers_launch.h"

namespace torch_ops::kernels {

constexpr int kPeerThreads = 256;
constexpr int kPeerUnroll = 8;  // words of a thread that are on their way at a time
constexpr int64_t kMostPeerWords = int64_t{1} << 30;  // of a launch

// The words of a launch: all or some of each of some rows.
struct PeerWords {
  const int64_t* parts;
  int64_t length;
  int64_t axis_size;
  FastDivisor by_length;  // for tables of fewer than 2^31 rows
  int64_t row_words;      // of a whole row, in the table and in the output
  int64_t first_word;     // of those that are copied
  FastDivisor by_words;
  uint32_t words;  // of a row, that are copied
  uint32_t all_words;
  int64_t first_row;  // of the output
  int64_t index_stride;
};

// A gather with one step more: which rank has the row, and where. Word is what a thread moves.
template <bool kLong, class Word>
__global__ void __launch_bounds__(kPeerThreads)
    gather_peers_kernel(const __grid_constant__ PeerWords of,
                        const __grid_constant__ RuledIndex index, Word* __restrict__ output,
                        const __grid_constant__ IndexErrorSite errors) {
  const uint32_t first = blockIdx.x * (kPeerThreads * kPeerUnroll) + threadIdx.x;
  int64_t positions[kPeerUnroll], entries[kPeerUnroll];
  uint32_t columns[kPeerUnroll];
  const Word* from[kPeerUnroll];
  Word loaded[kPeerUnroll];
#pragma unroll
  for (int u = 0; u < kPeerUnroll; ++u) {
    // Beyond the last word, that one is read again, and not written.
    const uint32_t word = min(first + u * kPeerThreads, of.all_words - 1);
    positions[u] = (of.first_row + of.by_words.divide(word, columns[u])) * of.index_stride;
  }
  index.data.load(positions, entries);
#pragma unroll
  for (int u = 0; u < kPeerUnroll; ++u) {
    const int64_t row = index.row_of(entries[u]);
    from[u] = nullptr;
    if (in_range(row, of.axis_size)) {
      const int64_t owner =
          kLong ? row / of.length : of.by_length.divide(static_cast<uint32_t>(row));
      const auto* part = reinterpret_cast<const Word*>(of.parts[owner]);
      from[u] = part + (row - owner * of.length) * of.row_words + of.first_word + columns[u];
    }
  }
#pragma unroll
  for (int u = 0; u < kPeerUnroll; ++u) {
    if (from[u] != nullptr) loaded[u] = load_in_order(from[u]);
  }
#pragma unroll
  for (int u = 0; u < kPeerUnroll; ++u) {
    const uint32_t word = first + u * kPeerThreads;
    if (word >= of.all_words) break;
    const int64_t n = of.first_row + of.by_words.divide(word);
    Word* const to = output + n * of.row_words + of.first_word + columns[u];
    store_in_order(to, from[u] != nullptr ? loaded[u] : index.template fill<Word>());
    if (from[u] == nullptr && columns[u] == 0) record_bad_entry(errors, n, entries[u]);
  }
}

// `lanes` threads, a power of two up to a warp, send a row.
template <class Word>
__global__ void __launch_bounds__(kPeerThreads)
    put_to_peers_kernel(const __grid_constant__ PeerPut call, int lanes, const IndexErrorSlot* slot,
                        uint32_t raised) {
  if (blockIdx.x == 0 && threadIdx.x < call.ranks) {
    int64_t most = 0;
    for (int64_t owner = 0; owner < call.ranks; ++owner) {
      most = max(most, call.bounds[owner + 1] - call.bounds[owner]);
    }
    if (slot != nullptr && *static_cast<const volatile uint32_t*>(&slot->claimed) != raised) {
      most = kHasError;
    }
    auto* const header = reinterpret_cast<int64_t*>(call.inboxes[threadIdx.x]) + 2 * call.rank;
    header[0] = call.bounds[threadIdx.x + 1] - call.bounds[threadIdx.x];
    header[1] = most;
  }
  const int64_t row_words = call.row_bytes / static_cast<int64_t>(sizeof(Word));
  const int64_t count = min(call.count, call.bounds[call.ranks]);
  const int64_t teams = int64_t{gridDim.x} * (kPeerThreads / lanes);
  const int lane = static_cast<int>(threadIdx.x) % lanes;
  int64_t n = int64_t{blockIdx.x} * (kPeerThreads / lanes) + threadIdx.x / lanes;
  for (; n < count; n += teams) {
    const int64_t row = call.rows[n];
    const int64_t owner = row / call.length;
    const int64_t place = n - call.bounds[owner] - call.first;
    if (place < 0 || place >= call.capacity) continue;
    auto* const inbox = reinterpret_cast<char*>(call.inboxes[owner]);
    const int64_t at = call.rank * call.capacity + place;
    if (lane == 0) {
      reinterpret_cast<int64_t*>(inbox + call.rows_offset)[at] = row - owner * call.length;
    }
    auto* const to = reinterpret_cast<Word*>(inbox + call.values_offset + at * call.row_bytes);
    const auto* from = reinterpret_cast<const Word*>(call.values + n * call.row_bytes);
    for (int64_t word = lane; word < row_words; word += lanes) {
      store_in_order(to + word, load_in_order(from + word));
    }
  }
}

// One block. Thread r speaks to rank r, and waits for it.
__global__ void meet_peers_kernel(PeerPads pads, int64_t* last_meeting, bool failed,
                                  int64_t nanoseconds, int64_t* outcome) {
  using Atomic = cuda::atomic_ref<int64_t, cuda::thread_scope_system>;
  const int64_t meeting = *last_meeting + 1;
  __syncthreads();
  if (threadIdx.x == 0) *last_meeting = meeting;
  const auto now = [] {
    int64_t time;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
    return time;
  };
  auto* const own = reinterpret_cast<int64_t*>(pads.pads[pads.rank]);
  const int64_t row = 1 + meeting % 2;
  for (int64_t rank = threadIdx.x; rank < pads.ranks; rank += blockDim.x) {
    auto* const theirs = reinterpret_cast<int64_t*>(pads.pads[rank]);
    const int64_t end = now() + nanoseconds;
    const auto await = [&](int64_t number) {
      while (Atomic(own[rank]).load(cuda::memory_order_acquire) < number) {
        if (now() >= end) return false;
        __nanosleep(64);
      }
      return true;
    };
    // A mark of the meeting before the last one may still be looked for until all came to the last.
    bool there = !failed || await(meeting - 1);
    if (failed) {
      Atomic(theirs[row * pads.ranks + pads.rank]).store(meeting, cuda::memory_order_relaxed);
    }
    Atomic(theirs[pads.rank]).store(meeting, cuda::memory_order_release);
    if (!failed) there = await(meeting);
    const bool with_error =
        !failed && there &&
        Atomic(own[row * pads.ranks + rank]).load(cuda::memory_order_relaxed) == meeting;
    if (!there || with_error) {
      Atomic(*outcome).store(there ? rank : kAllMet - 1 - rank, cuda::memory_order_release);
    }
  }
}

}  // namespace torch_ops::kernels
