// gather on the GPU, for elements of a small table, which blocks copy to shared memory. No torch.
//
// Index is a reader of common/indexing/index_view.cuh. An entry that names no row gives the
// reader's fill, and nothing is read out of bounds; the axis must not be empty.
#pragma once

#include <cstdint>

#include "common/cuda/vectorized.cuh"
#include "common/indexing/index_error.cuh"
#include "common/indexing/index_view.cuh"
#include "common/layout/row_grid.cuh"
#include "common/layout/row_layout.h"
#include "gather/cuda/gather_staging.h"

namespace torch_ops {

// N entries of an index, in wide loads if they are adjacent and aligned.
template <int N, class Index>
__device__ __forceinline__ void load_entries(const PlainIndex<Index>& index, int64_t stride,
                                             Index (&entries)[N]) {
  const Index* __restrict__ from = index.data;
  constexpr int kWide = N * sizeof(Index) < kVectorBytes ? N : kVectorSize<Index>;
  using Wide = Vector<Index, kWide>;
  if (stride == 1 && reinterpret_cast<uintptr_t>(from) % sizeof(Wide) == 0) {
#pragma unroll
    for (int k = 0; k < N; k += kWide) {
      const Wide wide = *reinterpret_cast<const Wide*>(from + k);
#pragma unroll
      for (int j = 0; j < kWide; ++j) entries[k + j] = wide.values[j];
    }
  } else {
#pragma unroll
    for (int k = 0; k < N; ++k) entries[k] = from[k * stride];
  }
}

template <int N>
__device__ __forceinline__ void load_entries(const IndexView& index, int64_t stride,
                                             int64_t (&entries)[N]) {
#pragma unroll
  for (int k = 0; k < N; ++k) entries[k] = index.at(k * stride);
}

// A block copies `count` words to shared memory: in wide ones if they are adjacent, since such a
// copy waits for the loads that a thread has in flight at a time.
template <class Word>
__device__ __forceinline__ void stage_words(const Word* from, int64_t stride, uint32_t count,
                                            Word* to) {
  constexpr uint32_t kWords = kVectorSize<Word>;
  using Wide = Vector<Word, kWords>;
  uint32_t done = 0;
  if (stride == 1 && reinterpret_cast<uintptr_t>(from) % sizeof(Wide) == 0) {
#pragma unroll 4
    for (uint32_t i = threadIdx.x; i < count / kWords; i += blockDim.x) {
      reinterpret_cast<Wide*>(to)[i] = reinterpret_cast<const Wide*>(from)[i];
    }
    done = count / kWords * kWords;
  }
#pragma unroll 4
  for (uint32_t i = done + threadIdx.x; i < count; i += blockDim.x) to[i] = from[i * stride];
}

// A block copies its slab's table to shared memory and serves `part` entries from there.
template <class Word, class Index>
__global__ void __launch_bounds__(Staging::kMostThreads)
    gather_staged_kernel(const Word* __restrict__ source, const __grid_constant__ Index index,
                         Word* __restrict__ output, RowLayout layout, RowGrid grid, int64_t part,
                         const __grid_constant__ IndexErrorSite errors) {
  constexpr int kWords = kVectorSize<Word>;
  extern __shared__ __align__(kVectorBytes) unsigned char shared[];
  Word* table = reinterpret_cast<Word*>(shared);
  const auto axis_size = static_cast<uint32_t>(layout.axis_size);

  for (int64_t number = blockIdx.y; number < grid.slabs; number += gridDim.y) {
    int64_t batch, slice;
    grid.split_slab(number, batch, slice);
    const Word* slab_table =
        source + batch * layout.table_batch_stride + slice * layout.table_outer_stride;
    const auto slab_index = index.from(batch * layout.index_batch_stride);
    stage_words(slab_table, layout.table_axis_stride, axis_size, table);
    __syncthreads();

    const int64_t begin = int64_t{blockIdx.x} * part;
    const int64_t end = min(begin + part, layout.entries);
    Word* to = output + number * layout.entries;
    // Vectors are aligned in the output's memory; the part may start within one.
    const auto shift =
        static_cast<int64_t>(reinterpret_cast<uintptr_t>(to + begin) / sizeof(Word) % kWords);
    const auto is_whole = [&](int64_t n) { return n >= begin && n + kWords <= end; };
    const int64_t step = int64_t{blockDim.x} * kWords;
    for (int64_t n = begin - shift + threadIdx.x * kWords; n < end; n += step) {
      if (is_whole(n)) {
        typename Index::Entry entries[kWords];
        const auto there = slab_index.from(n * layout.index_entry_stride);
        load_entries<kWords>(there, layout.index_entry_stride, entries);
        Vector<Word, kWords> words;
        int bad = -1;
        typename Index::Row bad_entry = 0;
#pragma unroll
        for (int k = 0; k < kWords; ++k) {
          const auto row = index.row_of(entries[k]);
          const bool good = in_range(row, axis_size);
          words.values[k] = table[good ? static_cast<uint32_t>(row) : 0];
          if (!good) {
            words.values[k] = index.template fill<Word>();
            bad = k;
            bad_entry = row;
          }
        }
        store(to + n, words);
        if (bad >= 0) {
          record_bad_entry(errors, number * layout.entries + n + bad, int64_t(bad_entry));
        }
      } else {
        for (int64_t m = max(n, begin); m < min(n + kWords, end); ++m) {
          const auto entry = slab_index.at(m * layout.index_entry_stride);
          const auto row = index.row_of(entry);
          if (in_range(row, axis_size)) {
            to[m] = table[row];
          } else {
            to[m] = index.template fill<Word>();
            record_bad_entry(errors, number * layout.entries + m, int64_t(row));
          }
        }
      }
    }
    __syncthreads();  // before the next slab's table
  }
}

}  // namespace torch_ops
