// scatter_add by sorting, on raw pointers and a workspace. No torch.
//
// The entries of the index are sorted by the row that they add to, so that each row's values are
// summed in registers and each row is written once: no fill, no atomics, the same result on every
// run. In stages:
//   1. keys    the row of each entry (for one without a row, a number that sorts last)
//   2. sort    stable, by the bits that keys have: entries of a row keep their order (sort.cu)
//   3. tiles   blocks sum tiles of sorted entries and write the rows whose entries are in one
//              (runs.cuh)
//   4. join    adds the parts of runs that reach over tiles, in a fixed order
//   5. rest    zeros for the rows without entries
// The same with products, and with the best value of each element (best.cuh).
// 1 and 2 depend only on the index: a plan has their results.
#pragma once

#include <cstdint>
#include <type_traits>

#include "common/cuda/vectorized.cuh"
#include "common/cuda/warp.cuh"
#include "common/host/ceil_div.h"
#include "common/host/host_device.h"
#include "common/layout/row_layout.h"
#include "scatter/cuda/sorted/runs.cuh"

namespace torch_ops::sorted {

constexpr int kThreads = kRunThreads;
constexpr int kJoinThreads = 512;
constexpr int kJoinLanes = 8;  // few, so that a block has many groups for a run of many tiles
constexpr int kJoinAlone = 8;  // tiles of a run that one group adds up alone

// What a call adds where. Id is an unsigned type that can hold every entry's and row's number.
template <class Id>
struct Shape {
  int64_t batch;
  int64_t outer;
  int64_t entries;    // per batch
  int64_t axis_size;  // rows per batch
  int64_t inner;      // values per row
  // This key and all above it are no rows. It is the one after the first slice of the last batch:
  // in another slice it would be a row of the next slice, or beyond the result.
  Id no_row;

  explicit Shape(const RowLayout& layout)
      : batch(layout.batch),
        outer(layout.outer),
        entries(layout.entries),
        axis_size(layout.axis_size),
        inner(layout.inner),
        no_row(static_cast<Id>(((batch - 1) * outer + 1) * axis_size)) {}

  TORCH_OPS_HOST_DEVICE int64_t all_entries() const { return batch * entries; }
  // Keys and positions are rows of the result and of values, of the first slice of a batch. Those
  // of another slice are slice * axis_size and slice * entries further on.
  TORCH_OPS_HOST_DEVICE int64_t all_rows() const { return batch * outer * axis_size; }

  int key_bits() const {
    int bits = 1;
    while (bits < 64 && (uint64_t{no_row} >> bits) != 0) ++bits;
    return bits;
  }

  // Entries of a tile whose groups have `lanes` lanes.
  TORCH_OPS_HOST_DEVICE static int64_t tile_entries(int lanes) {
    return int64_t{kThreads / lanes} * kSpan;
  }
  int64_t tiles(int lanes) const { return ceil_div(all_entries(), tile_entries(lanes)); }
};

// Where the rows of a result are: one after the other,
template <class Result>
struct RowsInOrder {
  using Of = Result;
  Of* first;

  // Those that begin so many values further on in the result, or in each row.
  __device__ __forceinline__ RowsInOrder after(int64_t values) const { return {first + values}; }

  template <class Total>
  __device__ __forceinline__ void write(const Total& sums, int64_t row, int64_t width,
                                        typename Total::Options options) const {
    sums.write(first + row * width, options);
  }
};

// or each at an address of its own, of a result of one slice. An odd address is that of a row of
// type Narrow, one byte on.
template <class Result, class Narrow>
struct RowsByAddress {
  using Of = const uintptr_t;
  Of* rows;
  int64_t column = 0;

  __device__ __forceinline__ RowsByAddress after(int64_t values) const {
    return {rows, column + values};
  }

  template <class Total>
  __device__ __forceinline__ void write(const Total& sums, int64_t row, int64_t /*width*/,
                                        typename Total::Options options) const {
    const uintptr_t address = rows[row];
    if constexpr (!std::is_same_v<Result, Narrow>) {
      if (address % 2 == 1) {
        return sums.write(reinterpret_cast<Narrow*>(address - 1) + column, options);
      }
    }
    sums.write(reinterpret_cast<Result*>(address) + column, options);
  }
};

// The sorted entries of a tile, in the form for sum_runs, and what becomes of their sums.
template <class Total, class Value, class Rows, class Id>
struct SortedTile {
  using Part = typename Total::Part;
  const Value* values_column;  // this lane's columns of the slice's row 0,
  Rows result_column;          // here as well
  const Id* keys;              // of the tile's first entry
  const Id* positions;
  Part* entering;     // for the parts of runs that enter the tile; then for those that leave it
  uint32_t* touched;  // null in lanes that do not keep it
  const Shape<Id>& shape;
  typename Total::Options options;
  int low;  // the number of entries: from here
  int high;
  Id word = 0;  // of touched, in which rows were met,
  uint32_t bits = 0;

  __device__ __forceinline__ bool is_row(Id key) const { return key < shape.no_row; }

  __device__ __forceinline__ Id key(int i) const {
    return i >= low && i < high ? keys[i] : shape.no_row;
  }

  __device__ __forceinline__ Id place(int i) const { return positions[min(i, high - 1)]; }

  __device__ __forceinline__ auto values(Id place) const {
    return Total::load(values_column + static_cast<int64_t>(place) * shape.inner, place, options);
  }

  // Neighbours share a word of touched, which is then written once for all.
  __device__ __forceinline__ void ends(Id key) {
    if (key / 32 != word) {
      flush();
      word = key / 32;
    }
    bits |= 1u << key % 32;
  }
  __device__ __forceinline__ void flush() {
    if (touched != nullptr && bits != 0) atomicOr(touched + word, bits);
    bits = 0;
  }

  __device__ __forceinline__ void whole(Id key, const Total& sums) const {
    result_column.write(sums, key, shape.inner, options);
  }
  __device__ __forceinline__ void enters(const Total& sums) const { sums.copy_to(entering); }
  __device__ __forceinline__ void leaves(const Total& sums) const {
    sums.copy_to(entering + shape.outer * shape.inner);
  }
};

// blockIdx.x walks the tiles, and in them the pieces of columns; blockIdx.y the slices. Blocks per
// multiprocessor: as many as leave registers for V sums.
template <class Total, class Value, class Rows, class Id>
__global__ void __launch_bounds__(kThreads, Total::kBlocks)
    sum_tiles_kernel(const Value* __restrict__ values, const Id* __restrict__ keys,
                     const Id* __restrict__ positions, typename Rows::Of* __restrict__ result,
                     typename Total::Part* __restrict__ partials, uint32_t* __restrict__ touched,
                     Shape<Id> shape, RowPieces split, typename Total::Options options) {
  constexpr int V = Total::kColumns;
  __shared__ RunEdges<Total> edges;
  const int64_t tile = blockIdx.x / split.pieces;
  const int piece = static_cast<int>(blockIdx.x % split.pieces);
  const int lane = static_cast<int>(threadIdx.x) % split.lanes;
  const int64_t own_column = (int64_t{piece} * split.lanes + lane) * V;
  const bool live = own_column < shape.inner;
  const int64_t column = live ? own_column : 0;
  const int64_t begin = tile * Shape<Id>::tile_entries(split.lanes);
  for (int64_t slice = blockIdx.y; slice < shape.outer; slice += gridDim.y) {
    SortedTile<Total, Value, Rows, Id> entries{
        values + slice * shape.entries * shape.inner + column,
        Rows{result}.after(slice * shape.axis_size * shape.inner + column),
        keys + begin,
        positions + begin,
        partials + (2 * tile * shape.outer + slice) * shape.inner + column,
        own_column == 0 && slice == 0 ? touched : nullptr,
        shape,
        options,
        tile > 0 ? -1 : 0,
        static_cast<int>(min(shape.all_entries() - begin, int64_t{INT32_MAX}))};
    sum_runs(entries, edges, split.lanes, live);
    entries.flush();
  }
}

// The last of the tiles that a run reaches. It leaves `tile`, and so reaches the next one; most end
// there, so steps are doubled from there on.
template <class Id>
__device__ int64_t last_tile_of_run(const Id* keys, Id key, int64_t tile, int64_t tile_entries,
                                    int64_t tiles) {
  int64_t inside = tile + 1, step = 1, outside;
  while ((outside = inside + step) < tiles && keys[outside * tile_entries] == key) {
    inside = outside;
    step *= 2;
  }
  outside = min(outside, tiles);
  while (outside - inside > 1) {
    const int64_t middle = (inside + outside) / 2;
    (keys[middle * tile_entries] == key ? inside : outside) = middle;
  }
  return inside;
}

// A group of lanes looks at a tile: does a run start there and leave it? Then it adds up the run's
// parts and writes the row; those of a long run are added by the whole block, in a fixed tree.
template <class Total, class Rows, class Id>
__global__ void __launch_bounds__(kJoinThreads)
    join_kernel(const Id* __restrict__ keys, const typename Total::Part* __restrict__ partials,
                typename Rows::Of* __restrict__ result, Shape<Id> shape, int64_t tile_entries,
                int64_t tiles, RowPieces split, typename Total::Options options) {
  constexpr int V = Total::kColumns;
  struct Run {
    Id key;
    int64_t first, last;  // tiles
  };
  __shared__ Run long_runs[kJoinThreads];
  __shared__ int long_count;
  __shared__ typename Total::Part shared[kJoinThreads / 2 * V];
  const int thread = static_cast<int>(threadIdx.x);
  const int groups = split.groups(kJoinThreads), group = thread / split.lanes;
  const int lane = thread % split.lanes;
  const int64_t column = (int64_t{blockIdx.x % split.pieces} * split.lanes + lane) * V;
  const bool live = column < shape.inner;

  const auto part = [&](const Run& run, int64_t tile, int64_t slice) {
    const int64_t slot = (2 * tile + (tile == run.first)) * shape.outer + slice;
    return partials + slot * shape.inner + column;
  };
  const auto write = [&](const Run& run, int64_t slice, const Total& sums) {
    const int64_t row = static_cast<int64_t>(run.key) + slice * shape.axis_size;
    Rows{result}.after(column).write(sums, row, shape.inner, options);
  };

  if (thread == 0) long_count = 0;
  __syncthreads();
  const int64_t tile = int64_t{blockIdx.x / split.pieces} * groups + group;
  const int64_t next = (tile + 1) * tile_entries;
  if (tile < tiles - 1) {
    const Id key = keys[next - 1];
    const bool leaves = key < shape.no_row && keys[next] == key;
    const bool starts = tile == 0 || keys[tile * tile_entries - 1] != key;
    if (leaves && starts) {
      const Run run{key, tile, last_tile_of_run(keys, key, tile, tile_entries, tiles)};
      if (run.last - run.first > kJoinAlone) {
        if (lane == 0) long_runs[atomicAdd(&long_count, 1)] = run;
      } else if (live) {
        for (int64_t slice = blockIdx.y; slice < shape.outer; slice += gridDim.y) {
          Total sums;
          for (int64_t t = run.first; t <= run.last; ++t) sums.add(part(run, t, slice));
          write(run, slice, sums);
        }
      }
    }
  }
  __syncthreads();

  for (int i = 0; i < long_count; ++i) {
    const Run run = long_runs[i];
    for (int64_t slice = blockIdx.y; slice < shape.outer; slice += gridDim.y) {
      Total sums;
      if (live) {
#pragma unroll 4
        for (int64_t t = run.first + group; t <= run.last; t += groups) {
          sums.add(part(run, t, slice));
        }
      }
      for (int half = groups / 2; half > 0; half /= 2) {
        __syncthreads();
        if (group >= half && group < 2 * half) {
          sums.copy_to(shared + (thread - half * split.lanes) * V);
        }
        __syncthreads();
        if (group < half) sums.add(shared + thread * V);
      }
      if (group == 0 && live) write(run, slice, sums);
    }
  }
}

// `empty` (zero, of sums) for the rows without entries. A warp looks at 32 rows of a batch's first
// slice at a time; the result holds for all slices. blockIdx.y walks the slices.
template <int V, class Value, class Id>
__global__ void fill_rest_kernel(const uint32_t* __restrict__ touched, Value* __restrict__ result,
                                 Shape<Id> shape, RowPieces split, Value empty) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t row = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const bool exists =
      row < shape.all_rows() && (shape.outer == 1 || row / shape.axis_size % shape.outer == 0);
  const unsigned present = __ballot_sync(kAllLanes, exists);
  if (present == 0) return;
  const unsigned rest = present & ~touched[row / 32];
  const int group = lane / split.lanes, groups = 32 / split.lanes;
  const int64_t first_column = int64_t{lane % split.lanes} * V;
  // In words of at most 16 bytes.
  constexpr int W = V * sizeof(Value) > kVectorBytes ? kVectorSize<Value> : V;
  Vector<Value, W> empties;
#pragma unroll
  for (int v = 0; v < W; ++v) empties.values[v] = empty;
  for (int64_t slice = blockIdx.y; slice < shape.outer; slice += gridDim.y) {
    Value* rows = result + (row - lane + slice * shape.axis_size) * shape.inner;
    for (int r = group; r < 32; r += groups) {
      if ((rest >> r & 1) == 0) continue;
      for (int64_t column = first_column; column < shape.inner; column += split.lanes * V) {
#pragma unroll
        for (int v = 0; v < V; v += W) store(rows + r * shape.inner + column + v, empties);
      }
    }
  }
}

}  // namespace torch_ops::sorted
