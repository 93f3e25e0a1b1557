// gather on the GPU if nothing has gaps and every place fits 32 bits, as in most calls. With
// half the instructions and three quarters of the registers of the kernel for any strides, more
// warps wait for memory at a time. No torch.
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

// Rows of one launch, which begin with a slab: all rows of whole slabs, or a part of one slab's.
// The entries are adjacent, those of a batch once for all its slabs.
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

  // Where a row's entry is, given the row's slab. kOuter: is a batch more than one slab?
  template <bool kOuter>
  __device__ __forceinline__ uint32_t entry(uint32_t row, uint32_t slab) const {
    return kOuter ? row - (slab - by_outer.divide(slab)) * entries : row;
  }
};

// The loads of a thread do not wait for each other: first all entries of the index, then all words.
// An entry that names no row reads row 0, which is overwritten, and is recorded when few registers
// are in use.
template <bool kOuter, class Word, class Index>
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
    entries[k] = cursor.at(flat.entry<kOuter>(row, slabs[k]));
  }
  Word words[kUnroll];
  uint32_t bad = 0;  // a bit for each word whose entry is out of range
#pragma unroll
  for (int k = 0; k < kUnroll; ++k) {
    const auto row = index.row_of(entries[k]);
    const bool good = in_range(row, flat.axis_size);
    bad |= good ? 0 : 1u << k;
    const auto safe = good ? static_cast<uint32_t>(row) : 0;
    words[k] = load_in_order(source + (uint64_t{slabs[k]} * flat.slab_stride + columns[k]) +
                             uint64_t{safe} * flat.axis_stride);
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
    const auto entry = cursor.at(flat.entry<kOuter>(row, flat.by_entries.divide(row)));
    record_bad_entry(errors, flat.first_row + row, static_cast<int64_t>(index.row_of(entry)));
  }
}

// Cuts a call into launches of at most 2^30 words, or of one slab, and calls
// launch(flat, word), where the latter is the table's first.
template <class Launch>
void for_each_flat(const RowLayout& layout, Launch launch) {
  constexpr int64_t kMostWords = int64_t{1} << 30;
  const int64_t stride = slab_stride(layout);
  const int64_t slab_words = layout.entries * layout.inner;
  // Whole batches if one fits; otherwise batch by batch, and there as many slabs as fit.
  const int64_t fit = std::max<int64_t>(kMostWords / slab_words, 1);
  const bool whole = layout.outer <= fit;
  const int64_t group = whole ? layout.slabs() : layout.outer;
  const int64_t step = whole ? fit / layout.outer * layout.outer : fit;
  FlatRows flat{};
  flat.row_words = static_cast<uint32_t>(layout.inner);
  flat.axis_size = static_cast<uint32_t>(layout.axis_size);
  flat.axis_stride = static_cast<uint32_t>(layout.table_axis_stride);
  flat.slab_stride = static_cast<uint32_t>(stride);
  flat.entries = static_cast<uint32_t>(layout.entries);
  flat.by_words = FastDivisor(flat.row_words);
  flat.by_entries = FastDivisor(flat.entries);
  flat.by_outer = FastDivisor(static_cast<uint32_t>(layout.outer));
  for (int64_t begin = 0; begin < layout.slabs(); begin += group) {
    for (int64_t slab = begin; slab < begin + group; slab += step) {
      const int64_t slabs = std::min(step, begin + group - slab);
      flat.rows = static_cast<uint32_t>(slabs * layout.entries);
      flat.first_row = slab * layout.entries;
      flat.first_entry = slab / layout.outer * layout.entries;
      launch(flat, slab * stride);
    }
  }
}

}  // namespace torch_ops
