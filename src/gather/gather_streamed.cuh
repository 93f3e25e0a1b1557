// gather on the GPU, for rows that 16-byte words do not divide. No torch.
//
// A lane that loads four bytes at a time into registers keeps too few bytes in flight to fill the
// memory's pipe, and more registers cost warps. So a block copies the rows of a tile of the output
// to shared memory with asynchronous copies, which take none, and writes the tile from there in 16
// aligned bytes a lane. An entry is read once a row, not once a word.
//
// As in gather_kernels.cuh, an entry out of range gives zeros and is recorded.
#pragma once

#include <cstdint>

#include "common/async_copy.cuh"
#include "common/index_error.cuh"
#include "common/index_view.cuh"
#include "common/row_grid.cuh"
#include "common/row_layout.h"
#include "common/vectorized.cuh"

namespace torch_ops {

constexpr int64_t kMinStreamedRow = kVectorBytes;  // bytes; shorter rows gain nothing

// Where a row of a chunk lies in the table; null for one that an entry out of range picks.
template <class Word>
__device__ __forceinline__ const Word* find_row(const Word* source, const IndexView& index,
                                                const RowLayout& layout, const RowGrid& grid,
                                                const RowGrid::Chunk& chunk, uint32_t row,
                                                const IndexErrorSite& errors) {
  const RowGrid::Place at = grid.place_row(chunk, row);
  int64_t batch, slice;
  grid.split_slab(chunk.slab + at.slab, batch, slice);
  const int64_t picked =
      index[batch * layout.index_batch_stride + at.entry * layout.index_entry_stride];
  if (!in_range(picked, layout.axis_size)) {
    record_bad_entry(errors, chunk.row + row, picked);
    return nullptr;
  }
  return source + batch * layout.table_batch_stride + slice * layout.table_outer_stride +
         picked * layout.table_axis_stride;
}

// Tiles are numbered over all chunks, so many to each; a block takes every gridDim.x-th. While the
// rows of one are on their way, it reads the entries of the next.
struct TileNumbers {
  uint32_t tiles;
  FastDivisor by_chunk;

  TileNumbers(int64_t chunks, int64_t tiles_per_chunk)
      : tiles(static_cast<uint32_t>(chunks * tiles_per_chunk)),
        by_chunk(static_cast<uint32_t>(tiles_per_chunk)) {}
};

// ---- Words of 4 or 8 bytes ----------------------------------------------------------------------

constexpr int kStreamedThreads = 256;
constexpr int kStreamedBlocks = 6;        // of a multiprocessor
constexpr int kStreamedTile = 10 * 1024;  // bytes of the output

// A tile is a range of a chunk's words, not of rows: however long rows are, all tiles are alike.
template <class Word>
struct StreamedTile {
  static constexpr int kWords = kStreamedTile / sizeof(Word);
  static constexpr int kWide = kVectorSize<Word>;
  static constexpr int kRows = kWords / (kMinStreamedRow / sizeof(Word)) + 2;  // that it can touch

  Word* output;         // where its first word would go: a multiple of 16 bytes
  uint32_t first_word;  // of the chunk; below zero, for the chunk's first tile, it wraps
  int begin;            // words of it that there are
  int end;
  uint32_t first_row;

  __device__ StreamedTile(const RowGrid& grid, const RowGrid::Chunk& chunk, uint32_t number,
                          Word* chunk_output) {
    const auto shift =
        static_cast<int64_t>(reinterpret_cast<uintptr_t>(chunk_output) / sizeof(Word) % kWide);
    const int64_t start = int64_t{number} * kWords - shift;
    output = chunk_output + start;
    first_word = static_cast<uint32_t>(start);
    begin = start < 0 ? static_cast<int>(-start) : 0;
    end = static_cast<int>(min(int64_t{kWords}, int64_t{chunk.words} - start));
    first_row = begin < end ? grid.by_words.divide(first_word + begin) : 0;
  }
};

template <class Word>
__global__ void __launch_bounds__(kStreamedThreads)
    gather_streamed_kernel(const Word* __restrict__ source, IndexView index,
                           Word* __restrict__ output, RowLayout layout, RowGrid grid,
                           TileNumbers numbers, const __grid_constant__ IndexErrorSite errors) {
  using Tile = StreamedTile<Word>;
  constexpr int kWide = Tile::kWide;
  __shared__ Vector<Word, kWide> vectors[Tile::kWords / kWide];
  __shared__ const Word* rows[2][Tile::kRows];  // of this tile and of the next
  Word* words = reinterpret_cast<Word*>(vectors);

  const auto begin_tile = [&](uint32_t number, const Word** to) {
    uint32_t in_chunk;
    const RowGrid::Chunk chunk = grid.chunk(numbers.by_chunk.divide(number, in_chunk));
    const Tile tile(grid, chunk, in_chunk, output + chunk.row * grid.words);
    if (tile.begin < tile.end) {
      const uint32_t last_row = grid.by_words.divide(tile.first_word + tile.end - 1);
      for (uint32_t i = threadIdx.x; i <= last_row - tile.first_row; i += kStreamedThreads) {
        to[i] = find_row(source, index, layout, grid, chunk, tile.first_row + i, errors);
      }
    }
    return tile;
  };

  Tile tile = begin_tile(blockIdx.x, rows[0]);
  __syncthreads();
  int turn = 0;
  for (uint32_t number = blockIdx.x; number < numbers.tiles; number += gridDim.x, turn ^= 1) {
#pragma unroll 4
    for (int i = tile.begin + static_cast<int>(threadIdx.x); i < tile.end; i += kStreamedThreads) {
      uint32_t column;
      const uint32_t row = grid.by_words.divide(tile.first_word + i, column);
      const Word* from = rows[turn][row - tile.first_row];
      const bool wanted = from != nullptr;
      copy_async(words + i, (wanted ? from : source) + column, wanted);
    }
    const Tile current = tile;
    if (number + gridDim.x < numbers.tiles) {
      tile = begin_tile(number + gridDim.x, rows[turn ^ 1]);
    }
    wait_for_copies();
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x) * kWide; i < current.end;
         i += kStreamedThreads * kWide) {
      if (i >= current.begin && i + kWide <= current.end) {
        *reinterpret_cast<Vector<Word, kWide>*>(current.output + i) = vectors[i / kWide];
      } else {
        for (int w = max(i, current.begin); w < min(i + kWide, current.end); ++w) {
          current.output[w] = words[w];
        }
      }
    }
    __syncthreads();  // before the words make room for the next tile's
  }
}

// ---- Words of 1 or 2 bytes ----------------------------------------------------------------------

// Asynchronous copies take 4 bytes at least. So the aligned 16 bytes that a row touches, its
// granules, are copied as they are, and shifted into place on their way out.
using Granule = Vector<uint32_t, 4>;
constexpr int kGranuleThreads = 128;
constexpr int kGranuleBlocks = 12;  // of a multiprocessor
constexpr int kGranuleTile = 512;   // granules that a block holds

// How rows of `row_bytes` are cut into tiles: several rows, or a part of one.
struct GranuleTiles {
  uint32_t part_bytes;  // of a row, that a tile holds at most
  uint32_t parts;       // of a row
  uint32_t granules;    // that a part can touch
  uint32_t rows;        // a tile; 1 where a row is several parts
  FastDivisor by_granules;
  FastDivisor by_part;

  explicit GranuleTiles(int64_t row_bytes) {
    constexpr int64_t kMost = (kGranuleTile - 1) * sizeof(Granule);
    part_bytes = static_cast<uint32_t>(row_bytes < kMost ? row_bytes : kMost);
    parts = static_cast<uint32_t>((row_bytes + part_bytes - 1) / part_bytes);
    // At worst the first granule holds one byte of it.
    granules = static_cast<uint32_t>((part_bytes + 2 * sizeof(Granule) - 2) / sizeof(Granule));
    rows = kGranuleTile / granules;
    by_granules = FastDivisor(granules);
    by_part = FastDivisor(part_bytes);
  }
};

// Several rows of a chunk, or a part of one.
struct GranuleTile {
  char* output;
  uint32_t rows;
  uint32_t length;  // bytes of each row's part
};

// `source_end` is where the table ends in memory: nothing outside of [source, source_end) is read.
template <class Word>
__global__ void __launch_bounds__(kGranuleThreads)
    gather_granules_kernel(const Word* __restrict__ source, const Word* __restrict__ source_end,
                           IndexView index, Word* __restrict__ output, RowLayout layout,
                           RowGrid grid, GranuleTiles tiles, TileNumbers numbers,
                           const __grid_constant__ IndexErrorSite errors) {
  using Wide = Vector<Word, kVectorSize<Word>>;
  __shared__ Granule granules[kGranuleTile];
  // Where the parts of rows lie in the table; a row of 16 bytes or more touches 2 granules.
  __shared__ const char* parts[2][kGranuleTile / 2];
  const auto* bytes = reinterpret_cast<const char*>(granules);
  const auto* table = reinterpret_cast<const char*>(source);
  const auto* table_end = reinterpret_cast<const char*>(source_end);
  const uint32_t row_bytes = grid.words * static_cast<uint32_t>(sizeof(Word));

  const auto begin_tile = [&](uint32_t number, const char** to) {
    uint32_t in_chunk;
    const RowGrid::Chunk chunk = grid.chunk(numbers.by_chunk.divide(number, in_chunk));
    const uint32_t chunk_rows = grid.by_words.divide(chunk.words);
    const uint32_t first_row = tiles.parts > 1 ? in_chunk / tiles.parts : in_chunk * tiles.rows;
    const uint32_t part = tiles.parts > 1 ? in_chunk % tiles.parts * tiles.part_bytes : 0;
    GranuleTile tile;
    tile.rows = first_row < chunk_rows ? min(tiles.rows, chunk_rows - first_row) : 0;
    tile.length = min(tiles.part_bytes, row_bytes - part);
    tile.output =
        reinterpret_cast<char*>(output) + (chunk.row + first_row) * int64_t{row_bytes} + part;
    for (uint32_t i = threadIdx.x; i < tile.rows; i += kGranuleThreads) {
      const Word* row = find_row(source, index, layout, grid, chunk, first_row + i, errors);
      to[i] = row == nullptr ? nullptr : reinterpret_cast<const char*>(row) + part;
    }
    return tile;
  };

  GranuleTile tile = begin_tile(blockIdx.x, parts[0]);
  __syncthreads();
  int turn = 0;
  for (uint32_t number = blockIdx.x; number < numbers.tiles; number += gridDim.x, turn ^= 1) {
#pragma unroll 2
    for (uint32_t i = threadIdx.x; i < tile.rows * tiles.granules; i += kGranuleThreads) {
      uint32_t slot;
      const char* part = parts[turn][tiles.by_granules.divide(i, slot)];
      const auto address = reinterpret_cast<uintptr_t>(part);
      const char* from = part - address % sizeof(Granule) + slot * sizeof(Granule);
      if (part == nullptr) {
        granules[i] = Granule();
      } else if (from < part + tile.length) {
        if (from >= table && from + sizeof(Granule) <= table_end) {
          copy_async(granules + i, reinterpret_cast<const Granule*>(from));
        } else {  // at the table's ends
          auto* to = reinterpret_cast<Word*>(granules + i);
          for (uint32_t k = 0; k < sizeof(Granule); k += sizeof(Word), ++to) {
            if (from + k >= table && from + k < table_end) {
              *to = *reinterpret_cast<const Word*>(from + k);
            }
          }
        }
      }
    }
    const GranuleTile current = tile;
    if (number + gridDim.x < numbers.tiles) {
      tile = begin_tile(number + gridDim.x, parts[turn ^ 1]);
    }
    wait_for_copies();
    __syncthreads();

    // The output in aligned vectors; the first may begin before the tile.
    const auto shift =
        static_cast<uint32_t>(reinterpret_cast<uintptr_t>(current.output) % kVectorBytes);
    const uint32_t total = current.rows * current.length;
    for (uint32_t vector = threadIdx.x; vector * kVectorBytes < total + shift;
         vector += kGranuleThreads) {
      const uint32_t begin = vector > 0 ? vector * kVectorBytes - shift : 0;
      const uint32_t end = min((vector + 1) * kVectorBytes - shift, total);
      uint32_t column = begin;
      uint32_t row = tiles.parts > 1 ? 0 : tiles.by_part.divide(begin, column);
      // Where a part's bytes begin in its first granule.
      const auto offset_of = [&](uint32_t r) {
        return r * tiles.granules * static_cast<uint32_t>(sizeof(Granule)) +
               static_cast<uint32_t>(reinterpret_cast<uintptr_t>(parts[turn][r]) % sizeof(Granule));
      };
      uint32_t offset = offset_of(row) + column;
      uint32_t left = current.length - column;  // of the part
      const auto next = [&] {
        const Word word = *reinterpret_cast<const Word*>(bytes + offset);
        offset += sizeof(Word);
        left -= sizeof(Word);
        if (left == 0 && row + 1 < current.rows) {
          offset = offset_of(++row);
          left = current.length;
        }
        return word;
      };
      if (end - begin == kVectorBytes) {
        Wide out;
#pragma unroll
        for (int k = 0; k < kVectorSize<Word>; ++k) out.values[k] = next();
        *reinterpret_cast<Wide*>(current.output + begin) = out;
      } else {
        for (uint32_t b = begin; b < end; b += sizeof(Word)) {
          *reinterpret_cast<Word*>(current.output + b) = next();
        }
      }
    }
    __syncthreads();  // before the granules make room for the next tile's
  }
}

}  // namespace torch_ops
