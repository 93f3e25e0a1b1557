// What each entry gets from its segment, its number or its row; and the offsets of an index in
// order.
#include <algorithm>

#include "common/cuda/launch.cuh"
#include "common/cuda/vectorized.cuh"
#include "segments/cuda/offsets.cuh"
#include "segments/segments_launch.h"

namespace torch_ops {
namespace segments {
namespace {

constexpr int kIdTile = 4 * kRunThreads;  // entries of a block

template <class Out>
__global__ void __launch_bounds__(kRunThreads)
    ids_kernel(const __grid_constant__ Offsets offsets, Out* __restrict__ ids,
               const __grid_constant__ IndexErrorSite errors) {
  const int64_t begin = int64_t{blockIdx.x} * kIdTile;
  offsets.find(begin, kIdTile,
               [&](int i, Id /*b*/, int64_t s) { ids[begin + i] = static_cast<Out>(s); });
  check_offsets(offsets, errors);
}

constexpr int kRepeatTile = 8 * kRunThreads;  // entries of a block, at most

// Writes the row of its segment to each entry: `words` of each. Slices are blockIdx.y. With kWide
// there is only one, and a thread writes 16 bytes at a time, of one entry or of several.
template <class Word, bool kWide>
__global__ void __launch_bounds__(kRunThreads)
    repeat_kernel(const __grid_constant__ Offsets offsets, int64_t words, int tile,
                  const Word* __restrict__ rows, Word* __restrict__ result,
                  const __grid_constant__ IndexErrorSite errors) {
  __shared__ int64_t row_of[kRepeatTile];  // of the first slice; -1: none
  const int64_t begin = int64_t{blockIdx.x} * tile;
  const auto segments = static_cast<int64_t>(offsets.segments);
  const auto outer = static_cast<int64_t>(offsets.outer);
  offsets.find(begin, tile, [&](int i, Id b, int64_t s) {
    row_of[i] = s < segments ? static_cast<int64_t>(b) * outer * segments + s : -1;
  });
  __syncthreads();
  const int64_t left = static_cast<int64_t>(offsets.batch) * offsets.entries - begin;
  const auto count = static_cast<unsigned>(min(int64_t{tile}, left));
  if constexpr (kWide) {
    constexpr unsigned P = kVectorBytes / sizeof(Word);
    const auto each = static_cast<unsigned>(words);
    const unsigned all = count * each;
    for (unsigned n = threadIdx.x * P; n < all; n += kRunThreads * P) {
      unsigned i = n / each, column = n - i * each;
      Vector<Word, P> vector;
#pragma unroll
      for (unsigned p = 0; p < P; ++p) {
        const int64_t row = i < count ? row_of[i] : -1;
        vector.values[p] = row < 0 ? Word{} : rows[row * words + column];
        const bool ends = ++column == each;
        column = ends ? 0 : column;
        i += ends;
      }
      Word* const to = result + begin * words + n;
      if (n + P <= all) {
        store(to, vector);
      } else {
#pragma unroll
        for (unsigned p = 0; p < P; ++p) {
          if (n + p < all) to[p] = vector.values[p];
        }
      }
    }
  } else {
    const auto copy = [&](unsigned i, int64_t column, int64_t slice) {
      const int64_t place = begin + i, row = row_of[i];
      const auto b = static_cast<int64_t>(offsets.batch_of(place, offsets.entries));
      const int64_t to = place + (b * (outer - 1) + slice) * offsets.entries;
      result[to * words + column] =
          row < 0 ? Word{} : rows[(row + slice * segments) * words + column];
    };
    for (int64_t slice = blockIdx.y; slice < outer; slice += gridDim.y) {
      if (words < 32) {
        const auto each = static_cast<unsigned>(words);
#pragma unroll 4
        for (unsigned n = threadIdx.x; n < count * each; n += kRunThreads) {
          const unsigned i = each == 1 ? n : n / each;
          copy(i, n - i * each, slice);
        }
      } else {
        for (unsigned i = threadIdx.x / 32; i < count; i += kRunThreads / 32) {
#pragma unroll 4
          for (int64_t column = threadIdx.x % 32; column < words; column += 32) {
            copy(i, column, slice);
          }
        }
      }
    }
  }
  if (blockIdx.y == 0) check_offsets(offsets, errors);
}

// The first entry of each row, in an index that is in order.
template <class Out>
__global__ void offsets_kernel(IndexView index, const __grid_constant__ RowLayout layout,
                               Out* __restrict__ offsets,
                               const __grid_constant__ IndexErrorSite errors) {
  const int64_t entries = layout.batch * layout.entries, rows = layout.axis_size + 1;
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  const int64_t thread = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const auto at = [&](int64_t b, int64_t n) {
    return index[b * layout.index_batch_stride + n * layout.index_entry_stride];
  };
  for (int64_t n = thread; n < entries; n += step) {
    const int64_t b = layout.batch == 1 ? 0 : n / layout.entries;
    const int64_t entry = at(b, n - b * layout.entries);
    if (!in_range(entry, layout.axis_size)) record_bad_entry(errors, n, entry);
  }
  for (int64_t n = thread; n < layout.batch * rows; n += step) {
    const int64_t b = layout.batch == 1 ? 0 : n / rows, row = n - b * rows;
    int64_t low = -1, high = layout.entries;  // the first that names this row or one after it
    while (high - low > 1) {
      const int64_t middle = (low + high) / 2;
      (at(b, middle) < row ? low : high) = middle;
    }
    offsets[n] = static_cast<Out>(high);
  }
}

}  // namespace
}  // namespace segments

namespace kernels {

using segments::all_offsets;

void repeat_rows(OnCuda on, const IndexArray& marks, const RowLayout& layout, const char* rows,
                 char* result, const IndexErrorSite& errors) {
  const HostScope scope(on.program);
  if (layout.slabs() == 0) return;
  constexpr int64_t kMostWords = 1 << 14;  // of a block, unless its rows have more
  constexpr int64_t kEnoughBlocks = 1024;
  const auto launch = [&](auto word) {
    using Word = decltype(word);
    const int64_t words = layout.inner / static_cast<int64_t>(sizeof(Word));
    const int64_t entries = layout.batch * layout.entries;
    // Entries of a block: few enough for all multiprocessors, and so many that a search pays.
    const int64_t most =
        std::min<int64_t>(segments::kRepeatTile, kMostWords / std::max<int64_t>(words, 1));
    int64_t tile =
        std::clamp<int64_t>(std::min(most, entries / kEnoughBlocks), 8, segments::kRepeatTile);
    auto* kernel = segments::repeat_kernel<Word, false>;
    if constexpr (sizeof(Word) < kVectorBytes) {
      constexpr int64_t kMostWide = 64;  // words; of longer rows a warp has each, in order
      if (layout.outer == 1 && words < kMostWide && is_aligned(result, kVectorBytes)) {
        kernel = segments::repeat_kernel<Word, true>;
        constexpr int64_t kWords = kVectorBytes / sizeof(Word);
        tile = ceil_div(tile, kWords) * kWords;  // so that each block's results are aligned
      }
    }
    const dim3 grid(grid_x(std::max<int64_t>(ceil_div(entries, tile), 1), 1), grid_y(layout.outer));
    TORCH_OPS_LAUNCH(kernel, grid, kRunThreads, 0, all_offsets(marks, layout), words,
                     static_cast<int>(tile), reinterpret_cast<const Word*>(rows),
                     reinterpret_cast<Word*>(result), errors);
  };
  const auto fits = [&](int64_t bytes) {
    return layout.inner % bytes == 0 && is_aligned(rows, bytes) && is_aligned(result, bytes);
  };
  if (fits(16)) return launch(uint4{});
  if (fits(8)) return launch(uint64_t{});
  if (fits(4)) return launch(uint32_t{});
  fits(2) ? launch(uint16_t{}) : launch(uint8_t{});
}

template <class Out>
void find_segments(OnCuda on, const IndexArray& offsets, const RowLayout& layout, Out* ids,
                   const IndexErrorSite& errors) {
  const HostScope scope(on.program);
  if (layout.batch == 0) return;
  auto* find = segments::ids_kernel<Out>;
  const int64_t blocks =
      std::max<int64_t>(ceil_div(layout.batch * layout.entries, segments::kIdTile), 1);
  TORCH_OPS_LAUNCH(find, grid_x(blocks, 1), kRunThreads, 0, all_offsets(offsets, layout), ids,
                   errors);
}

template <class Out>
void find_offsets(OnCuda on, const IndexArray& index, const RowLayout& layout, Out* offsets,
                  const IndexErrorSite& errors) {
  const HostScope scope(on.program);
  const int64_t work = layout.batch * std::max(layout.entries, layout.axis_size + 1);
  if (work == 0) return;
  TORCH_OPS_LAUNCH(segments::offsets_kernel<Out>, grid_x(work, kThreads), kThreads, 0,
                   IndexView{index}, layout, offsets, errors);
}

#define INSTANTIATE(Out)                                                         \
  template void find_segments(OnCuda, const IndexArray&, const RowLayout&, Out*, \
                              const IndexErrorSite&);                            \
  template void find_offsets(OnCuda, const IndexArray&, const RowLayout&, Out*,  \
                             const IndexErrorSite&);
INSTANTIATE(int32_t)
INSTANTIATE(int64_t)

}  // namespace kernels
}  // namespace torch_ops
