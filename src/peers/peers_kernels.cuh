// Kernels that read and write the memory of other GPUs. No torch.
#pragma once

#include <cuda/atomic>
#include <type_traits>

#include "common/cuda/fast_divisor.cuh"
#include "common/cuda/vectorized.cuh"
#include "common/indexing/index_error.cuh"
#include "common/indexing/index_view.cuh"
#include "peers/peers_launch.h"

namespace torch_ops::kernels {

constexpr int kPeerThreads = 256;
constexpr int kPeerUnroll = 8;  // words of a thread that are on their way at a time
constexpr int kAddUnroll = 4;   // rows of a thread whose sums are on their way at a time
constexpr int32_t kNowhere = -1;
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

__device__ inline int64_t number_of(int64_t row) { return row & ~kNarrowRow; }

// The header, and rows of another round than the first, whose sums are there already. `lanes`
// threads, a power of two up to a warp, send a row.
template <class Word>
__global__ void __launch_bounds__(kPeerThreads)
    put_to_peers_kernel(const __grid_constant__ PeerSums call, int lanes,
                        const IndexErrorSlot* slot, uint32_t raised) {
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
  if (call.first == 0) return;
  const int64_t row_words = call.row_bytes / static_cast<int64_t>(sizeof(Word));
  const int64_t own = call.bounds[call.rank];  // these stay
  const int64_t own_count = call.bounds[call.rank + 1] - own;
  const int64_t count = call.bounds[call.ranks] - own_count;
  const int64_t teams = int64_t{gridDim.x} * (kPeerThreads / lanes);
  const int lane = static_cast<int>(threadIdx.x) % lanes;
  int64_t sent = int64_t{blockIdx.x} * (kPeerThreads / lanes) + threadIdx.x / lanes;
  for (; sent < count; sent += teams) {
    const int64_t n = sent < own ? sent : sent + own_count;
    const int64_t row = call.rows[n];
    const int64_t owner = number_of(row) / call.length;
    const int64_t place = n - call.bounds[owner] - call.first;
    if (place < 0 || place >= call.capacity) continue;
    auto* const inbox = reinterpret_cast<char*>(call.inboxes[owner]);
    const int64_t at = call.slot(call.rank, owner) * call.capacity + place;
    if (lane == 0) {
      reinterpret_cast<int64_t*>(inbox + call.rows_offset)[at] = row - owner * call.length;
    }
    auto* const to = reinterpret_cast<Word*>(inbox + call.values_offset + at * call.row_bytes);
    const auto* from = reinterpret_cast<const Word*>(call.values + n * call.row_bytes);
    const int64_t words = row >= kNarrowRow ? row_words / 2 : row_words;
    for (int64_t word = lane; word < words; word += lanes) {
      store_in_order(to + word, load_in_order(from + word));
    }
  }
}

// ---- What is sent ------------------------------------------------------------------------------

// 1 where another row begins, from the second on. The sums of these are the rows' numbers.
template <class Id>
struct RowBegins {
  const Id* sorted;
  __device__ Id operator()(int64_t n) const { return n > 0 && sorted[n] != sorted[n - 1]; }
};

// Of sorted numbers of rows: the distinct ones, and where those of each rank begin. Numbers from
// `size` on are of no row. `narrow`: to mark rows of one entry.
template <class Id>
__global__ void list_rows_kernel(const Id* __restrict__ sorted, const Id* __restrict__ numbers,
                                 int64_t count, int64_t size, bool narrow, int64_t length,
                                 int64_t ranks, int64_t* __restrict__ rows,
                                 int64_t* __restrict__ bounds) {
  const auto owner_of = [&](Id row) {
    return static_cast<int64_t>(row) < size ? static_cast<int64_t>(row) / length : ranks;
  };
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  // The last one stands for the end of all.
  for (int64_t n = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; n <= count; n += step) {
    if (n > 0 && n < count && sorted[n] == sorted[n - 1]) continue;
    const int64_t number = n < count ? static_cast<int64_t>(numbers[n])
                           : n > 0   ? static_cast<int64_t>(numbers[n - 1]) + 1
                                     : 0;
    const int64_t owner = n < count ? owner_of(sorted[n]) : ranks;
    if (n < count) {
      const bool alone = n + 1 == count || sorted[n + 1] != sorted[n];
      rows[number] = static_cast<int64_t>(sorted[n]) + (narrow && alone ? kNarrowRow : 0);
    }
    const int64_t before = n > 0 ? owner_of(sorted[n - 1]) : -1;
    for (int64_t rank = before + 1; rank <= owner; ++rank) bounds[rank] = number;
  }
}

// Where the sums of distinct rows go (RowsByAddress). Rows that go to an inbox are listed there.
__global__ void address_rows_kernel(const __grid_constant__ PeerSums call,
                                    uintptr_t* __restrict__ addresses) {
  const int64_t rows = call.bounds[call.ranks], step = int64_t{gridDim.x} * blockDim.x;
  // The one after the last row is for entries that name none.
  for (int64_t n = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; n < call.count; n += step) {
    char* to = call.values + n * call.row_bytes;
    const int64_t row = n < rows ? call.rows[n] : call.rank * call.length;
    const int64_t owner = number_of(row) / call.length;
    if (owner != call.rank) {
      const int64_t place = n - call.bounds[owner];
      if (place < call.capacity) {
        auto* const inbox = reinterpret_cast<char*>(call.inboxes[owner]);
        const int64_t at = call.slot(call.rank, owner) * call.capacity + place;
        reinterpret_cast<int64_t*>(inbox + call.rows_offset)[at] = row - owner * call.length;
        to = inbox + call.values_offset + at * call.row_bytes;
      }
    }
    addresses[n] = reinterpret_cast<uintptr_t>(to) + (row >= kNarrowRow);
    if (n >= rows) break;
  }
}

// ---- What has come -----------------------------------------------------------------------------

// A round's rows from one rank, in order.
template <class Sum>
struct CameRows {
  const int64_t* rows;
  int64_t first_row;  // from which they are counted
  const Sum* values;
  int64_t count;

  __device__ CameRows(const PeerSums& call, int64_t sender) {
    int64_t begin, all;
    if (sender == call.rank) {
      begin = call.bounds[sender] + call.first;
      all = call.bounds[sender + 1] - call.bounds[sender];
      rows = call.rows + begin;
      first_row = call.rank * call.length;
      values = reinterpret_cast<const Sum*>(call.values + begin * call.row_bytes);
    } else {
      const auto* const inbox = reinterpret_cast<const char*>(call.inboxes[call.rank]);
      begin = call.slot(sender, call.rank) * call.capacity;
      all = reinterpret_cast<const int64_t*>(inbox)[2 * sender];
      rows = reinterpret_cast<const int64_t*>(inbox + call.rows_offset) + begin;
      first_row = 0;
      values = reinterpret_cast<const Sum*>(inbox + call.values_offset + begin * call.row_bytes);
    }
    count = max(min(all - call.first, call.capacity), int64_t{0});
  }

  __device__ int64_t row(int64_t n) const { return number_of(rows[n]) - first_row; }

  // The first that is not below a row of this rank. All lanes of a warp look, at a place each.
  __device__ int64_t find(int64_t wanted) const {
    int64_t begin = 0, end = count;
    while (begin < end) {
      const int64_t step = (end - begin + 31) / 32;
      const int64_t n = begin + threadIdx.x % 32 * step;
      const int below = __popc(__ballot_sync(~0u, n < end && row(n) < wanted));
      end = min(begin + below * step, end);
      begin += below > 0 ? (below - 1) * step + 1 : 0;
    }
    return begin;
  }
};

// Writes this rank's rows: the sums of what came for each, in the order of the ranks; or, `onto`
// what is there, adds these. A block has `block_rows` rows. V columns of a row are one thread's.
template <int V, class Narrow, class Value>
__global__ void __launch_bounds__(kPeerThreads)
    add_from_peers_kernel(const __grid_constant__ PeerSums call, int64_t count, int block_rows,
                          int lanes, bool onto, Value* __restrict__ own) {
  using Sum = SumOf<Value>;
  using Sums = Vector<Sum, V>;
  // Where each rank has each row of the block, if it has: the place, or -2 - the place of a narrow
  // row; and each rank's values.
  extern __shared__ const void* shared[];
  auto* const values = reinterpret_cast<const Sum**>(shared);
  auto* const places = reinterpret_cast<int32_t*>(shared + call.ranks);
  const int thread = static_cast<int>(threadIdx.x), ranks = static_cast<int>(call.ranks);
  const int64_t first = int64_t{blockIdx.x} * block_rows;
  const int here = static_cast<int>(min(count - first, int64_t{block_rows}));
  for (int n = thread; n < here * ranks; n += kPeerThreads) places[n] = kNowhere;
  __syncthreads();
  // Warps for each rank, one at least.
  const int team = max(kPeerThreads / ranks / 32, 1) * 32;
  for (int rank = thread / team; rank < ranks; rank += kPeerThreads / team) {
    const CameRows<Sum> came(call, rank);
    values[rank] = came.values;
    const int64_t end = first + here;
    for (int64_t n = came.find(first) + thread % team; n < came.count; n += team) {
      const int64_t row = came.row(n);
      if (row >= end) break;
      const bool is_narrow = came.rows[n] >= kNarrowRow;
      places[(row - first) * ranks + rank] = static_cast<int32_t>(is_narrow ? -2 - n : n);
    }
  }
  __syncthreads();
  const int64_t width = call.row_bytes / static_cast<int64_t>(sizeof(Sum));
  const int rows_at_once = kPeerThreads / lanes;
  for (int at = thread / lanes; at < here; at += kAddUnroll * rows_at_once) {
    for (int64_t column = thread % lanes * V; column < width; column += lanes * V) {
      Sums totals[kAddUnroll] = {};
      bool has_come[kAddUnroll] = {};
      for (int rank = 0; rank < ranks; ++rank) {
        Sums more[kAddUnroll] = {};
#pragma unroll
        for (int u = 0; u < kAddUnroll; ++u) {
          const int row = at + u * rows_at_once;
          const int64_t place = row < here ? places[row * ranks + rank] : kNowhere;
          if (place == kNowhere) continue;
          has_come[u] = true;
          const Sum* const from = values[rank] + (place < 0 ? -2 - place : place) * width;
          if (std::is_same_v<Sum, Narrow> || place >= 0) {
            more[u] = *reinterpret_cast<const Sums*>(from + column);
          } else {
            const auto* const values = reinterpret_cast<const Narrow*>(from) + column;
            const auto narrow = *reinterpret_cast<const Vector<Narrow, V>*>(values);
#pragma unroll
            for (int v = 0; v < V; ++v) more[u].values[v] = static_cast<Sum>(narrow.values[v]);
          }
        }
#pragma unroll
        for (int u = 0; u < kAddUnroll; ++u) {
#pragma unroll
          for (int v = 0; v < V; ++v) totals[u].values[v] += more[u].values[v];
        }
      }
#pragma unroll
      for (int u = 0; u < kAddUnroll; ++u) {
        const int row = at + u * rows_at_once;
        if (row >= here || (onto && !has_come[u])) continue;
        Value* const to = own + (first + row) * width + column;
        Vector<Value, V> result{};
        if (onto) result = *reinterpret_cast<const Vector<Value, V>*>(to);
#pragma unroll
        for (int v = 0; v < V; ++v) {
          const Sum before = static_cast<Sum>(result.values[v]);
          result.values[v] = static_cast<Value>(before + totals[u].values[v]);
        }
        store(to, result);
      }
    }
  }
}

// ---- Meetings ----------------------------------------------------------------------------------

// One block. Thread r speaks to rank r, and waits for it.
__global__ void meet_peers_kernel(const __grid_constant__ PeerMeeting call) {
  using Atomic = cuda::atomic_ref<int64_t, cuda::thread_scope_system>;
  constexpr int64_t kNanoseconds = 1'000'000;  // of a millisecond
  const PeerPads& pads = call.pads;
  const bool failed = call.failed;
  const int64_t meeting = *call.count + 1;
  __syncthreads();
  if (threadIdx.x == 0) *call.count = meeting;
  const auto now = [] {
    int64_t time;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
    return time;
  };
  auto* const own = reinterpret_cast<int64_t*>(pads.pads[pads.rank]);
  const int64_t row = 1 + meeting % 2;
  for (int64_t rank = threadIdx.x; rank < pads.ranks; rank += blockDim.x) {
    auto* const theirs = reinterpret_cast<int64_t*>(pads.pads[rank]);
    const int64_t end = now() + call.milliseconds * kNanoseconds;
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
      Atomic(*call.outcome).store(there ? rank : kAllMet - 1 - rank, cuda::memory_order_release);
    }
  }
  if (call.header == nullptr) return;
  __syncthreads();
  for (int64_t n = threadIdx.x; n < 2 * pads.ranks; n += blockDim.x) {
    call.said[n] = *static_cast<const volatile int64_t*>(call.header + n);
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    Atomic(call.said[2 * pads.ranks]).store(call.number, cuda::memory_order_release);
  }
}

}  // namespace torch_ops::kernels
