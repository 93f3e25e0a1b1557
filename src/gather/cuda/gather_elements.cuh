// gather on the GPU, for elements of a table that exceeds the L2 cache, which are picked window by
// window (table_windows.cuh). No torch.
#pragma once

#include <cstdint>

#include "common/indexing/index_error.cuh"
#include "common/indexing/index_mode.h"
#include "common/indexing/index_view.cuh"
#include "common/layout/row_layout.h"
#include "gather/cuda/gather_path.h"
#include "gather/cuda/table_windows.cuh"

namespace torch_ops {

// Slabs whose index and output have no gaps, and whose places fit 32 bits.
struct ElementWindows {
  int64_t slabs;
  int64_t outer;  // slabs of a batch, which share its entries
  int64_t slab_stride;
  uint32_t entries;
  uint32_t axis_size;
  uint32_t axis_stride;
  TableWindows windows;

  ElementWindows(const RowLayout& layout)
      : slabs(layout.slabs()),
        outer(layout.outer),
        slab_stride(torch_ops::slab_stride(layout)),
        entries(static_cast<uint32_t>(layout.entries)),
        axis_size(static_cast<uint32_t>(layout.axis_size)),
        axis_stride(static_cast<uint32_t>(layout.table_axis_stride)),
        windows(layout.slabs() * layout.entries,
                (layout.axis_size - 1) * layout.table_axis_stride + 1) {}
};

template <bool once, class Word>
__global__ void __launch_bounds__(TableWindows::kThreads, 2)
    gather_elements_kernel(const Word* __restrict__ source,
                           const __grid_constant__ RuledIndex index, Word* __restrict__ output,
                           const __grid_constant__ ElementWindows call,
                           const __grid_constant__ IndexErrorSite errors) {
  constexpr int K = TableWindows::kUnroll, T = TableWindows::kThreads;
  const uint32_t first = blockIdx.x * (T * K) + threadIdx.x;
  for (int64_t slab = blockIdx.y; slab < call.slabs; slab += gridDim.y) {
    const Word* table = source + slab * call.slab_stride;
    const auto cursor = index.from(slab / call.outer * call.entries);
    uint32_t numbers[K], places[K];
    int64_t entries[K];
    Word words[K];
    uint32_t bad = 0;  // a bit for each entry that is out of range
#pragma unroll
    for (int k = 0; k < K; ++k) {
      // Beyond the end the last entry is read again, and not written.
      numbers[k] = min(first + k * T, call.entries - 1);
    }
    cursor.load(numbers, entries);
#pragma unroll
    for (int k = 0; k < K; ++k) {
      const int64_t row = index.row_of(entries[k]);
      const bool good = in_range(row, call.axis_size);
      bad |= good ? 0 : 1u << k;
      places[k] = good ? static_cast<uint32_t>(row) * call.axis_stride : TableWindows::kNowhere;
      words[k] = Word();
    }
    call.windows.pick<once>(table, places, words);
    Word* to = output + slab * call.entries;
#pragma unroll
    for (int k = 0; k < K; ++k) {
      const uint32_t entry = first + k * T;
      if (entry < call.entries) to[entry] = words[k];
    }
    if (bad == 0) continue;
#pragma unroll 1
    for (int k = 0; k < K; ++k) {
      const uint32_t entry = first + k * T;
      if (!(bad >> k & 1) || entry >= call.entries) continue;
      to[entry] = index.template fill<Word>();
      record_bad_entry(errors, slab * call.entries + entry, index.row_of(cursor.at(entry)));
    }
  }
}

}  // namespace torch_ops
