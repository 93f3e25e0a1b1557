// gather on the GPU, a word per lane. If nothing has gaps and all strides fit 32 bits, as in most
// calls, finding a word takes half the instructions and three quarters of the registers that it
// takes with any strides, and more warps wait for memory at a time. No torch.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/cuda/fast_divisor.cuh"
#include "common/cuda/vectorized.cuh"
#include "common/indexing/index_error.cuh"
#include "common/indexing/index_view.cuh"
#include "common/layout/row_layout.h"
#include "gather/cuda/gather_path.h"

namespace torch_ops {

// Independent words in flight per thread, and threads of a block: of 1 to 8 words and 128 to 512
// threads the fastest on average (docs/internals/log.md).
template <class Word>
constexpr int kFlatUnroll = sizeof(Word) == 16 ? 2 : 3;
constexpr int kFlatThreads = 128;

// How a kernel finds the words of its rows. The first two are for calls without gaps (is_flat).
enum class FlatPlaces {
  kOneSlab,  // a batch is one slab
  kSlabs,    // a batch is one slab or several, which share its entries
  kAny,      // any strides and sizes: for RuledIndex
};

// Rows of one launch: all rows of whole slabs, a part of one slab's, or a part of one row.
struct FlatRows {
  uint32_t rows;
  uint32_t row_words;
  uint32_t axis_size;
  uint32_t axis_stride;  // of the table, in words
  uint32_t slab_stride;
  uint32_t entries;
  FastDivisor by_words;
  FastDivisor by_entries;
  FastDivisor by_outer;
  int64_t first_row;    // in the whole call
  int64_t first_entry;  // in the index
  RowLayout layout;     // for kAny

  // Where a row's entry is, given the row's slab.
  template <FlatPlaces kPlaces>
  __device__ __forceinline__ auto entry(uint32_t row, uint32_t slab) const {
    if constexpr (kPlaces == FlatPlaces::kAny) {
      return int64_t{by_outer.divide(slab)} * layout.index_batch_stride +
             int64_t{row - slab * entries} * layout.index_entry_stride;
    } else {
      return kPlaces == FlatPlaces::kSlabs ? row - (slab - by_outer.divide(slab)) * entries : row;
    }
  }

  // Where a word of a table's row is.
  template <FlatPlaces kPlaces>
  __device__ __forceinline__ uint64_t word(uint32_t slab, uint64_t row, uint32_t column) const {
    if constexpr (kPlaces == FlatPlaces::kAny) {
      uint32_t slice;
      const uint32_t batch = by_outer.divide(slab, slice);
      return batch * layout.table_batch_stride + slice * layout.table_outer_stride +
             row * layout.table_axis_stride + column * layout.table_inner_stride;
    } else {
      return uint64_t{slab} * slab_stride + column +
             uint64_t{static_cast<uint32_t>(row)} * axis_stride;
    }
  }

  template <FlatPlaces kPlaces>
  __device__ __forceinline__ auto rows_of_table() const {
    if constexpr (kPlaces == FlatPlaces::kAny) {
      return layout.axis_size;
    } else {
      return axis_size;
    }
  }
};

// The loads of a thread do not wait for each other: first all entries of the index, then all words.
// An entry that names no row reads row 0, which is overwritten, and is recorded when few registers
// are in use.
template <FlatPlaces kPlaces, class Word, class Index>
__global__ void gather_flat_kernel(const Word* __restrict__ source,
                                   const __grid_constant__ Index index, Word* __restrict__ output,
                                   const __grid_constant__ FlatRows flat,
                                   const __grid_constant__ IndexErrorSite errors) {
  constexpr int kUnroll = kFlatUnroll<Word>;
  const uint32_t first = blockIdx.x * (blockDim.x * kUnroll) + threadIdx.x;
  const uint32_t last = flat.rows * flat.row_words - 1;

  typename Index::Entry entries[kUnroll];
  uint32_t slabs[kUnroll], columns[kUnroll];
  const auto cursor = index.from(flat.first_entry);
#pragma unroll
  for (int k = 0; k < kUnroll; ++k) {
    // Beyond the end the last word is read again, and not written.
    const uint32_t word = min(first + k * blockDim.x, last);
    const uint32_t row = flat.by_words.divide(word, columns[k]);
    slabs[k] = flat.by_entries.divide(row);
    entries[k] = cursor.at(flat.entry<kPlaces>(row, slabs[k]));
  }
  Word words[kUnroll];
  uint32_t bad = 0;  // a bit for each word whose entry is out of range
#pragma unroll
  for (int k = 0; k < kUnroll; ++k) {
    const auto row = index.row_of(entries[k]);
    const bool good = in_range(row, flat.rows_of_table<kPlaces>());
    bad |= good ? 0 : 1u << k;
    words[k] = load_in_order(source + flat.word<kPlaces>(slabs[k], good ? row : 0, columns[k]));
  }
#pragma unroll
  for (int k = 0; k < kUnroll; ++k) {
    const uint32_t word = first + k * blockDim.x;
    if (word <= last) store_in_order(output + word, words[k]);
  }
  if (bad == 0) return;
#pragma unroll 1
  for (int k = 0; k < kUnroll; ++k) {
    const uint32_t word = first + k * blockDim.x;
    if (!(bad >> k & 1) || word > last) continue;
    store_in_order(output + word, index.template fill<Word>());
    const uint32_t row = flat.by_words.divide(word);
    const auto entry = cursor.at(flat.entry<kPlaces>(row, flat.by_entries.divide(row)));
    record_bad_entry(errors, flat.first_row + row, static_cast<int64_t>(index.row_of(entry)));
  }
}

// Cuts a call into launches of at most 2^30 words, and calls launch(flat, from, to): where in the
// table the launch finds its first word if that row is row 0, and where in the output it writes it.
template <class Launch>
void for_each_flat(const RowLayout& layout, Launch launch) {
  constexpr int64_t kMostWords = int64_t{1} << 30;
  const auto narrow = [](int64_t size) {  // where it is not used, it may be larger
    return static_cast<uint32_t>(std::min<int64_t>(size, INT32_MAX));
  };
  // Whole batches if one fits; otherwise batch by batch, and there as many slabs as fit, or as
  // many entries of one, or a part of one row.
  const int64_t columns = std::min(layout.inner, kMostWords);
  const int64_t entries = std::min(layout.entries, kMostWords / columns);
  const int64_t fit = entries < layout.entries || columns < layout.inner
                          ? 1
                          : kMostWords / (layout.entries * layout.inner);
  const bool whole = layout.outer <= fit;
  const int64_t group = whole ? layout.slabs() : layout.outer;
  const int64_t step = whole ? fit / layout.outer * layout.outer : fit;
  FlatRows flat{};
  flat.axis_size = narrow(layout.axis_size);
  flat.axis_stride = narrow(layout.table_axis_stride);
  flat.slab_stride = narrow(slab_stride(layout));
  flat.entries = static_cast<uint32_t>(entries);
  flat.by_entries = FastDivisor(flat.entries);
  flat.by_outer = FastDivisor(narrow(layout.outer));
  flat.layout = layout;
  const auto launch_slabs = [&](int64_t slab, int64_t slabs) {
    const int64_t batch = slab / layout.outer;
    const int64_t table =
        batch * layout.table_batch_stride + slab % layout.outer * layout.table_outer_stride;
    for (int64_t entry = 0; entry < layout.entries; entry += entries) {
      flat.rows = static_cast<uint32_t>(slabs * std::min(entries, layout.entries - entry));
      flat.first_row = slab * layout.entries + entry;
      flat.first_entry = batch * layout.index_batch_stride + entry * layout.index_entry_stride;
      for (int64_t column = 0; column < layout.inner; column += columns) {
        flat.row_words = static_cast<uint32_t>(std::min(columns, layout.inner - column));
        flat.by_words = FastDivisor(flat.row_words);
        launch(flat, table + column * layout.table_inner_stride,
               flat.first_row * layout.inner + column);
      }
    }
  };
  for (int64_t begin = 0; begin < layout.slabs(); begin += group) {
    for (int64_t slab = begin; slab < begin + group; slab += step) {
      launch_slabs(slab, std::min(step, begin + group - slab));
    }
  }
}

}  // namespace torch_ops
