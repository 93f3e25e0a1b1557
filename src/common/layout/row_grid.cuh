// How the words of [batch, outer, entries, inner] rows are distributed over a grid, so that a
// thread finds its place by 32-bit arithmetic although the whole may be far larger than 2^31.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/cuda/fast_divisor.cuh"

namespace torch_ops {

// The rows are cut into chunks of at most 2^30 words: one or more whole slabs if a slab is
// small, a part of one if it is large. blockIdx.y walks the chunks, blockIdx.x the words of one.
// Only the start of a chunk needs 64-bit divisions, once per block.
struct RowGrid {
  int64_t outer;
  int64_t entries;
  int64_t slabs;
  int64_t slabs_per_chunk;  // 1 unless a chunk is several slabs
  int64_t chunks_per_slab;  // 1 unless a slab is several chunks
  int64_t rows_per_chunk;
  int64_t chunks;
  uint32_t words;  // a row
  FastDivisor by_words;
  FastDivisor by_entries;

  static constexpr int64_t kMaxChunk = int64_t{1} << 30;
  // Slabs are joined up to this many words: enough blocks for a launch to pay, few enough that the
  // division by the entries, which a chunk of one slab saves, is rare in large calls.
  static constexpr int64_t kJoin = int64_t{1} << 16;

  // `words` must not exceed kMaxChunk: a caller with longer rows launches once for each part.
  RowGrid(int64_t batch, int64_t outer, int64_t entries, int64_t words)
      : outer(outer), entries(entries), slabs(batch * outer), words(static_cast<uint32_t>(words)) {
    const int64_t slab_words = std::min(entries, kMaxChunk) * words;
    slabs_per_chunk = std::clamp<int64_t>(kJoin / slab_words, 1, slabs);
    rows_per_chunk = std::min(entries, std::max<int64_t>(kMaxChunk / words, 1));
    chunks_per_slab = (entries + rows_per_chunk - 1) / rows_per_chunk;
    rows_per_chunk *= slabs_per_chunk;
    chunks = (slabs + slabs_per_chunk - 1) / slabs_per_chunk * chunks_per_slab;
    by_words = FastDivisor(this->words);
    by_entries = FastDivisor(static_cast<uint32_t>(std::min(entries, kMaxChunk)));
  }

  // The most words of a chunk, which blockIdx.x must cover.
  int64_t chunk_words() const { return rows_per_chunk * words; }

  struct Chunk {
    int64_t slab;   // its first slab
    int64_t entry;  // and its first entry there
    int64_t row;    // its first row, counted over [batch, outer, entries]
    uint32_t words;
  };

  __device__ Chunk chunk(int64_t number) const {
    int64_t slab = number * slabs_per_chunk, entry = 0;
    if (chunks_per_slab > 1) {  // 64-bit divisions are a tenth of a small call
      slab = number / chunks_per_slab;
      entry = number % chunks_per_slab * rows_per_chunk;
    }
    const int64_t left = slabs_per_chunk > 1 ? (slabs - slab) * entries : entries - entry;
    const int64_t rows = left < rows_per_chunk ? left : rows_per_chunk;
    return {slab, entry, slab * entries + entry, static_cast<uint32_t>(rows) * words};
  }

  // Where a word of a chunk is: the slab, counted from the chunk's first, the entry there, and
  // the column.
  struct Place {
    uint32_t slab;
    int64_t entry;
    uint32_t column;
  };

  __device__ __forceinline__ Place place(const Chunk& chunk, uint32_t word) const {
    uint32_t column;
    Place place = place_row(chunk, by_words.divide(word, column));
    place.column = column;
    return place;
  }

  // The same for a row of a chunk.
  __device__ __forceinline__ Place place_row(const Chunk& chunk, uint32_t row) const {
    Place place{0, chunk.entry + row, 0};
    if (slabs_per_chunk > 1) {
      uint32_t entry;
      place.slab = by_entries.divide(row, entry);
      place.entry = entry;
    }
    return place;
  }

  // Which row of [batch, outer, entries] a word of a chunk belongs to.
  __device__ __forceinline__ int64_t row(const Chunk& chunk, uint32_t word) const {
    uint32_t column;
    return chunk.row + by_words.divide(word, column);
  }

  // Which batch, and which outer slice of it, a slab is. The branches are uniform over a grid; the
  // division is for the rare table with both kinds of axes.
  __device__ __forceinline__ void split_slab(int64_t slab, int64_t& batch, int64_t& slice) const {
    if (outer == 1) {
      batch = slab;
      slice = 0;
    } else if (slabs == outer) {
      batch = 0;
      slice = slab;
    } else {
      batch = slab / outer;
      slice = slab - batch * outer;
    }
  }
};

}  // namespace torch_ops
