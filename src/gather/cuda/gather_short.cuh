// gather on the GPU, for rows of words below 8 bytes whose words are adjacent. No torch.
//
// In the kernel of gather_flat.cuh, finding a word costs time: a division, its entry and its
// address, for 1 to 4 bytes. So a warp has 32 rows. Each lane reads the entry of one and finds that
// row in the table; then the lanes walk the words of all 32 in the order of the output, and get the
// place of a word's row from the lane that has it.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/cuda/launch.cuh"
#include "common/cuda/vectorized.cuh"
#include "common/indexing/index_error.cuh"
#include "common/indexing/index_view.cuh"
#include "common/layout/row_layout.h"
#include "gather/cuda/gather_flat.cuh"

namespace torch_ops {

constexpr int kShortThreads = 256;

// How the words of a warp's 32 rows are walked: 32 per step, in as many steps as a row has words.
struct ShortWalk {
  uint32_t parts;                  // warps that share the same rows, if there are few rows
  uint32_t steps;                  // of a part
  uint32_t next_row, next_column;  // how far one step goes

  ShortWalk(int64_t rows, int64_t words, int unroll, int64_t multiprocessors) {
    constexpr int64_t kWarps = 16;  // of a multiprocessor: enough
    const int64_t wanted =
        std::min(ceil_div(kWarps * multiprocessors * 32, rows), ceil_div(words, unroll));
    steps = static_cast<uint32_t>(ceil_div(words, wanted));
    parts = static_cast<uint32_t>(ceil_div(words, steps));
    next_row = static_cast<uint32_t>(32 / words);
    next_column = static_cast<uint32_t>(32 % words);
  }
};

// U: independent words in flight per thread. blockIdx.y is the part. An entry that names no row
// reads row 0, which is overwritten.
template <int U, FlatPlaces kPlaces, class Word, class Index>
__global__ void __launch_bounds__(kShortThreads)
    gather_short_kernel(const Word* __restrict__ source, const __grid_constant__ Index index,
                        Word* __restrict__ output, const __grid_constant__ FlatRows flat,
                        const __grid_constant__ ShortWalk walk,
                        const __grid_constant__ IndexErrorSite errors) {
  constexpr unsigned kAllLanes = 0xffffffffu;
  const uint32_t lane = threadIdx.x % 32;
  const uint32_t first_row = blockIdx.x * kShortThreads + threadIdx.x - lane;
  const uint32_t words = flat.row_words;

  // After the last row it is read again, and not written.
  const uint32_t row = min(first_row + lane, flat.rows - 1);
  const uint32_t slab = flat.by_entries.divide(row);
  const auto entry = index.from(flat.first_entry).at(flat.entry<kPlaces>(row, slab));
  const auto picked = index.row_of(entry);
  const bool good = in_range(picked, flat.rows_of_table<kPlaces>());
  const uint64_t place = flat.word<kPlaces>(slab, good ? picked : 0, /*column=*/0);
  // As two words: with the shuffle of 64 bits rows of 7 bfloat16 took 22 us instead of 19; the code
  // does not show why.
  const auto low = static_cast<uint32_t>(place), high = static_cast<uint32_t>(place >> 32);

  const uint32_t begin = blockIdx.y * walk.steps, end = min(begin + walk.steps, words);
  // Rows have at most kMostShortWords, so those after the last one have places of 32 bits too.
  const uint32_t first_word = first_row * words + lane, all_words = flat.rows * words;
  uint32_t column;
  uint32_t owner = flat.by_words.divide(lane + 32 * begin, column);  // the lane of the word's row
  // All loads before all stores. Those of whole rounds have no conditions, which would cost a
  // quarter.
  const auto copy = [&](uint32_t step, auto is_there) {
    Word loaded[U];
#pragma unroll
    for (int u = 0; u < U; ++u) {
      if (!is_there(u)) continue;
      const uint64_t from =
          uint64_t{__shfl_sync(kAllLanes, high, owner)} << 32 | __shfl_sync(kAllLanes, low, owner);
      loaded[u] = load_in_order(source + from + column);
      owner += walk.next_row;
      column += walk.next_column;
      if (column >= words) {
        column -= words;
        ++owner;
      }
    }
    const uint32_t at = first_word + 32 * step;
    const uint32_t left = all_words - min(all_words, at);
#pragma unroll
    for (int u = 0; u < U; ++u) {
      if (is_there(u) && 32 * u < left) store_in_order(output + at + 32 * u, loaded[u]);
    }
  };
  uint32_t step = begin;
  for (; step + U <= end; step += U) copy(step, [](int) { return true; });
  if (step < end) copy(step, [&](int u) { return step + u < end; });

  const unsigned bad = __ballot_sync(kAllLanes, !good);
  if (bad == 0) return;
#pragma unroll 1
  for (step = begin; step < end; ++step) {
    const uint32_t word = first_word + 32 * step;
    const bool fill = bad >> flat.by_words.divide(lane + 32 * step) & 1;
    if (fill && word < all_words) store_in_order(output + word, index.template fill<Word>());
  }
  if (!good) record_bad_entry(errors, flat.first_row + row, static_cast<int64_t>(picked));
}

}  // namespace torch_ops
