// scatter_add of rows of one, two or four values with the same bits on every run, on raw pointers
// and a workspace. No torch.
//
// Sums of a table of rows are made in shared memory, in integers (fixed_point.cuh), so that it does
// not matter in which order a block meets its entries. Which entries a block has depends on the
// index alone. Where a table holds whole slabs (scatter_binning.h), it takes them as they stand:
//   1. sum    blocks sum parts of a table's entries
//   2. join   where there are several parts, their sums are added in their order
// Else the rows of a slab are cut into bins, each with a table:
//   1. bin    blocks sort tiles of entries by bin: to each the row within the bin, in 16 bits, and
//             its values. A tile stays where it was, and says where its bins begin
//   2. list   what a bin has in all tiles of a segment is one part, or several of whole tiles where
//             it is much; so equal work for each block, whatever the distribution
//   3. sum, 4. join, as above
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/fast_divisor.cuh"
#include "common/host_device.h"
#include "common/index_error.cuh"
#include "common/index_mode.h"
#include "common/index_view.cuh"
#include "common/row_layout.h"
#include "common/vectorized.cuh"
#include "scatter/fixed_point.cuh"
#include "scatter/scatter_atomic.cuh"
#include "scatter/scatter_binning.h"

namespace torch_ops::binned {

using atomic::BadEntry;
using atomic::kAllLanes;

constexpr int kTileThreads = 512;
constexpr int kSumThreads = 512;
constexpr int kThreads = 256;  // of the small kernels
constexpr int kUnit = 32;      // entries that a warp loads at once
constexpr int kHot = 8;        // lanes of a warp with one row, or bin, that are worth to be joined
constexpr uint32_t kNone = UINT32_MAX;

// Blocks of kSumThreads that a multiprocessor has threads for.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ < 800
constexpr int kSumBlocks = 2;
#elif __CUDA_ARCH__ == 800 || (__CUDA_ARCH__ >= 900 && __CUDA_ARCH__ < 1200)
constexpr int kSumBlocks = 4;
#else
constexpr int kSumBlocks = 3;
#endif

// Where a slab's index begins.
__device__ __forceinline__ int64_t index_of_slab(const RowLayout& layout, int64_t slab) {
  return (layout.outer == 1 ? slab : slab / layout.outer) * layout.index_batch_stride;
}

// What the kernels know of a call whose slabs have bins.
struct Bins {
  RowLayout layout;
  IndexRule rule;
  int row_shift;  // 2^row_shift rows a bin
  int bins;       // a slab
  int tiles;      // a slab
  int segments;   // a slab
  int64_t slab_entries;
  int64_t first_slab;  // of the launch: below, slabs are counted from it
  bool adjacent;       // index and values can be read four entries at a time

  // The first of a segment's cells. `tile`, any of its tiles.
  __device__ int64_t first_cell(uint32_t slab, uint32_t tile) const {
    const uint32_t segment = tile / static_cast<uint32_t>(Binning::kSegmentTiles);
    return (int64_t{slab} * segments + segment) * bins;
  }
};

// Four entries of the index in succession, of which the first of all stands at `base`: from entry
// `first` on, at once where they are `adjacent`. Beyond the last one that one is read again.
__device__ __forceinline__ void load_four_entries(const IndexView& index, bool adjacent,
                                                  int64_t base, int64_t stride, int first, int last,
                                                  int64_t (&entries)[4]) {
  if (adjacent) {
    index.load4(base + min(first, last - 3), entries);
  } else {
    int64_t positions[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) positions[k] = base + min(first + k, last) * stride;
    index.load(positions, entries);
  }
}

// The same of rows, in words of up to 16 bytes.
template <bool kAdjacent, class Row>
__device__ __forceinline__ void load_four_rows(const Row* values, int first, int last, Row* rows) {
  if constexpr (kAdjacent) {
    constexpr int kAtOnce = sizeof(Row) >= 4 ? kVectorBytes / sizeof(Row) : 4;
    const Row* from = values + min(first, last - 3);
#pragma unroll
    for (int k = 0; k < 4; k += kAtOnce) {
      const auto some = *reinterpret_cast<const Vector<Row, kAtOnce>*>(from + k);
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) rows[k + i] = some.values[i];
    }
  } else {
#pragma unroll
    for (int k = 0; k < 4; ++k) rows[k] = values[min(first + k, last)];
  }
}

template <class Row>
__device__ __forceinline__ void store_four_rows(Row* to, const Row (&rows)[4]) {
  constexpr int kAtOnce = sizeof(Row) >= 4 ? kVectorBytes / sizeof(Row) : 4;
  using Some = Vector<Row, kAtOnce>;
#pragma unroll
  for (int k = 0; k < 4; k += kAtOnce) {
    Some some;
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) some.values[i] = rows[k + i];
    *reinterpret_cast<Some*>(to + k) = some;
  }
}

// ---- 1. bin -------------------------------------------------------------------------------------

// Adds to the 32 numbers of a warp those of the lanes before.
__device__ __forceinline__ uint32_t scan_warp(uint32_t number) {
  const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const uint32_t other = __shfl_up_sync(kAllLanes, number, step);
    if (lane >= step) number += other;
  }
  return number;
}

// Each entry's place among those of its bin in the tile: in any order. Where a warp has many
// entries of one bin, these do not wait for each other's atomics.
template <int K>
__device__ __forceinline__ void rank_entries(uint32_t (&entries)[K], int row_shift,
                                             uint32_t* counts) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const uint32_t common = __shfl_sync(kAllLanes, entries[0] >> row_shift, 0);
  const bool hot = __popc(__ballot_sync(kAllLanes, entries[0] >> row_shift == common)) >= kHot;
#pragma unroll
  for (int k = 0; k < K; ++k) {
    const uint32_t bin = entries[k] >> row_shift;
    uint32_t rank = 0;
    if (hot) {
      const unsigned peers = __ballot_sync(kAllLanes, bin == common);
      if (lane == 0) rank = atomicAdd(counts + common, __popc(peers));
      rank = __shfl_sync(kAllLanes, rank, 0) + __popc(peers & ((1u << lane) - 1));
    }
    if (!hot || bin != common) rank = atomicAdd(counts + bin, 1u);
    entries[k] |= rank << kRowBits;
  }
}

// The rows that a tile's entries name; `none` for those that name none, one of which becomes `bad`.
// A thread has K, by fours: where they can be read at once and are rows as they stand,
template <class Index, int K>
__device__ __forceinline__ void find_rows(const Index* index, int count, int64_t axis_size,
                                          uint32_t none, uint32_t (&rows)[K], int& bad) {
  const int thread = static_cast<int>(threadIdx.x);
  Index entries[K];
#pragma unroll
  for (int group = 0; group < K; group += 4) {
    load_four_rows<true>(index, group * kTileThreads + thread * 4, count - 1, entries + group);
  }
#pragma unroll
  for (int k = 0; k < K; ++k) {
    const int number = k / 4 * 4 * kTileThreads + thread * 4 + k % 4;
    const bool exists = number < count, good = in_range(entries[k], axis_size);
    if (exists && !good) bad = number;
    rows[k] = exists && good ? static_cast<uint32_t>(entries[k]) : none;
  }
}

// and else by way of shared memory, which is not in use yet: a loop that is unrolled would be as
// long as there are types of index and rules.
using Four = Vector<uint32_t, 4>;

template <int K>
__device__ __forceinline__ void find_rows(const IndexView& index, int64_t base, const Bins& call,
                                          int count, uint32_t none, Four* memory,
                                          uint32_t (&rows)[K], int& bad) {
  const int thread = static_cast<int>(threadIdx.x);
#pragma unroll 1
  for (int group = 0; group < K / 4; ++group) {
    const int number = (group * kTileThreads + thread) * 4;
    int64_t entries[4];
    load_four_entries(index, call.adjacent, base, call.layout.index_entry_stride, number, count - 1,
                      entries);
    atomic::apply_rule(call.rule, entries);
    Four four;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const bool exists = number + k < count, good = in_range(entries[k], call.layout.axis_size);
      if (exists && !good) bad = number + k;
      four.values[k] = exists && good ? static_cast<uint32_t>(entries[k]) : none;
    }
    memory[group * kTileThreads + thread] = four;
  }
#pragma unroll
  for (int group = 0; group < K / 4; ++group) {
    const Four four = memory[group * kTileThreads + thread];
#pragma unroll
    for (int k = 0; k < 4; ++k) rows[group * 4 + k] = four.values[k];
  }
}

// A block a tile. `Word`: a row of values.
template <class Word>
struct Tile {
  static constexpr int kRows = sizeof(Word) <= 4 ? 16 : 8;  // a thread
  static constexpr int kEntries = kTileThreads * kRows;
  static constexpr int shared_bytes(int bins) {
    return kEntries * static_cast<int>(sizeof(Word) + sizeof(uint16_t)) +
           (bins + 1) * static_cast<int>(sizeof(uint32_t));
  }
};

template <class Word>
__global__ void __launch_bounds__(kTileThreads, 2)
    bin_tiles_kernel(const Word* __restrict__ values, IndexView index,
                     const __grid_constant__ Bins call, Word* __restrict__ sorted_values,
                     uint16_t* __restrict__ sorted_rows, uint16_t* __restrict__ bounds,
                     uint32_t* __restrict__ units, const __grid_constant__ IndexErrorSite errors) {
  constexpr int K = Tile<Word>::kRows;
  extern __shared__ __align__(16) unsigned char shared[];
  auto* words = reinterpret_cast<Word*>(shared);
  auto* rows = reinterpret_cast<uint16_t*>(words + Tile<Word>::kEntries);
  auto* counts = reinterpret_cast<uint32_t*>(rows + Tile<Word>::kEntries);  // of bins, and the rest
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  const RowLayout& layout = call.layout;
  const uint32_t slab = blockIdx.x / static_cast<uint32_t>(call.tiles);
  const uint32_t tile = blockIdx.x - slab * static_cast<uint32_t>(call.tiles);
  const int64_t first = int64_t{tile} * Tile<Word>::kEntries;
  const int count = static_cast<int>(min(int64_t{Tile<Word>::kEntries}, layout.entries - first));
  const int64_t slab_row = (call.first_slab + slab) * layout.entries + first;
  for (int bin = thread; bin <= call.bins; bin += kTileThreads) counts[bin] = 0;

  const uint32_t none = static_cast<uint32_t>(call.bins) << call.row_shift;
  const int64_t index_row =
      index_of_slab(layout, call.first_slab + slab) + first * layout.index_entry_stride;
  uint32_t entries[K];  // the rows that they name, then with their places above
  int bad = -1;         // an entry that is out of range
  const bool plain = call.adjacent && !call.rule.rewrites();
  if (plain && index.entry_bytes == sizeof(int64_t)) {
    find_rows(index.as<int64_t>() + index_row, count, layout.axis_size, none, entries, bad);
  } else if (plain && index.entry_bytes == sizeof(int32_t)) {
    find_rows(index.as<int32_t>() + index_row, count, layout.axis_size, none, entries, bad);
  } else {
    find_rows(index, index_row, call, count, none, reinterpret_cast<Four*>(shared), entries, bad);
  }
  if (bad >= 0) {
    record_bad_entry(errors, slab_row + bad, index[index_row + bad * layout.index_entry_stride]);
  }
  __syncthreads();
  rank_entries(entries, call.row_shift, counts);
  Word own[K];
  const Word* const tile_values = values + slab_row;
  if (call.adjacent) {
#pragma unroll
    for (int group = 0; group < K; group += 4) {
      const int number = group * kTileThreads + thread * 4;
      load_four_rows<true>(tile_values, number, count - 1, own + group);
    }
  } else {
#pragma unroll
    for (int group = 0; group < K; group += 4) {
      const int number = group * kTileThreads + thread * 4;
      load_four_rows<false>(tile_values, number, count - 1, own + group);
    }
  }
  __syncthreads();

  if (thread < 32) {
    uint16_t* tile_bounds = bounds + int64_t{blockIdx.x} * (call.bins + 1);
    uint32_t* cells = units + call.first_cell(slab, tile);
    uint32_t before = 0;
    for (int i = 0; i <= call.bins; i += 32) {
      const int bin = i + lane;
      const uint32_t size = bin <= call.bins ? counts[bin] : 0;
      const uint32_t end = before + scan_warp(size);
      if (bin <= call.bins) {
        counts[bin] = end - size;
        tile_bounds[bin] = static_cast<uint16_t>(end - size);
      }
      if (bin < call.bins && size > 0) atomicAdd(cells + bin, (size + kUnit - 1) / kUnit);
      before = __shfl_sync(kAllLanes, end, 31);
    }
  }
  __syncthreads();
#pragma unroll
  for (int k = 0; k < K; ++k) {
    const uint32_t row = entries[k] & ((1u << kRowBits) - 1);
    const uint32_t place = counts[row >> call.row_shift] + (entries[k] >> kRowBits);
    words[place] = own[k];
    rows[place] = static_cast<uint16_t>(row & ((1u << call.row_shift) - 1));
  }
  __syncthreads();

  // What fills the last 16 bytes is read by nobody.
  const int sorted = static_cast<int>(counts[call.bins]);
  const int64_t to = slab * call.slab_entries + first;
  using Words = Vector<uint32_t, 4>;
  const auto copy = [&](void* destination, const void* source, int bytes) {
#pragma unroll 2
    for (int at = thread * kVectorBytes; at < bytes; at += kTileThreads * kVectorBytes) {
      *reinterpret_cast<Words*>(static_cast<char*>(destination) + at) =
          *reinterpret_cast<const Words*>(static_cast<const char*>(source) + at);
    }
  };
  copy(sorted_values + to, words, sorted * static_cast<int>(sizeof(Word)));
  copy(sorted_rows + to, rows, sorted * static_cast<int>(sizeof(uint16_t)));
}

// ---- 2. list ------------------------------------------------------------------------------------

// A part of a cell.
struct Part {
  uint32_t cell;
  uint32_t number;   // among the parts
  uint32_t parts;    // of the cell
  uint32_t partial;  // the table that its sums go to; kNone: the result
};

// The tables of a cell's parts.
struct Partials {
  uint32_t first;
  uint32_t count;
};

struct Counters {
  uint32_t parts;
  uint32_t partials;
  uint32_t joins;
};

// Lists all parts, and the cells whose bins have sums to join: of a bin's cells, the first. The
// lists' order is that in which threads come; nothing depends on it.
__global__ void list_parts_kernel(const uint32_t* __restrict__ units, uint32_t cells, uint32_t bins,
                                  uint32_t segments, uint32_t part_units, Part* __restrict__ list,
                                  uint32_t* __restrict__ joins, Partials* __restrict__ partials,
                                  Counters* __restrict__ counters) {
  const uint32_t cell = blockIdx.x * blockDim.x + threadIdx.x;
  if (cell >= cells) return;
  const uint32_t parts = max((units[cell] + part_units - 1) / part_units, 1u);
  const bool whole = parts == 1 && segments == 1;
  const uint32_t first = whole ? kNone : atomicAdd(&counters->partials, parts);
  const uint32_t at = atomicAdd(&counters->parts, parts);
  partials[cell] = {first, whole ? 0 : parts};
  if (!whole && cell / bins % segments == 0) joins[atomicAdd(&counters->joins, 1u)] = cell;
  for (uint32_t part = 0; part < parts; ++part) {
    list[at + part] = {cell, part, parts, whole ? kNone : first + part};
  }
}

// ---- 3. sum -------------------------------------------------------------------------------------

// Entries that a warp has loaded: U of each lane. kNeighbours: in succession.
template <int U, int D, class Value, bool kNeighbours>
struct Batch {
  uint32_t rows[U];
  Vector<Value, D> values[U];
  unsigned live = 0;  // a bit for each that there is; the others stand somewhere in the table

  __device__ __forceinline__ bool has(int k) const { return live >> k & 1; }
};

// Sums of rows, by columns.
template <int D>
struct Table {
  FixedSums sums;
  uint32_t rows;

  template <int U, class Value, bool kNeighbours>
  __device__ __forceinline__ void see(const Batch<U, D, Value, kNeighbours>& batch) const {
#pragma unroll
    for (int k = 0; k < U; ++k) {
      if (!batch.has(k)) continue;
#pragma unroll
      for (int d = 0; d < D; ++d) {
        sums.see(d * rows + batch.rows[k], static_cast<float>(batch.values[k].values[d]));
      }
    }
  }

  // All lanes of a warp must come here. Where many of them have one row, they join what they have
  // for it.
  template <int U, class Value, bool kNeighbours>
  __device__ __forceinline__ void add(const Batch<U, D, Value, kNeighbours>& batch) const {
    const uint32_t common = __shfl_sync(kAllLanes, batch.rows[0], 0);
    const bool mine = batch.has(0) && batch.rows[0] == common;
    if (__popc(__ballot_sync(kAllLanes, mine)) < kHot) {
#pragma unroll
      for (int d = 0; d < D; ++d) {
        uint32_t scales[U];
        load_scales(batch, d, scales);
#pragma unroll
        for (int k = 0; k < U; ++k) {
          const auto halves = split(batch, k, d, scales[k]);
          if (batch.has(k)) sums.add(d * rows + batch.rows[k], halves);
        }
      }
      return;
    }
#pragma unroll
    for (int d = 0; d < D; ++d) {
      uint32_t scales[U];
      load_scales(batch, d, scales);
      FixedSums::Halves joined{}, own{};  // of the common row, and of the lane's last one
#pragma unroll
      for (int k = 0; k < U; ++k) {
        const auto halves = split(batch, k, d, scales[k]);
        if (!batch.has(k)) continue;
        if (batch.rows[k] == common) {
          joined += halves;
          continue;
        }
        own += halves;
        if (kNeighbours && k + 1 < U && batch.has(k + 1) && batch.rows[k + 1] == batch.rows[k]) {
          continue;
        }
        sums.add(d * rows + batch.rows[k], own);
        own = {};
      }
      joined = add_up_lanes(joined);
      if (threadIdx.x % 32 == 0) sums.add(d * rows + common, joined);
    }
  }

 private:
  template <int U, class Value, bool kNeighbours>
  __device__ __forceinline__ void load_scales(const Batch<U, D, Value, kNeighbours>& batch, int d,
                                              uint32_t (&scales)[U]) const {
#pragma unroll
    for (int k = 0; k < U; ++k) scales[k] = sums.scale(d * rows + batch.rows[k]);
  }

  template <int U, class Value, bool kNeighbours>
  static __device__ __forceinline__ FixedSums::Halves split(
      const Batch<U, D, Value, kNeighbours>& batch, int k, int d, uint32_t scale) {
    return FixedSums::split(static_cast<float>(batch.values[k].values[d]), scale);
  }

  // The sum over a warp, in its first lane at least.
  static __device__ __forceinline__ FixedSums::Halves add_up_lanes(FixedSums::Halves halves) {
#if __CUDA_ARCH__ >= 800
    return {__reduce_add_sync(kAllLanes, halves.high), __reduce_add_sync(kAllLanes, halves.low)};
#else
    for (int step = 16; step > 0; step /= 2) {
      halves += {__shfl_down_sync(kAllLanes, halves.high, step),
                 __shfl_down_sync(kAllLanes, halves.low, step)};
    }
    return halves;
#endif
  }
};

// Where the sums of a block go.
struct Destination {
  int64_t row;    // of the result, or of the partial tables
  uint32_t rows;  // that there are
  bool partial;
};

// The entries of whole slabs, as they stand: four in succession for a lane. Blocks walk the tables,
// and their parts.
template <int D, class Value>
struct SlabEntries {
  using Row = Vector<Value, D>;
  using Entries = Batch<4, D, Value, /*kNeighbours=*/true>;
  static constexpr int kBlocks = 2;
  const Row* values;
  IndexView index;
  RowLayout layout;
  IndexRule rule;
  IndexErrorSite errors;
  int64_t first_slab;  // of the launch
  int64_t last_slab;   // of the call
  uint32_t parts;
  uint32_t slabs;  // of a table
  FastDivisor by_entries;
  bool adjacent;  // index and values can be read four entries at a time
  bool keep;      // entries in shared memory, between the passes
  uint32_t kept_entries;

  static constexpr uint32_t kPart = Binning::kPartEntries;

  struct Span {
    int64_t slab;   // the first
    int64_t begin;  // its entries
    uint32_t count;
    int64_t index;  // where they begin, of a single slab
    Row* kept;
    uint16_t* kept_rows;  // behind them: those that they name
    Destination destination;
  };

  static int64_t kept_bytes(int64_t entries) {
    return entries * static_cast<int64_t>(sizeof(Row) + sizeof(uint16_t));
  }

  // Finds the block's part. `memory`: what is left of the shared memory.
  __device__ __forceinline__ bool find(void* memory, Span& span) const {
    const uint32_t table = blockIdx.x / parts, part = blockIdx.x - table * parts;
    span.slab = first_slab + int64_t{table} * slabs;
    const int64_t present = min(int64_t{slabs}, last_slab + 1 - span.slab);
    const int64_t entries = present * layout.entries;
    span.begin = int64_t{part} * kPart;
    span.count = static_cast<uint32_t>(min(entries - span.begin, int64_t{kPart}));
    span.index = index_of_slab(layout, span.slab) + span.begin * layout.index_entry_stride;
    span.kept = static_cast<Row*>(memory);
    span.kept_rows = reinterpret_cast<uint16_t*>(span.kept + kept_entries);
    span.destination.partial = parts > 1;
    span.destination.rows = static_cast<uint32_t>(present * layout.axis_size);
    span.destination.row =
        parts > 1 ? int64_t{blockIdx.x} * slabs * layout.axis_size : span.slab * layout.axis_size;
    return true;
  }

  template <class Use>
  __device__ __forceinline__ void for_each(const Span& span, bool again, Use&& use) const {
    const uint32_t lane = threadIdx.x % 32;
    for (uint32_t at = (threadIdx.x - lane) * 4; at < span.count; at += kSumThreads * 4) {
      const uint32_t number = at + lane * 4;
      Entries batch;
      if (again && keep) {
        load_kept(span, number, batch);
      } else {
        load(span, number, again, batch);
      }
      use(batch);
    }
  }

 private:
  static constexpr uint16_t kNoKeptRow = UINT16_MAX;

  __device__ __forceinline__ void load(const Span& span, uint32_t number, bool again,
                                       Entries& batch) const {
    const int64_t first_row = span.slab * layout.entries + span.begin;
    const auto last = span.count - 1;
    int64_t entries[4];
    uint32_t offsets[4] = {};  // of a slab's rows in the table
    if (slabs == 1) {
      load_four_entries(index, adjacent, span.index, layout.index_entry_stride, number, last,
                        entries);
    } else {
      int64_t positions[4];
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        uint32_t entry;
        const uint32_t slab = by_entries.divide(min(number + k, last), entry);
        positions[k] =
            (span.slab + slab) * layout.index_batch_stride + entry * layout.index_entry_stride;
        offsets[k] = slab * static_cast<uint32_t>(layout.axis_size);
      }
      index.load(positions, entries);
    }
    if (adjacent) {
      load_four_rows<true>(values + first_row, number, last, batch.values);
    } else {
      load_four_rows<false>(values + first_row, number, last, batch.values);
    }
    BadEntry bad;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const int64_t row = rule.rewrites() ? rule.resolve(entries[k]) : entries[k];
      const bool exists = number + k < span.count;
      const bool good = in_range(row, layout.axis_size);
      if (exists && !good) bad = {first_row + number + k, entries[k]};
      batch.rows[k] = good ? offsets[k] + static_cast<uint32_t>(row) : 0;
      batch.live |= static_cast<unsigned>(exists && good) << k;
    }
    if (again) return;
    bad.record(errors);
    if (keep && number < span.count) {
      Vector<uint16_t, 4> rows;
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        rows.values[k] = batch.has(k) ? static_cast<uint16_t>(batch.rows[k]) : kNoKeptRow;
      }
      store_four_rows(span.kept + number, batch.values);
      *reinterpret_cast<Vector<uint16_t, 4>*>(span.kept_rows + number) = rows;
    }
  }

  __device__ __forceinline__ void load_kept(const Span& span, uint32_t number,
                                            Entries& batch) const {
    const bool exist = number < span.count;
    const uint32_t from = exist ? number : 0;
    const auto rows = *reinterpret_cast<const Vector<uint16_t, 4>*>(span.kept_rows + from);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const bool on = exist && rows.values[k] != kNoKeptRow;
      batch.rows[k] = on ? rows.values[k] : 0;
      batch.live |= static_cast<unsigned>(on) << k;
    }
    load_four_rows<true>(span.kept, from, from + 3, batch.values);
  }
};

// The entries of a bin, sorted by tile. Blocks walk the list of parts.
template <int D, class Value>
struct BinEntries {
  using Row = Vector<Value, D>;
  static constexpr int U = D == 1 ? 4 : 2;  // entries of a lane on their way
  static constexpr int kBlocks = D == 1 ? kSumBlocks : 2;
  static constexpr int kTiles = Binning::kSegmentTiles;
  static_assert(kTiles <= kSumThreads);
  const Row* values;
  const uint16_t* rows;
  const uint16_t* bounds;
  const Part* list;
  const Counters* counters;
  Bins call;
  uint32_t tile_entries;

  // Of the tiles of a segment: the units before each and in all; where its entries begin, and how
  // many the last unit has.
  struct Shared {
    uint32_t before[kTiles + 1];
    uint32_t starts[kTiles];
    uint32_t warps[kTiles / 32];
    uint32_t range[2];
  };

  struct Span {
    Shared* shared;
    uint32_t begin;  // units
    uint32_t end;
    int64_t first;  // the segment's first entry
    Destination destination;
  };

  // A part has the units of the tiles that begin in its share of them.
  __device__ __forceinline__ bool find(void* memory, Span& span) const {
    if (blockIdx.x >= counters->parts) return false;
    const Part part = list[blockIdx.x];
    const auto thread = threadIdx.x;
    const uint32_t number = part.cell / static_cast<uint32_t>(call.bins);
    const uint32_t bin = part.cell - number * static_cast<uint32_t>(call.bins);
    const uint32_t slab = number / static_cast<uint32_t>(call.segments);
    const uint32_t first_tile = (number - slab * static_cast<uint32_t>(call.segments)) * kTiles;
    auto& shared = *static_cast<Shared*>(memory);
    span.shared = &shared;
    const uint32_t tiles = min(static_cast<uint32_t>(call.tiles) - first_tile, uint32_t{kTiles});
    span.first = slab * call.slab_entries + int64_t{first_tile} * tile_entries;
    const uint32_t first_row = bin << call.row_shift;
    const auto table_rows = uint32_t{1} << call.row_shift;
    const auto present = min(table_rows, static_cast<uint32_t>(call.layout.axis_size) - first_row);
    span.destination = {(call.first_slab + slab) * call.layout.axis_size + first_row, present,
                        false};
    if (part.partial != kNone) {
      span.destination = {int64_t{part.partial} * table_rows, present, true};
    }

    uint32_t start = 0, size = 0, units = 0, end = 0;
    if (thread < kTiles) {
      if (thread < tiles) {
        const uint16_t* own =
            bounds + (int64_t{slab} * call.tiles + first_tile + thread) * (call.bins + 1) + bin;
        start = own[0];
        size = own[1] - start;
        units = (size + kUnit - 1) / kUnit;
      }
      end = scan_warp(units);
      if (thread % 32 == 31) shared.warps[thread / 32] = end;
    }
    if (thread < 2) shared.range[thread] = kNone;
    __syncthreads();
    if (thread < kTiles) {
      for (uint32_t warp = 0; warp < thread / 32; ++warp) end += shared.warps[warp];
      shared.before[thread] = end - units;
      shared.starts[thread] = start | size % kUnit << 16;
      if (thread == kTiles - 1) shared.before[kTiles] = end;
    }
    __syncthreads();
    const uint32_t all = shared.before[kTiles];
    const uint32_t share = (all + part.parts - 1) / part.parts;
    if (thread < kTiles && part.parts > 1) {
      const uint32_t before = end - units;
#pragma unroll
      for (uint32_t i = 0; i < 2; ++i) {
        const uint32_t from = share * (part.number + i);
        if (before >= from && (thread == 0 || shared.before[thread - 1] < from)) {
          shared.range[i] = before;
        }
      }
    }
    __syncthreads();
    span.begin = part.number == 0 ? 0 : min(shared.range[0], all);
    span.end = part.number + 1 == part.parts ? all : min(shared.range[1], all);
    return true;
  }

  template <class Use>
  __device__ __forceinline__ void for_each(const Span& span, bool /*again*/, Use&& use) const {
    constexpr uint32_t kWarps = kSumThreads / 32;
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    // Units go round the warps. Each lane finds one of its warp's; then the warp loads them.
    for (uint32_t first = span.begin + warp; first < span.end; first += kWarps * 32) {
      uint32_t place = 0, size = 0;
      const uint32_t own = first + lane * kWarps;
      if (own < span.end) find_unit(*span.shared, own, place, size);
      const auto present = min((span.end - first + kWarps - 1) / kWarps, 32u);
#pragma unroll 1
      for (uint32_t unit = 0; unit < present; unit += U) {
        Batch<U, D, Value, /*kNeighbours=*/false> batch;
#pragma unroll
        for (int k = 0; k < U; ++k) {
          const uint32_t from = __shfl_sync(kAllLanes, place, unit + k);
          const bool on = lane < __shfl_sync(kAllLanes, size, unit + k);
          batch.rows[k] = on ? rows[span.first + from + lane] : 0;
          batch.values[k] = on ? values[span.first + from + lane] : Row();
          batch.live |= static_cast<unsigned>(on) << k;
        }
        use(batch);
      }
    }
  }

 private:
  __device__ __forceinline__ void find_unit(const Shared& shared, uint32_t unit, uint32_t& place,
                                            uint32_t& size) const {
    uint32_t tile = 0;  // the last whose units begin there or before
#pragma unroll 1
    for (uint32_t step = kTiles / 2; step > 0; step /= 2) {
      if (shared.before[tile + step] <= unit) tile += step;
    }
    const uint32_t start = shared.starts[tile], rest = start >> 16;
    const bool last = unit + 1 == shared.before[tile + 1];
    size = last && rest != 0 ? rest : kUnit;
    place = tile * tile_entries + (start & 0xffff) + (unit - shared.before[tile]) * kUnit;
  }
};

// The shared memory of a table; what a source has there begins behind it.
TORCH_OPS_HOST_DEVICE int64_t table_bytes(int64_t values) {
  return (values * FixedSums::kBytes + 15) / 16 * 16;
}

template <int D, class Value, class Source>
__global__ void __launch_bounds__(kSumThreads, Source::kBlocks)
    sum_kernel(const __grid_constant__ Source source, uint32_t table_rows,
               Value* __restrict__ result, float* __restrict__ partials) {
  extern __shared__ __align__(16) unsigned char shared[];
  const Table<D> table{FixedSums(shared, static_cast<int>(table_rows) * D), table_rows};
  typename Source::Span span;
  if (!source.find(shared + table_bytes(int64_t{table_rows} * D), span)) return;
  table.sums.clear();
  __syncthreads();
  source.for_each(span, false, [&](const auto& batch) { table.see(batch); });
  __syncthreads();
  table.sums.set_scales();
  __syncthreads();
  source.for_each(span, true, [&](const auto& batch) { table.add(batch); });
  __syncthreads();
  const Destination to = span.destination;
  for (uint32_t i = threadIdx.x; i < to.rows * D; i += kSumThreads) {
    const float total = table.sums.total(i % D * table_rows + i / D);
    if (to.partial) {
      partials[to.row * D + i] = total;
    } else {
      result[to.row * D + i] = static_cast<Value>(total);
    }
  }
}

// ---- 4. join ------------------------------------------------------------------------------------

constexpr int kJoinColumns = 64;  // values that a block joins at a time,
constexpr int kJoinGroups = 8;    // and threads for each, among which its parts are dealt out

// The partial tables. Where there are no bins each table of the result has `parts` of them.
struct Joined {
  const Counters* counters;  // null without bins
  const uint32_t* joins;
  const Partials* partials;  // of cells
  uint32_t tables;           // without bins
  uint32_t parts;
  uint32_t bins;      // of a slab; 1 without bins
  uint32_t segments;  // of a slab; 1 without bins
  int64_t axis_size;  // of a slab
  int64_t first_slab;
  uint32_t table_rows;
};

// Blocks walk the tables that are to be joined, in pieces of kJoinColumns values.
template <int D, class Value>
__global__ void join_kernel(const float* __restrict__ partials, const __grid_constant__ Joined call,
                            Value* __restrict__ result) {
  __shared__ double sums[kJoinGroups][kJoinColumns];
  const uint32_t column = threadIdx.x % kJoinColumns, group = threadIdx.x / kJoinColumns;
  const uint32_t pieces = (call.table_rows * D + kJoinColumns - 1) / kJoinColumns;
  const bool bins = call.counters != nullptr;
  const int64_t work = int64_t{bins ? call.counters->joins : call.tables} * pieces;
  for (int64_t item = blockIdx.x; item < work; item += gridDim.x) {
    const auto number = static_cast<uint32_t>(item / pieces);
    const uint32_t value =
        static_cast<uint32_t>(item - int64_t{number} * pieces) * kJoinColumns + column;
    const uint32_t cell = bins ? call.joins[number] : number;
    const uint32_t slab = cell / (call.bins * call.segments), bin = cell % call.bins;
    const int64_t in_slab = int64_t{bin} * call.table_rows;
    const int64_t first = (call.first_slab + slab) * call.axis_size + in_slab;
    const int64_t rows = min(int64_t{call.table_rows}, call.axis_size - in_slab);
    const bool live = value < rows * D;

    // Groups take segments in turn; or, of a single one, its parts.
    const bool several = call.segments > 1;
    double sum = 0;
    for (uint32_t segment = several ? group : 0; segment < call.segments; segment += kJoinGroups) {
      const Partials tables = bins ? call.partials[cell + segment * call.bins]
                                   : Partials{number * call.parts, call.parts};
      const uint32_t step = several ? 1 : kJoinGroups;
      if (!live) continue;
#pragma unroll 4
      for (uint32_t part = several ? 0 : group; part < tables.count; part += step) {
        sum += partials[(int64_t{tables.first} + part) * call.table_rows * D + value];
      }
    }
    sums[group][column] = sum;
    __syncthreads();
    if (group == 0 && live) {
#pragma unroll
      for (int other = 1; other < kJoinGroups; ++other) sum += sums[other][column];
      result[first * D + value] = static_cast<Value>(static_cast<float>(sum));
    }
    __syncthreads();
  }
}

}  // namespace torch_ops::binned
