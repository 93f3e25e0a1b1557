// Picks of elements from a table that the L2 cache does not hold. No torch.
//
// Random places in memory: each costs the memory a row of its own that must be opened. All threads
// therefore go through the table together, window by window, and pick in each what lies there: so
// accesses that are near each other in time are near each other in memory. A thread waits for the
// picks of one window before it goes on to the next, which is what keeps them together. But where
// most picks of a warp are of one place, the few others go at once.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/vectorized.cuh"

namespace torch_ops {

// Loads a word if `wanted`, without a branch: other loads shall not wait for it. `once`: past the
// L1 cache, which would give up a line for a word that nobody is likely to ask for again.
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

  // For so many picks of a table of at most 2^31 places.
  TableWindows(int64_t picks, int64_t table_places) {
    // So many picks of a window keep the memory busy until the next one; and of more windows than
    // these each takes as long as its latency.
    constexpr int64_t kPicks = int64_t{1} << 17, kMost = 16;
    count = static_cast<uint32_t>(std::clamp<int64_t>(picks / kPicks, 1, kMost));
    places = static_cast<uint32_t>((table_places - 1) / count + 1);
  }

  // A lane's picks. Words whose place is kNowhere stay what they are. All lanes of the warp must
  // come here.
  template <bool once, class Word>
  __device__ __forceinline__ void pick(const Word* table, uint32_t (&at)[kUnroll],
                                       Word (&words)[kUnroll]) const {
    // Most picks of the warp may be of one place: one load serves them, and so few others are left
    // that they need not wait for each other.
    const uint32_t common = find_common(at);
    Word word = Word();
    uint32_t hits = 0;  // a bit for each pick of that place
    if (common != kNowhere) {
      word = load_in_order(table + common);
#pragma unroll
      for (int k = 0; k < kUnroll; ++k) {
        if (at[k] != common) continue;
        hits |= 1u << k;
        at[k] = kNowhere;
      }
    }
    const uint32_t size = common != kNowhere ? kNowhere : places;
#pragma unroll 1
    for (uint32_t w = 0, begin = 0; w < (common != kNowhere ? 1 : count); ++w, begin += places) {
#pragma unroll
      for (int k = 0; k < kUnroll; ++k) {
        load_if<once>(at[k] - begin < size, table + at[k], words[k]);
      }
    }
    // Last: a load into what has this word would wait for it.
    if (common == kNowhere) return;
#pragma unroll
    for (int k = 0; k < kUnroll; ++k) {
      if (hits >> k & 1) words[k] = word;
    }
  }

 private:
  // The place that three quarters of the warp's first picks have, or kNowhere.
  static __device__ __forceinline__ uint32_t find_common(const uint32_t (&at)[kUnroll]) {
    constexpr unsigned kAllLanes = 0xffffffffu;
#pragma unroll
    for (int lane = 0; lane < 32; lane += 8) {  // one lane's pick may be another
      const uint32_t candidate = __shfl_sync(kAllLanes, at[0], lane);
      if (__popc(__ballot_sync(kAllLanes, at[0] == candidate)) >= 24) return candidate;
    }
    return kNowhere;
  }
};

}  // namespace torch_ops
