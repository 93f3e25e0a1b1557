// Picks of elements from a table that does not fit the L2 cache. No torch.
//
// Random places in memory: each opens another row of the memory chips. All threads
// therefore go through the table together, window by window, and pick in each what is there: so
// accesses that are near each other in time are near each other in memory. A thread waits for the
// picks of one window before it goes on to the next, which keeps the threads together.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/cuda/vectorized.cuh"

namespace torch_ops {

// Loads a word if `wanted`, without a branch: other loads must not wait for it. `once`: bypasses
// the L1 cache, which would give up a line for a word that is not likely to be used again.
template <bool once, class Word>
__device__ __forceinline__ void load_if(bool wanted, const Word* from, Word& word) {
#define TORCH_OPS_LOAD_IF(cache, type, constraint, value)                             \
  asm volatile("{ .reg .pred p; setp.ne.u32 p, %2, 0; @p ld.global.nc" cache "." type \
               " %0, [%1]; }"                                                         \
               : "+" constraint(value)                                                \
               : "l"(from), "r"(static_cast<uint32_t>(wanted)))
#define TORCH_OPS_LOAD_ONCE_IF(type, constraint, value)             \
  if constexpr (once) {                                             \
    TORCH_OPS_LOAD_IF(".L1::no_allocate", type, constraint, value); \
  } else {                                                          \
    TORCH_OPS_LOAD_IF("", type, constraint, value);                 \
  }
  if constexpr (sizeof(Word) == 2) {
    TORCH_OPS_LOAD_ONCE_IF("u16", "h", reinterpret_cast<uint16_t&>(word))
  } else if constexpr (sizeof(Word) == 4) {
    TORCH_OPS_LOAD_ONCE_IF("u32", "r", reinterpret_cast<uint32_t&>(word))
  } else {
    static_assert(sizeof(Word) == 8);
    TORCH_OPS_LOAD_ONCE_IF("u64", "l", reinterpret_cast<unsigned long long&>(word))
  }
#undef TORCH_OPS_LOAD_ONCE_IF
#undef TORCH_OPS_LOAD_IF
}

struct TableWindows {
  static constexpr int kUnroll = 8;  // picks of a lane
  static constexpr int kThreads = 512;
  static constexpr uint32_t kNowhere = UINT32_MAX;  // a place in no window

  uint32_t count;
  uint32_t places;  // of a window

  // For this many picks of a table of at most 2^31 places.
  TableWindows(int64_t picks, int64_t table_places) {
    // This many picks of a window keep the memory busy until the next one; with more windows than
    // that, each takes as long as its latency.
    constexpr int64_t kPicks = int64_t{1} << 17, kMost = 16;
    count = static_cast<uint32_t>(std::clamp<int64_t>(picks / kPicks, 1, kMost));
    places = static_cast<uint32_t>((table_places - 1) / count + 1);
  }

  // A thread's picks. Words whose place is kNowhere do not change. All threads of the block
  // must call this.
  template <bool once, class Word>
  __device__ __forceinline__ void pick(const Word* table, const uint32_t (&at)[kUnroll],
                                       Word (&words)[kUnroll]) const {
    pick_window<once>(table, at, 0, places, words);
    if (count == 1) return;
    // While these are in flight. The first window is done; the others may become fewer.
    const uint32_t rest = max(worthwhile_windows(at[0]), 2u) - 1;
    const uint32_t size = rest == count - 1 ? places : places * (count - 1) / rest + 1;
#pragma unroll 1
    for (uint32_t w = 0, begin = places; w < rest; ++w, begin += size) {
      pick_window<once>(table, at, begin, size, words);
    }
  }

 private:
  template <bool once, class Word>
  static __device__ __forceinline__ void pick_window(const Word* table,
                                                     const uint32_t (&at)[kUnroll], uint32_t begin,
                                                     uint32_t size, Word (&words)[kUnroll]) {
#pragma unroll
    for (int k = 0; k < kUnroll; ++k) {
      load_if<once>(at[k] - begin < size, table + at[k], words[k]);
    }
  }

  // The caches serve picks of one place, so fewer windows keep the memory busy, and the
  // others only add their latency. A block decides by one pick of each thread how many places
  // differ: the block, and not each warp, since of thousands of warps some would happen to see
  // another share, and end last. The third power of that share of all windows is about what
  // was fastest on indices of several kinds (docs/internals/log.md).
  __device__ __forceinline__ uint32_t worthwhile_windows(uint32_t at) const {
    constexpr uint32_t kSlots = 4096;
    __shared__ uint32_t owners[kSlots];
    const uint32_t thread = threadIdx.x;
    const uint32_t slot = at * 0x9e3779b1u / (UINT32_MAX / kSlots + 1);  // a multiplicative hash
    // Neighbours of one place would wait for each other here.
    const bool first = __shfl_up_sync(0xffffffffu, at, 1) != at || thread % 32 == 0;
    if (first) atomicExch(owners + slot, thread);
    __syncthreads();
    const uint32_t kept = __syncthreads_count(first && owners[slot] == thread);
    // If all places differ, 94 % of them keep their slot.
    if (kept > kThreads / 8 * 7) return count;
    const uint64_t share = uint64_t{kept} * kept * kept;
    return max(static_cast<uint32_t>(count * share / (uint64_t{kThreads} * kThreads * kThreads)),
               1u);
  }
};

}  // namespace torch_ops
