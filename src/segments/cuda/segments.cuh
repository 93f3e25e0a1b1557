// Reductions of segments on CUDA: tiles of entries as those of sorted.cuh, whose rows follow from
// offsets. No torch.
//
// Entries are in order as they stand, so that nothing is sorted or listed in memory: a block finds
// the segment of its tile's first entry by a search of all its threads, and from there on, in
// shared memory, those of the others. Runs are totalled and joined as in sorted.cuh, so that a
// segment of any length is the work of many blocks.
#pragma once

#include <cstdint>

#include "common/cuda/vectorized.cuh"
#include "common/indexing/index_error.cuh"
#include "common/indexing/index_view.cuh"
#include "scatter/cuda/sorted/runs.cuh"
#include "scatter/cuda/sorted/sorted.cuh"

namespace torch_ops::segments {

using sorted::Shape;

// Sums that are divided by the number of entries.
template <int V, class Sum>
struct Means : Sums<V, Sum> {
  template <class Value>
  __device__ __forceinline__ void write(Value* to, int64_t count) const {
    Vector<Value, V> result;
#pragma unroll
    for (int v = 0; v < V; ++v) {
      result.values[v] = static_cast<Value>(this->values[v] / static_cast<Sum>(count));
    }
    store(to, result);
  }
};

template <class Total>
constexpr bool is_mean = false;
template <int V, class Sum>
constexpr bool is_mean<Means<V, Sum>> = true;

// The offsets of all batches one behind the other, as places in [batch, entries]: they do not
// decrease, and the last of each batch begins a segment that is none. Id numbers all that there is.
template <class Id>
struct Offsets {
  IndexView data;
  int64_t batch_stride;
  int64_t entry_stride;
  int64_t entries;  // a batch
  Id batch;
  Id outer;
  Id segments;  // a batch

  __device__ int64_t count() const { return static_cast<int64_t>(batch) * (segments + 1); }

  // Splits a number into a batch and what it is there.
  __device__ __forceinline__ Id batch_of(int64_t number, Id each) const {
    return batch == 1 ? 0 : static_cast<Id>(number) / each;
  }

  __device__ __forceinline__ int64_t given(Id b, int64_t s) const {
    return data[b * batch_stride + s * entry_stride];
  }

  __device__ __forceinline__ int64_t operator[](int64_t place) const {
    const Id b = batch_of(place, segments + 1);
    return b * entries + given(b, place - static_cast<int64_t>(b) * (segments + 1));
  }

  // The last place in [low, high) whose offset is `entry` or less. Low has such an offset, or is
  // before all, and high has none. All threads of a block look for one.
  __device__ int64_t search_block(int64_t entry, int64_t low, int64_t high) const {
    while (high - low > 1) {
      const int64_t step = (high - low + kRunThreads - 1) / kRunThreads;
      const int64_t probe = low + (static_cast<int64_t>(threadIdx.x) + 1) * step;
      const int below = __syncthreads_count(probe < high && (*this)[probe] <= entry);
      low += below * step;
      high = min(high, low + step);
    }
    return low;
  }

  // The same of one thread.
  __device__ __forceinline__ int64_t search(int64_t entry, int64_t low, int64_t high) const {
    while (high - low > 1) {
      const int64_t middle = (low + high) / 2;
      ((*this)[middle] <= entry ? low : high) = middle;
    }
    return low;
  }

  // Calls put(i, b, s) for the entries [begin, begin + count) that there are: the batch, and the
  // segment there, which is one of `segments` if it is a segment at all. For all threads of a
  // block, each of which gets some.
  template <class Put>
  __device__ __forceinline__ void find(int64_t begin, int count, Put put) const {
    const int64_t all = static_cast<int64_t>(batch) * entries;
    const int64_t end = min(begin + count, all);
    const int64_t low = search_block(begin, -1, this->count());
    int64_t high = low;
    for (int64_t step = count / 4; high < this->count(); step *= 8) {  // most segments are short
      high = min(high + step + 1, this->count());
      if (high == this->count() || (*this)[high] >= end) break;
    }
    for (int64_t entry = max(begin, int64_t{0}) + threadIdx.x; entry < end; entry += blockDim.x) {
      const int64_t place = search(entry, low, high);
      const Id b = batch_of(max(place, int64_t{0}), segments + 1);
      const int64_t s = place - static_cast<int64_t>(b) * (segments + 1);
      put(static_cast<int>(entry - begin), b, s < 0 ? static_cast<int64_t>(segments) : s);
    }
  }

  __device__ __forceinline__ int64_t length(Id b, int64_t s) const {
    return given(b, s + 1) - given(b, s);
  }
};

// The keys at the edges of tiles, for join_kernel.
template <class Id>
struct TileEdges {
  const Id* firsts;
  const Id* lasts;
  Offsets<Id> offsets;

  __device__ Id first(int64_t tile) const { return firsts[tile]; }
  __device__ Id last(int64_t tile) const { return lasts[tile]; }

  // What Total::write is told of a row: how many entries it has, or a batch has.
  template <class Total>
  __device__ __forceinline__ int64_t told(Id key) const {
    if constexpr (!is_mean<Total>) return offsets.entries;
    const Id rows = offsets.outer * offsets.segments;
    const Id b = offsets.batch_of(key, rows);
    return offsets.length(b, key - b * rows);
  }
};

// The entries of a tile, as sum_runs asks for them.
template <class Total, class Value, class Result, class Id>
struct SegmentTile {
  using Part = typename Total::Part;
  const Value* values_column;  // this lane's columns of the slice's row 0,
  Result* result_column;       // here as well
  const Id* keys;              // of the tile's first entry, in shared memory
  Part* entering;
  const Shape<Id>& shape;
  const TileEdges<Id>& edges;
  typename Total::Options options;
  Id first;   // entry
  int count;  // entries that there are

  __device__ __forceinline__ bool is_row(Id key) const { return key < shape.no_row; }
  __device__ __forceinline__ Id key(int i) const { return keys[i]; }
  __device__ __forceinline__ Id place(int i) const {
    const Id entry = first + min(i, count - 1);
    if (shape.batch == 1 || shape.outer == 1) return entry;
    const Id each = static_cast<Id>(shape.entries);
    return entry + entry / each * static_cast<Id>(shape.outer - 1) * each;
  }
  __device__ __forceinline__ auto values(Id place) const {
    return Total::load(values_column + static_cast<int64_t>(place) * shape.inner, place, options);
  }
  __device__ __forceinline__ void ends(Id /*key*/) const {}
  __device__ __forceinline__ void whole(Id key, const Total& sums) const {
    sums.write(result_column + static_cast<int64_t>(key) * shape.inner,
               edges.template told<Total>(key));
  }
  __device__ __forceinline__ void enters(const Total& sums) const { sums.copy_to(entering); }
  __device__ __forceinline__ void leaves(const Total& sums) const {
    sums.copy_to(entering + shape.outer * shape.inner);
  }
};

// As sorted::sum_tiles_kernel. `firsts` and `lasts` are written: those of `edges`.
template <class Total, class Value, class Result, class Id>
__global__ void __launch_bounds__(kRunThreads, Total::kBlocks)
    tiles_kernel(const Value* __restrict__ values, Result* __restrict__ result,
                 typename Total::Part* __restrict__ partials, Id* firsts, Id* lasts,
                 const __grid_constant__ TileEdges<Id> tile_edges, Shape<Id> shape, RowPieces split,
                 typename Total::Options options) {
  constexpr int V = Total::kColumns;
  __shared__ RunEdges<Total> edges;
  __shared__ Id keys[kRunThreads * kSpan + 2];  // and those before and behind the tile
  const int64_t tile = blockIdx.x / split.pieces;
  const int piece = static_cast<int>(blockIdx.x % split.pieces);
  const int lane = static_cast<int>(threadIdx.x) % split.lanes;
  const int64_t own_column = (int64_t{piece} * split.lanes + lane) * V;
  const bool live = own_column < shape.inner;
  const int64_t column = live ? own_column : 0;
  const int size = static_cast<int>(Shape<Id>::tile_entries(split.lanes));
  const int64_t begin = tile * size;

  for (int i = static_cast<int>(threadIdx.x); i < size + 2; i += kRunThreads) {
    keys[i] = shape.no_row;
  }
  const Offsets<Id>& offsets = tile_edges.offsets;
  offsets.find(begin - 1, size + 2, [&](int i, Id b, int64_t s) {
    if (s < offsets.segments) {
      keys[i] = b * offsets.outer * offsets.segments + static_cast<Id>(s);
    }
  });
  __syncthreads();
  if (threadIdx.x == 0 && piece == 0 && blockIdx.y == 0) {
    firsts[tile] = keys[1];
    lasts[tile] = keys[size];
  }

  for (int64_t slice = blockIdx.y; slice < shape.outer; slice += gridDim.y) {
    SegmentTile<Total, Value, Result, Id> entries{
        values + slice * shape.entries * shape.inner + column,
        result + slice * shape.axis_size * shape.inner + column,
        keys + 1,
        partials + (2 * tile * shape.outer + slice) * shape.inner + column,
        shape,
        tile_edges,
        options,
        static_cast<Id>(begin),
        static_cast<int>(min(shape.all_entries() - begin, int64_t{size}))};
    sum_runs(entries, edges, split.lanes, live);
  }
}

// Which rows have entries; and offsets out of range are recorded.
template <class Id>
struct FilledRows {
  Offsets<Id> offsets;
  IndexErrorSite errors;

  __device__ void check(Id b, int64_t s) const {
    const int64_t offset = offsets.given(b, s);
    if (!in_range(offset, offsets.entries + 1)) {
      record_bad_entry(errors, static_cast<int64_t>(b) * (offsets.segments + 1) + s, offset);
    }
  }

  // `row` is one of a batch's first slice.
  __device__ bool has(int64_t row) const {
    const Id rows = offsets.outer * offsets.segments;
    const Id b = offsets.batch_of(row, rows);
    const int64_t s = row - static_cast<int64_t>(b) * rows;
    check(b, s);
    if (s + 1 == offsets.segments) check(b, s + 1);
    return offsets.length(b, s) > 0;
  }
};

constexpr int kIdTile = 4 * kRunThreads;  // entries of a block

template <class Id, class Out>
__global__ void __launch_bounds__(kRunThreads)
    ids_kernel(const __grid_constant__ FilledRows<Id> rows, Out* __restrict__ ids) {
  const Offsets<Id>& offsets = rows.offsets;
  const int64_t begin = int64_t{blockIdx.x} * kIdTile;
  offsets.find(begin, kIdTile,
               [&](int i, Id /*b*/, int64_t s) { ids[begin + i] = static_cast<Out>(s); });
  const int64_t step = int64_t{gridDim.x} * kRunThreads;
  for (int64_t n = int64_t{blockIdx.x} * kRunThreads + threadIdx.x; n < offsets.count();
       n += step) {
    const Id b = offsets.batch_of(n, offsets.segments + 1);
    rows.check(b, n - static_cast<int64_t>(b) * (offsets.segments + 1));
  }
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
    int64_t low = -1, high = layout.entries;  // the first that names this row or one behind it
    while (high - low > 1) {
      const int64_t middle = (low + high) / 2;
      (at(b, middle) < row ? low : high) = middle;
    }
    offsets[n] = static_cast<Out>(high);
  }
}

}  // namespace torch_ops::segments
