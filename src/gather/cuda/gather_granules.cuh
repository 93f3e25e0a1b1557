// gather on the GPU, for long rows of words of 1 or 2 bytes. No torch.
//
// A lane that loads a few bytes at a time into registers keeps too few bytes in flight to reach the
// bandwidth of the memory, and more registers mean fewer warps. So a block copies the rows of a
// tile of the output to shared memory by asynchronous copies, which need none, and writes the tile
// from there in 16 aligned bytes per lane. An entry is read once per row, not once per word.
//
// Asynchronous copies are of at least 4 bytes. So the aligned 16 bytes that a row touches, its
// granules, are copied unchanged, and shifted into place when they are written.
//
// An entry that names no row gives the policy's fill and is recorded.
#pragma once

#include <cstdint>

#include "common/cuda/async_copy.cuh"
#include "common/cuda/vectorized.cuh"
#include "common/indexing/index_error.cuh"
#include "common/indexing/index_mode.h"
#include "common/indexing/index_view.cuh"
#include "common/layout/row_grid.cuh"
#include "common/layout/row_layout.h"

namespace torch_ops {

// Finds the rows that the entries of a chunk pick.
template <class Word>
class RowFinder {
 public:
  __device__ RowFinder(const Word* source, const IndexView& index, const RowLayout& layout,
                       const IndexRule& rule, const RowGrid& grid, const RowGrid::Chunk& chunk)
      : source_(source), index_(index), layout_(layout), rule_(rule), grid_(grid), chunk_(chunk) {
    find_slab(chunk.slab);
    position_ += chunk.entry * layout.index_entry_stride;
  }

  // Where the row for an entry of the chunk is in the table; null if it names none.
  __device__ __forceinline__ const Word* find(uint32_t row, const IndexErrorSite& errors) {
    int64_t position = position_ + row * layout_.index_entry_stride;
    if (grid_.slabs_per_chunk > 1) {
      const RowGrid::Place at = grid_.place_row(chunk_, row);
      find_slab(chunk_.slab + at.slab);
      position = position_ + at.entry * layout_.index_entry_stride;
    }
    int64_t picked = index_[position];
    if (rule_.rewrites()) picked = rule_.resolve(picked);
    if (!in_range(picked, layout_.axis_size)) {
      record_bad_entry(errors, chunk_.row + row, picked);
      return nullptr;
    }
    return table_ + picked * layout_.table_axis_stride;
  }

 private:
  __device__ __forceinline__ void find_slab(int64_t slab) {
    int64_t batch, slice;
    grid_.split_slab(slab, batch, slice);
    table_ = source_ + batch * layout_.table_batch_stride + slice * layout_.table_outer_stride;
    position_ = batch * layout_.index_batch_stride;
  }

  const Word* source_;
  const IndexView& index_;
  const RowLayout& layout_;
  const IndexRule& rule_;
  const RowGrid& grid_;
  const RowGrid::Chunk& chunk_;
  const Word* table_;
  int64_t position_;  // in the index, of the slab's (or the chunk's) first entry
};

using Granule = Vector<uint32_t, 4>;
constexpr int kGranuleThreads = 128;
constexpr int kGranuleTile = 512;  // granules of a block

// How rows of `row_bytes` are cut into tiles: several rows, or a part of one.
struct GranuleTiles {
  uint32_t part_bytes;  // the most of a row that a tile contains
  uint32_t parts;       // of a row
  uint32_t granules;    // that a part can touch
  uint32_t rows;        // per tile; 1 if a row is several parts
  FastDivisor by_granules;
  FastDivisor by_part;

  // Rows begin at multiples of `word_bytes`.
  GranuleTiles(int64_t row_bytes, int64_t word_bytes) {
    constexpr int64_t kMost = (kGranuleTile - 1) * sizeof(Granule);
    part_bytes = static_cast<uint32_t>(row_bytes < kMost ? row_bytes : kMost);
    parts = static_cast<uint32_t>((row_bytes + part_bytes - 1) / part_bytes);
    // In the worst case the first granule has one word of it.
    granules = static_cast<uint32_t>((part_bytes + 2 * sizeof(Granule) - 1 - word_bytes) /
                                     sizeof(Granule));
    rows = kGranuleTile / granules;
    by_granules = FastDivisor(granules);
    by_part = FastDivisor(part_bytes);
  }
};

constexpr int kVectorWords = kVectorBytes / sizeof(uint32_t);

// A word's bits from `bit` on, as a mask: all of them if it is negative, none from 32 on.
__device__ __forceinline__ uint32_t keep_from(int bit) {
  uint32_t mask;  // unlike C++'s shift, PTX's has a meaning for 32 bits and more
  asm("shl.b32 %0, %1, %2;" : "=r"(mask) : "r"(0xffffffffu), "r"(max(bit, 0)));
  return mask;
}

// `source_end` is the end of the table in memory: nothing outside of [source, source_end) is read.
template <class Word>
__global__ void __launch_bounds__(kGranuleThreads)
    gather_granules_kernel(const Word* __restrict__ source, const Word* __restrict__ source_end,
                           IndexView index, Word* __restrict__ output, RowLayout layout,
                           RowGrid grid, GranuleTiles tiles,
                           const __grid_constant__ GatherPolicy policy,
                           const __grid_constant__ IndexErrorSite errors) {
  __shared__ Granule granules[kGranuleTile + 2];  // the first and the last are read, and not used
  __shared__ const char* rows[kGranuleTile / 2];  // a row of 16 bytes or more touches 2 granules
  const auto* table = reinterpret_cast<const char*>(source);
  const auto* table_end = reinterpret_cast<const char*>(source_end);
  const uint32_t row_bytes = grid.words * static_cast<uint32_t>(sizeof(Word));

  for (int64_t number = blockIdx.y; number < grid.chunks; number += gridDim.y) {
    const RowGrid::Chunk chunk = grid.chunk(number);
    const uint32_t chunk_rows = grid.by_words.divide(chunk.words);
    const int64_t tile = blockIdx.x;
    const auto first_row =
        static_cast<uint32_t>(tiles.parts > 1 ? tile / tiles.parts : tile * tiles.rows);
    if (first_row < chunk_rows) {
      const uint32_t row_count = min(tiles.rows, chunk_rows - first_row);
      const uint32_t part =
          tiles.parts > 1 ? static_cast<uint32_t>(tile % tiles.parts) * tiles.part_bytes : 0;
      const uint32_t length = min(tiles.part_bytes, row_bytes - part);  // of each row's part
      RowFinder<Word> finder(source, index, layout, policy.rule, grid, chunk);
      for (uint32_t i = threadIdx.x; i < row_count; i += kGranuleThreads) {
        const Word* row = finder.find(first_row + i, errors);
        rows[i] = row == nullptr ? nullptr : reinterpret_cast<const char*>(row) + part;
      }
      __syncthreads();

#pragma unroll 2
      for (uint32_t i = threadIdx.x; i < row_count * tiles.granules; i += kGranuleThreads) {
        uint32_t slot;
        const char* row = rows[tiles.by_granules.divide(i, slot)];
        const auto address = reinterpret_cast<uintptr_t>(row);
        const char* from = row - address % sizeof(Granule) + slot * sizeof(Granule);
        if (row == nullptr) {
          granules[i + 1] = policy.fill.word<Granule>();
        } else if (from < row + length) {
          if (from >= table && from + sizeof(Granule) <= table_end) {
            copy_async(granules + i + 1, reinterpret_cast<const Granule*>(from));
          } else {  // at the table's ends
            auto* to = reinterpret_cast<Word*>(granules + i + 1);
            for (uint32_t k = 0; k < sizeof(Granule); k += sizeof(Word), ++to) {
              if (from + k >= table && from + k < table_end) {
                *to = *reinterpret_cast<const Word*>(from + k);
              }
            }
          }
        }
      }
      wait_for_copies();
      __syncthreads();

      // The tile's part of the output, in aligned vectors; the first may begin before it.
      char* to =
          reinterpret_cast<char*>(output) + (chunk.row + first_row) * int64_t{row_bytes} + part;
      const auto shift = static_cast<int>(reinterpret_cast<uintptr_t>(to) % kVectorBytes);
      const auto total = static_cast<int>(row_count * length);
      for (int begin = static_cast<int>(threadIdx.x) * kVectorBytes - shift; begin < total;
           begin += kGranuleThreads * kVectorBytes) {
        const int first = max(begin, 0), end = min(begin + kVectorBytes, total);
        uint32_t column;
        uint32_t row = tiles.parts > 1 ? (column = first, 0) : tiles.by_part.divide(first, column);
        uint32_t out[kVectorWords] = {};
        // Row by row: the bytes of each replace those read beyond the end of the previous one.
        int filled = first - begin;
        do {
          // Where the vector would begin if all of it belonged to this row.
          const uint32_t from =
              (1 + row * tiles.granules) * sizeof(Granule) +
              static_cast<uint32_t>(reinterpret_cast<uintptr_t>(rows[row])) % sizeof(Granule) +
              column - filled;
          const uint32_t* words = reinterpret_cast<const uint32_t*>(granules) + from / 4;
          uint32_t near = words[0];
#pragma unroll
          for (int w = 0; w < kVectorWords; ++w) {
            const uint32_t next = words[w + 1];
            const uint32_t shifted = __funnelshift_r(near, next, from % 4 * 8);
            const uint32_t mask = keep_from(8 * filled - 32 * w);
            out[w] = (out[w] & ~mask) | (shifted & mask);
            near = next;
          }
          filled += static_cast<int>(length - column);
          column = 0;
          ++row;
        } while (begin + filled < end);
        if (end - first == kVectorBytes) {
          store(reinterpret_cast<uint32_t*>(to + begin),
                Vector<uint32_t, kVectorWords>{out[0], out[1], out[2], out[3]});
        } else {
          for (int b = first - begin; b < end - begin; b += sizeof(Word)) {
            const uint32_t word = b < 8 ? (b < 4 ? out[0] : out[1]) : (b < 12 ? out[2] : out[3]);
            *reinterpret_cast<Word*>(to + begin + b) = static_cast<Word>(word >> b % 4 * 8);
          }
        }
      }
    }
    __syncthreads();  // before the next chunk's rows
  }
}

}  // namespace torch_ops
