// scatter_add of rows of one, two or four values with the same bits on every run, on raw pointers
// and a workspace. No torch.
//
// Sums of a table of rows are made in shared memory, in integers (fixed_sums.cuh), so the order
// in which a block meets its entries does not matter. Which entries a block has depends only on
// the index. If a table contains whole slabs (fixed_cut.h), it reads them in place:
//   1. sum    blocks sum parts of a table's entries
//   2. join   if there are several parts, their sums are added in order
// Otherwise the rows of a slab are cut into bins, each with a table:
//   1. bin    blocks sort tiles of entries by bin: for each the row within the bin, in 16 bits, and
//             its values. A warp first adds up its values for one row, in float32, if the
//             row's entries are near each other. A tile keeps its position, and notes where its
//             bins begin
//   2. list   the entries of a bin in all tiles of a segment are one part, or several of whole
//             tiles if there are many; so equal work for each block, whatever the distribution
//   3. sum, 4. join, as above
// Steps 1 and 2 are in bins.cuh, 4 in join.cuh.
#pragma once

#include <cstdint>
#include <type_traits>

#include "common/cuda/kernel_overlap.cuh"
#include "common/cuda/vectorized.cuh"
#include "common/indexing/index_error.cuh"
#include "common/indexing/index_view.cuh"
#include "common/layout/row_layout.h"
#include "scatter/cuda/fixed_point/bins.cuh"
#include "scatter/cuda/fixed_point/fixed_sums.cuh"
#include "scatter/sum/fixed_cut.h"

namespace torch_ops::fixed_point {

// Entries that a warp has loaded: U of each lane.
template <int U, int D, class Value>
struct Batch {
  uint32_t rows[U];
  Vector<Value, D> values[U];
  unsigned live = 0;  // a bit for each that exists; the others are somewhere in the table

  __device__ __forceinline__ bool has(int k) const { return live >> k & 1; }
};

// Sums of rows, by columns, for the batches of a source.
template <int D, class Source>
struct Table {
  using Entries = typename Source::Entries;
  static constexpr int U = Source::U;
  // Columns at once: as many as keep the loads of a lane independent, and fit the registers.
  static constexpr int C = U * D <= 8 ? D : 8 / U;
  FixedSums sums;
  uint32_t rows;

  __device__ __forceinline__ void see(const Entries& batch) const {
#pragma unroll
    for (int column = 0; column < D; column += C) {
      uint32_t places[U * C];
      float values[U * C];
      list_values(batch, column, places, values);
#pragma unroll
      for (int i = 0; i < U * C; ++i) {
        if (!batch.has(i / C)) values[i] = 0;
      }
      sums.see(places, values);
    }
  }

  // All lanes of a warp must call this. If many of them have one row, they join their values
  // for it: that of the last time, `common`, or the first lane's.
  __device__ __forceinline__ void add(const Entries& batch, uint32_t& common) const {
    const auto many = [&](uint32_t row) {
      return count_lanes(batch.has(0) && batch.rows[0] == row) >= kHot;
    };
    bool joins = many(common);
    if (!joins) {
      const uint32_t first = __shfl_sync(kAllLanes, batch.rows[0], 0);
      joins = many(first);
      if (joins) common = first;
    }
#pragma unroll
    for (int column = 0; column < D; column += C) {
      uint32_t places[U * C];
      float values[U * C];
      FixedSums::Halves halves[U * C];
      list_values(batch, column, places, values);
      sums.split(places, values, halves);
      if (joins) {
#pragma unroll
        for (int c = 0; c < C; ++c) join(batch, column, c, common, halves);
      } else {
#pragma unroll
        for (int k = 0; k < U; ++k) {
          if (!batch.has(k)) continue;
#pragma unroll
          for (int i = k * C; i < (k + 1) * C; ++i) sums.add(places[i], halves[i]);
        }
      }
    }
  }

 private:
  __device__ __forceinline__ void list_values(const Entries& batch, int column,
                                              uint32_t (&places)[U * C],
                                              float (&values)[U * C]) const {
#pragma unroll
    for (int i = 0; i < U * C; ++i) {
      const int k = i / C, d = column + i % C;
      places[i] = d * rows + batch.rows[k];
      values[i] = static_cast<float>(batch.values[k].values[d]);
    }
  }

  // Adds a column in which many of a warp's lanes have the row `common`.
  __device__ __forceinline__ void join(const Entries& batch, int first, int column, uint32_t common,
                                       const FixedSums::Halves (&halves)[U * C]) const {
    const uint32_t places = (first + column) * rows;
    FixedSums::Halves joined{}, own{};  // of the common row, and of the lane's last one
#pragma unroll
    for (int k = 0; k < U; ++k) {
      if (!batch.has(k)) continue;
      if (batch.rows[k] == common) {
        joined += halves[k * C + column];
        continue;
      }
      own += halves[k * C + column];
      if (Source::kNeighbours && k + 1 < U && batch.has(k + 1) &&
          batch.rows[k + 1] == batch.rows[k]) {
        continue;
      }
      sums.add(places + batch.rows[k], own);
      own = {};
    }
    joined = add_up_lanes(joined);
    if (threadIdx.x % 32 == 0) sums.add(places + common, joined);
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

// The entries of whole slabs, in place: four in succession for a lane. Blocks walk the tables,
// and their parts.
template <int D, class Value>
struct SlabEntries {
  using Row = Vector<Value, D>;
  static constexpr int U = 4;
  static constexpr bool kNeighbours = true;  // a lane's entries are in succession
  using Entries = Batch<U, D, Value>;
  static constexpr int kBlocks = 2;
  static constexpr uint32_t kTableRows = 0;  // as in the call
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

  static constexpr uint32_t kPart = FixedCut::kPartEntries;

  // Is the next kernel the one that joins parts? Otherwise it is not ours.
  __device__ __forceinline__ bool is_joined() const { return parts > 1; }

  struct Span {
    int64_t slab;   // the first
    int64_t begin;  // its entries
    uint32_t count;
    int64_t index;  // where they begin, of a single slab
    Row* kept;
    uint16_t* kept_rows;  // after them: those that they name
    Destination destination;
  };

  // Finds the block's part. `memory`: the rest of the shared memory.
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
      if (exists && !good) bad = {first_row + number + k, row};
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
  static constexpr int U = D == 1 ? 4 : 2;  // entries of a lane in flight
  static constexpr bool kNeighbours = false;
  static constexpr int kBlocks = D == 1 ? kSumBlocks : 2;
  static constexpr uint32_t kTableRows = FixedCut::bin_rows(D);
  static constexpr int kTiles = FixedCut::kSegmentTiles;
  static_assert(kTiles <= kSumThreads);
  static constexpr bool kWidens = sizeof(Row) == 2;  // some tiles have floats of 32 bits
  using Entries = Batch<U, D, std::conditional_t<kWidens, float, Value>>;
  const Row* values;
  const uint16_t* rows;
  const uint16_t* bounds;
  const Part* list;
  Bins call;
  uint32_t tile_entries;  // a power of two

  // Of the tiles of a segment: the units before each and in all; where its entries begin, with
  // kWidened, and how many the last unit has.
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
    const Row* values;  // of the segment
    const uint16_t* rows;
    Destination destination;
  };

  __device__ __forceinline__ bool is_joined() const { return true; }

  // A part has the units of the tiles that begin in its share of them.
  __device__ __forceinline__ bool find(void* memory, Span& span) const {
    wait_for_kernel_before();
    const Part part = list[blockIdx.x];
    if (part.parts == 0) return false;
    const auto thread = threadIdx.x;
    const uint32_t number = part.cell / static_cast<uint32_t>(call.bins);
    const uint32_t bin = part.cell - number * static_cast<uint32_t>(call.bins);
    const uint32_t slab = number / static_cast<uint32_t>(call.segments);
    const uint32_t first_tile = (number - slab * static_cast<uint32_t>(call.segments)) * kTiles;
    auto& shared = *static_cast<Shared*>(memory);
    span.shared = &shared;
    const uint32_t tiles = min(static_cast<uint32_t>(call.tiles) - first_tile, uint32_t{kTiles});
    const int64_t first = slab * call.slab_entries + int64_t{first_tile} * tile_entries;
    span.values = values + first;
    span.rows = rows + first;
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
      const uint32_t own = first + lane * kWarps;
      const uint32_t found = own < span.end ? find_unit(*span.shared, own) : 0;
      const auto present = min((span.end - first + kWarps - 1) / kWarps, 32u);
#pragma unroll 1
      for (uint32_t number = 0; number < present; number += U) {
        Entries batch;
#pragma unroll
        for (int k = 0; k < U; ++k) {
          // Missing ones are read as the last one: a branch would serialise the loads.
          const uint32_t unit = __shfl_sync(kAllLanes, found, min(number + k, present - 1));
          const uint32_t last = unit >> kPlaceBits & (kUnit - 1);
          const uint32_t at = (unit & ((1u << kPlaceBits) - 1)) + min(lane, last);
          batch.rows[k] = span.rows[at];
          if constexpr (kWidens) {
            batch.values[k] = {load_value(span, at, (unit & kWidenedUnit) != 0)};
          } else {
            batch.values[k] = span.values[at];
          }
          batch.live |= static_cast<unsigned>(lane <= last && number + k < present) << k;
        }
        use(batch);
      }
    }
  }

 private:
  // What a warp knows of a unit: where it begins in the segment, the number of its last entry, and
  // whether they are floats of 32 bits.
  static constexpr int kPlaceBits = 20;
  static constexpr uint32_t kWidenedUnit = 1u << 31;
  static_assert(kUnit == 32);
  static_assert(kTiles * FixedCut::kMostTileEntries <= 1 << kPlaceBits);

  __device__ __forceinline__ uint32_t find_unit(const Shared& shared, uint32_t unit) const {
    uint32_t tile = 0;  // the last whose units begin there or before
#pragma unroll 1
    for (uint32_t step = kTiles / 2; step > 0; step /= 2) {
      if (shared.before[tile + step] <= unit) tile += step;
    }
    const uint32_t start = shared.starts[tile], rest = start >> 16;
    const bool cut = unit + 1 == shared.before[tile + 1] && rest != 0;
    const uint32_t place =
        tile * tile_entries + (start & (kWidened - 1)) + (unit - shared.before[tile]) * kUnit;
    return place | (cut ? rest - 1 : kUnit - 1) << kPlaceBits |
           ((start & kWidened) != 0 ? kWidenedUnit : 0);
  }

  // A value of 16 bits or of 32, by one load for both: a branch would serialise a lane's loads.
  __device__ __forceinline__ float load_value(const Span& span, uint32_t at, bool widened) const {
    const uint32_t in_tile = at & (tile_entries - 1);
    const auto* tile = reinterpret_cast<const uint32_t*>(span.values + (at - in_tile));
    const uint32_t word = tile[widened ? in_tile : in_tile / 2];
    const auto half = static_cast<uint16_t>(in_tile % 2 == 0 ? word : word >> 16);
    return widened ? __uint_as_float(word)
                   : static_cast<float>(reinterpret_cast<const Value&>(half));
  }
};

template <int D, class Value, class Source>
__global__ void __launch_bounds__(kSumThreads, Source::kBlocks)
    sum_kernel(const __grid_constant__ Source source, uint32_t table_rows,
               Value* __restrict__ result, float* __restrict__ partials) {
  extern __shared__ __align__(16) unsigned char shared[];
  if (source.is_joined()) let_next_kernel_begin();
  // After the table, the shared memory that the source uses.
  const uint32_t rows = Source::kTableRows > 0 ? Source::kTableRows : table_rows;
  const Table<D, Source> table{FixedSums(shared, static_cast<int>(rows) * D), rows};
  table.sums.clear();
  typename Source::Span span;
  if (!source.find(shared + FixedCut::table_bytes(int64_t{rows} * D), span)) return;
  __syncthreads();
  source.for_each(span, false, [&](const auto& batch) { table.see(batch); });
  __syncthreads();
  table.sums.set_scales();
  __syncthreads();
  uint32_t common = 0;
  source.for_each(span, true, [&](const auto& batch) { table.add(batch, common); });
  __syncthreads();
  const Destination to = span.destination;
  for (uint32_t row = threadIdx.x; row < to.rows; row += kSumThreads) {
    Vector<float, D> totals;
#pragma unroll
    for (int d = 0; d < D; ++d) totals.values[d] = table.sums.total(d * rows + row);
    if (to.partial) {
      store(partials + (to.row + row) * D, totals);
    } else {
      Vector<Value, D> values;
#pragma unroll
      for (int d = 0; d < D; ++d) values.values[d] = static_cast<Value>(totals.values[d]);
      store(result + (to.row + row) * D, values);
    }
  }
}

}  // namespace torch_ops::fixed_point
