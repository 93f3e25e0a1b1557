// gather on the GPU, for elements of a table that exceeds the L2 cache. No torch.
//
// Random places in memory: each costs the memory a row of its own that must be opened. All threads
// therefore go through the table together, window by window, and pick in each what lies there: so
// accesses that are near each other in time are near each other in memory. A thread waits for the
// picks of one window before it goes on to the next, which is what keeps them together.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/index_error.cuh"
#include "common/index_mode.h"
#include "common/index_view.cuh"
#include "common/row_layout.h"
#include "gather/gather_path.h"

namespace torch_ops {

constexpr int kElementsUnroll = 8;  // entries a lane, a block apart
constexpr int kElementsThreads = 512;

// Slabs whose index and output have no gaps, and whose places fit 32 bits.
struct ElementWindows {
  int64_t slabs;
  int64_t outer;  // slabs of a batch, which share its entries
  int64_t slab_stride;
  uint32_t entries;
  uint32_t axis_size;
  uint32_t axis_stride;
  uint32_t windows;
  uint32_t window;  // places

  ElementWindows(const RowLayout& layout)
      : slabs(layout.slabs()),
        outer(layout.outer),
        slab_stride(torch_ops::slab_stride(layout)),
        entries(static_cast<uint32_t>(layout.entries)),
        axis_size(static_cast<uint32_t>(layout.axis_size)),
        axis_stride(static_cast<uint32_t>(layout.table_axis_stride)) {
    // So many picks of a window keep the memory busy until the next one; and of more windows than
    // these each takes as long as its latency.
    constexpr int64_t kPicks = int64_t{1} << 17, kMost = 16;
    windows = static_cast<uint32_t>(std::clamp<int64_t>(slabs * entries / kPicks, 1, kMost));
    window = (axis_size - 1) * axis_stride / windows + 1;
  }
};

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

template <bool once, class Word>
__global__ void __launch_bounds__(kElementsThreads, 2)
    gather_elements_kernel(const Word* __restrict__ source,
                           const __grid_constant__ RuledIndex index, Word* __restrict__ output,
                           const __grid_constant__ ElementWindows call,
                           const __grid_constant__ IndexErrorSite errors) {
  constexpr int K = kElementsUnroll;
  constexpr uint32_t kNowhere = UINT32_MAX;  // in no window
  const uint32_t first = blockIdx.x * (kElementsThreads * K) + threadIdx.x;
  for (int64_t slab = blockIdx.y; slab < call.slabs; slab += gridDim.y) {
    const Word* table = source + slab * call.slab_stride;
    const auto cursor = index.from(slab / call.outer * call.entries);
    uint32_t numbers[K], places[K];
    int64_t entries[K];
    Word words[K];
    uint32_t bad = 0;  // a bit for each entry that is out of range
                       // Beyond the end the last entry is read again, and not written.
#pragma unroll
    for (int k = 0; k < K; ++k) {
      numbers[k] = min(first + k * kElementsThreads, call.entries - 1);
    }
    cursor.load(numbers, entries);
#pragma unroll
    for (int k = 0; k < K; ++k) {
      const int64_t row = index.row_of(entries[k]);
      const bool good = in_range(row, call.axis_size);
      bad |= good ? 0 : 1u << k;
      places[k] = good ? static_cast<uint32_t>(row) * call.axis_stride : kNowhere;
      words[k] = Word();
    }
#pragma unroll 1
    for (uint32_t w = 0, begin = 0; w < call.windows; ++w, begin += call.window) {
#pragma unroll
      for (int k = 0; k < K; ++k) {
        load_if<once>(places[k] - begin < call.window, table + places[k], words[k]);
      }
    }
    Word* to = output + slab * call.entries;
#pragma unroll
    for (int k = 0; k < K; ++k) {
      const uint32_t entry = first + k * kElementsThreads;
      if (entry < call.entries) to[entry] = words[k];
    }
    if (bad == 0) continue;
#pragma unroll 1
    for (int k = 0; k < K; ++k) {
      const uint32_t entry = first + k * kElementsThreads;
      if (!(bad >> k & 1) || entry >= call.entries) continue;
      to[entry] = index.template fill<Word>();
      record_bad_entry(errors, slab * call.entries + entry, index.row_of(cursor.at(entry)));
    }
  }
}

}  // namespace torch_ops
