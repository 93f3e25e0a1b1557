// scatter_add by sorting, on raw pointers and a workspace. No torch.
//
// The entries of the index are sorted by the row that they add to, so that each row's values are
// summed in registers and each row is written once: no fill, no atomics, the same result on every
// run. In stages:
//   1. keys       the row of each entry (the row count for one out of range, which sorts last)
//   2. sort       stable, by the bits that keys have: entries of a row keep their order
//   3. bounds     where each row's entries begin and end
//   4. rows       a group of lanes sums the entries of a row, in their order, and writes it
//   5. tiles      rows of more than kLongRun entries: fixed tiles of sorted entries are summed
//   first,
//   6. join       and then the tiles' sums, each by a block with a fixed tree
#pragma once

#include <algorithm>
#include <cstdint>
#include <cub/device/device_radix_sort.cuh>

#include "common/index_error.cuh"
#include "common/row_layout.h"
#include "common/vectorized.cuh"

namespace torch_ops::sorted {

constexpr int kThreads = 256;
constexpr int kTile = 128;     // sorted entries a block sums
constexpr int kLongRun = 128;  // not below a tile, so that at most one longer run starts in one
constexpr int kJoinThreads = 512;
constexpr int kJoinTiles = 8;   // a block of the last kernel looks at
constexpr int kRowsAtOnce = 4;  // of a group: their loads are in flight together

// What a call adds where. Id is an unsigned type that holds every entry's and every row's number.
template <class Id>
struct Shape {
  int64_t batch;
  int64_t outer;
  int64_t entries;    // a batch
  int64_t axis_size;  // rows a batch
  int64_t inner;      // values a row

  int64_t all_entries() const { return batch * entries; }
  int64_t all_rows() const { return batch * axis_size; }
  int64_t tiles() const { return (all_entries() + kTile - 1) / kTile; }

  int key_bits() const {
    int bits = 1;
    while (bits < 64 && (all_rows() >> bits) != 0) ++bits;
    return bits;
  }
};

template <class Id>
struct Bounds {
  Id begin;
  Id end;
  __device__ bool is_long() const { return end - begin > kLongRun; }
};

// ---- Workspace ----------------------------------------------------------------------------------

template <class Id, class Sum>
struct Workspace {
  Id* keys[2];
  Id* positions[2];
  Bounds<Id>* bounds;
  Sum* partials;
  void* sort;
  size_t sort_bytes;
  size_t bytes;  // of all

  // Lays the pieces out from `base`; with base == nullptr only the sizes are meant.
  Workspace(const Shape<Id>& shape, void* base) {
    const int64_t n = shape.all_entries();
    cub::DoubleBuffer<Id> no_keys, no_positions;
    sort_bytes = 0;
    cub::DeviceRadixSort::SortPairs(nullptr, sort_bytes, no_keys, no_positions, n, 0,
                                    shape.key_bits());
    auto* next = static_cast<char*>(base);
    const auto take = [&](size_t size) {
      char* piece = next;
      next += (size + 255) / 256 * 256;
      return static_cast<void*>(piece);
    };
    for (auto& piece : keys) piece = static_cast<Id*>(take(n * sizeof(Id)));
    for (auto& piece : positions) piece = static_cast<Id*>(take(n * sizeof(Id)));
    bounds = static_cast<Bounds<Id>*>(take(shape.all_rows() * sizeof(Bounds<Id>)));
    // Two sums a tile: of the run that it starts in and of the one that it ends in.
    partials = static_cast<Sum*>(take(2 * shape.tiles() * shape.outer * shape.inner * sizeof(Sum)));
    sort = take(sort_bytes);
    bytes = next - static_cast<char*>(base);
  }
};

// ---- Kernels ------------------------------------------------------------------------------------

template <class Id, class Index>
__global__ void keys_kernel(const Index* __restrict__ index, Shape<Id> shape, int64_t batch_stride,
                            int64_t entry_stride, Id* __restrict__ keys, Id* __restrict__ positions,
                            const __grid_constant__ IndexErrorSite errors) {
  const Id count = static_cast<Id>(shape.batch * shape.entries);
  const Id per_batch = static_cast<Id>(shape.entries);
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    const Id position = static_cast<Id>(i);
    const Id b = position / per_batch;
    const Index entry = index[b * batch_stride + (position - b * per_batch) * entry_stride];
    const bool good = in_range(entry, shape.axis_size);
    keys[position] = static_cast<Id>(good ? b * shape.axis_size + static_cast<int64_t>(entry)
                                          : shape.batch * shape.axis_size);
    positions[position] = position;
    if (!good) record_bad_entry(errors, i, static_cast<int64_t>(entry));
  }
}

// Rows without entries keep the zeros that `bounds` was filled with.
template <class Id>
__global__ void bounds_kernel(const Id* __restrict__ keys, int64_t count, Id rows,
                              Bounds<Id>* __restrict__ bounds) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    const Id key = keys[i];
    if (key == rows) continue;
    if (i == 0 || keys[i - 1] != key) bounds[key].begin = static_cast<Id>(i);
    if (i == count - 1 || keys[i + 1] != key) bounds[key].end = static_cast<Id>(i + 1);
  }
}

// The work of one slice (an index along the outer axes): where a row of values and one of the
// result lie.
template <class Id>
struct Slice {
  int64_t values_offset;
  int64_t result_offset;

  // For the rows of one batch. With one slice a batch, entries and rows are their own numbers.
  __device__ Slice(const Shape<Id>& shape, int64_t row, int64_t slice)
      : values_offset(0), result_offset(0) {
    if (shape.outer > 1) {
      const int64_t before = row / shape.axis_size * (shape.outer - 1) + slice;
      values_offset = before * shape.entries;
      result_offset = before * shape.axis_size;
    }
  }
};

template <int V, class Value, class Sum>
__device__ __forceinline__ void add(Sum (&sums)[V], const Vector<Value, V>& values) {
#pragma unroll
  for (int v = 0; v < V; ++v) sums[v] += static_cast<Sum>(values.values[v]);
}

template <int V, class Value, class Sum>
__device__ __forceinline__ void store(Value* to, const Sum (&sums)[V]) {
  Vector<Value, V> rounded;
#pragma unroll
  for (int v = 0; v < V; ++v) rounded.values[v] = static_cast<Value>(sums[v]);
  *reinterpret_cast<Vector<Value, V>*>(to) = rounded;
}

// A group of `lanes` (a power of two) owns kRowsAtOnce rows, in them one piece of lanes * V
// columns.
template <int V, class Value, class Sum, class Id>
__global__ void rows_kernel(const Value* __restrict__ values, const Id* __restrict__ positions,
                            const Bounds<Id>* __restrict__ bounds, Value* __restrict__ result,
                            Shape<Id> shape, int lanes, int pieces) {
  using Word = Vector<Value, V>;
  const int64_t rows = shape.batch * shape.axis_size;
  const int64_t task = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) / lanes;
  const int64_t first = task / pieces * kRowsAtOnce;
  const int64_t column =
      (task % pieces * lanes + static_cast<int>(threadIdx.x) % lanes) * int64_t{V};
  if (first >= rows || column >= shape.inner) return;

  for (int64_t slice = blockIdx.y; slice < shape.outer; slice += gridDim.y) {
    Bounds<Id> run[kRowsAtOnce];
    int64_t offset[kRowsAtOnce];
#pragma unroll
    for (int r = 0; r < kRowsAtOnce; ++r) {
      run[r] = first + r < rows ? bounds[first + r] : Bounds<Id>{0, 0};
      offset[r] = Slice<Id>(shape, min(first + r, rows - 1), slice).values_offset;
    }
    const auto value_at = [&](int r, Id entry) {
      return *reinterpret_cast<const Word*>(values + (positions[entry] + offset[r]) * shape.inner +
                                            column);
    };
    Sum sums[kRowsAtOnce][V] = {};
    // The first entries of all rows together, since most rows have few ...
    constexpr int kTogether = 2;
#pragma unroll
    for (int j = 0; j < kTogether; ++j) {
      Word loaded[kRowsAtOnce];
#pragma unroll
      for (int r = 0; r < kRowsAtOnce; ++r) {
        const bool here = run[r].begin + j < run[r].end && !run[r].is_long();
        loaded[r] = here ? value_at(r, run[r].begin + j) : Word();
      }
#pragma unroll
      for (int r = 0; r < kRowsAtOnce; ++r) add<V>(sums[r], loaded[r]);
    }
    // ... then what is left of each.
#pragma unroll
    for (int r = 0; r < kRowsAtOnce; ++r) {
      if (run[r].is_long()) continue;
      Id entry = run[r].begin + kTogether;
      for (; entry + 4 <= run[r].end; entry += 4) {
        Word loaded[4];
#pragma unroll
        for (int k = 0; k < 4; ++k) loaded[k] = value_at(r, entry + k);
#pragma unroll
        for (int k = 0; k < 4; ++k) add<V>(sums[r], loaded[k]);
      }
      for (; entry < run[r].end; ++entry) add<V>(sums[r], value_at(r, entry));
    }
#pragma unroll
    for (int r = 0; r < kRowsAtOnce; ++r) {
      if (first + r >= rows || run[r].is_long()) continue;
      const int64_t row = first + r + Slice<Id>(shape, first + r, slice).result_offset;
      store<V>(result + row * shape.inner + column, sums[r]);
    }
  }
}

// Adds the sums of a block's groups of lanes in a fixed tree; the first group has the result.
template <int kBlock, int V, class Sum>
__device__ __forceinline__ void add_groups(Sum (&sums)[V], int lanes) {
  __shared__ Sum shared[kBlock / 2 * V];
  const int thread = threadIdx.x;
  for (int groups = kBlock / lanes / 2; groups > 0; groups /= 2) {
    const int half = groups * lanes;
    __syncthreads();
    if (thread >= half && thread < 2 * half) {
#pragma unroll
      for (int v = 0; v < V; ++v) shared[v * (kBlock / 2) + thread - half] = sums[v];
    }
    __syncthreads();
    if (thread < half) {
#pragma unroll
      for (int v = 0; v < V; ++v) sums[v] += shared[v * (kBlock / 2) + thread];
    }
  }
  __syncthreads();
}

// blockIdx.x is a tile, blockIdx.y walks the pieces of columns, blockIdx.z the slices.
template <int V, class Value, class Sum, class Id>
__global__ void tiles_kernel(const Value* __restrict__ values, const Id* __restrict__ keys,
                             const Id* __restrict__ positions,
                             const Bounds<Id>* __restrict__ bounds, Sum* __restrict__ partials,
                             Shape<Id> shape, int lanes, int pieces) {
  const int64_t count = shape.batch * shape.entries;
  const Id rows = static_cast<Id>(shape.batch * shape.axis_size);
  const int64_t begin = int64_t{blockIdx.x} * kTile;
  const int64_t end = min(begin + kTile, count);
  const Id ends[2] = {keys[begin], keys[end - 1]};
  const int group = threadIdx.x / lanes, groups = kThreads / lanes;

  for (int which = 0; which < 2; ++which) {  // the conditions are the same for a whole block
    const Id key = ends[which];
    if (key == rows || (which == 1 && key == ends[0])) continue;
    const Bounds<Id> run = bounds[key];
    if (!run.is_long()) continue;
    const int64_t from = max(begin, static_cast<int64_t>(run.begin)),
                  to = min(end, static_cast<int64_t>(run.end));
    for (int64_t slice = blockIdx.z; slice < shape.outer; slice += gridDim.z) {
      const int64_t offset = Slice<Id>(shape, key, slice).values_offset;
      for (int piece = blockIdx.y; piece < pieces; piece += gridDim.y) {
        const int64_t column = (piece * lanes + static_cast<int>(threadIdx.x) % lanes) * int64_t{V};
        Sum sums[V] = {};
        if (column < shape.inner) {
#pragma unroll 4
          for (int64_t entry = from + group; entry < to; entry += groups) {
            add<V>(sums, *reinterpret_cast<const Vector<Value, V>*>(
                             values + (positions[entry] + offset) * shape.inner + column));
          }
        }
        add_groups<kThreads>(sums, lanes);
        if (group == 0 && column < shape.inner) {
          const int64_t slot = (2 * int64_t{blockIdx.x} + which) * shape.outer + slice;
#pragma unroll
          for (int v = 0; v < V; ++v) partials[slot * shape.inner + column + v] = sums[v];
        }
      }
    }
  }
}

// A block looks at kJoinTiles tiles for long runs that start there, and writes their rows.
template <int V, class Value, class Sum, class Id>
__global__ void join_kernel(const Id* __restrict__ keys, const Bounds<Id>* __restrict__ bounds,
                            const Sum* __restrict__ partials, Value* __restrict__ result,
                            Shape<Id> shape, int lanes, int pieces) {
  const int64_t count = shape.batch * shape.entries;
  __shared__ Id starting[kJoinTiles];  // the row whose long run starts in the tile
  const Id none = static_cast<Id>(shape.batch * shape.axis_size);
  if (threadIdx.x < kJoinTiles) {
    const int64_t begin = (int64_t{blockIdx.x} * kJoinTiles + threadIdx.x) * kTile;
    Id key = begin < count ? keys[min(begin + kTile, count) - 1] : none;
    if (key != none && !(bounds[key].is_long() && bounds[key].begin >= begin)) key = none;
    starting[threadIdx.x] = key;
  }
  __syncthreads();

  const int group = threadIdx.x / lanes, groups = kJoinThreads / lanes;
  for (int candidate = 0; candidate < kJoinTiles; ++candidate) {
    const Id key = starting[candidate];
    if (key == none) continue;
    const Bounds<Id> run = bounds[key];
    const int64_t tile = int64_t{blockIdx.x} * kJoinTiles + candidate;
    const int64_t last = (static_cast<int64_t>(run.end) - 1) / kTile;
    for (int64_t slice = blockIdx.z; slice < shape.outer; slice += gridDim.z) {
      for (int piece = blockIdx.y; piece < pieces; piece += gridDim.y) {
        const int64_t column = (piece * lanes + static_cast<int>(threadIdx.x) % lanes) * int64_t{V};
        Sum sums[V] = {};
        if (column < shape.inner) {
#pragma unroll 4
          for (int64_t t = tile + group; t <= last; t += groups) {
            // In its first tile the run is the tile's second, unless it starts with the tile.
            const int which = t == tile && run.begin > tile * kTile;
            const int64_t slot = (2 * t + which) * shape.outer + slice;
#pragma unroll
            for (int v = 0; v < V; ++v) sums[v] += partials[slot * shape.inner + column + v];
          }
        }
        add_groups<kJoinThreads>(sums, lanes);
        if (group == 0 && column < shape.inner) {
          const int64_t row =
              static_cast<int64_t>(key) + Slice<Id>(shape, key, slice).result_offset;
          store<V>(result + row * shape.inner + column, sums);
        }
      }
    }
  }
}

}  // namespace torch_ops::sorted
