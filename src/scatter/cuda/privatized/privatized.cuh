// scatter_add to few rows, on raw pointers. Atomics would wait for each other there. No torch.
//
// Each lane has a column, or a vector of them, and its own sums of all rows in shared memory, to
// which nobody else adds: no atomics, and no conflicts of banks. At the end a block adds up the
// sums of its lanes that have the same columns, and join_kernel those of blocks, both in a fixed
// order.
#pragma once

#include <cstdint>
#include <type_traits>

#include "common/cuda/kernel_overlap.cuh"
#include "common/cuda/vectorized.cuh"
#include "common/indexing/index_view.cuh"
#include "common/layout/row_layout.h"
#include "scatter/cuda/entries.cuh"
#include "scatter/sum/privatized_cut.h"

namespace torch_ops::privatized {

// What sums begin with: added to a value, it does not change it, not even -0.
template <class Sum>
__device__ __forceinline__ Sum nothing() {
  return std::is_integral_v<Sum> ? Sum(0) : Sum(-0.0);
}

template <int V, class Sum, class Value>
__device__ __forceinline__ void add(Vector<Sum, V>& to, const Vector<Value, V>& values) {
  Vector<Sum, V> sums = to;
#pragma unroll
  for (int v = 0; v < V; ++v) sums.values[v] += static_cast<Sum>(values.values[v]);
  to = sums;
}

// A sum as an element of the result.
template <class Sum, class Result>
__device__ __forceinline__ void write(Result* to, Sum sum, bool in_place) {
  *to = static_cast<Result>((in_place ? static_cast<Sum>(*to) : Sum(0)) + sum);
}

// Blocks: x parts of slabs, y strips. Writes sums [slab, part, row, column] to `partials`; if
// slabs have one part each, the result.
template <int V, class Value, class Sum, class Result>
__global__ void __launch_bounds__(PrivatizedCut::threads_for(V), PrivatizedCut::kBlocks)
    sum_kernel(const Value* __restrict__ values, IndexView index, Result* result, Sum* partials,
               const __grid_constant__ RowLayout layout, IndexRule rule, PrivatizedCut cut,
               bool in_place, const __grid_constant__ IndexErrorSite errors) {
  constexpr int K = PrivatizedCut::kAhead, kNamed = PrivatizedCut::kNamed;
  using Word = Vector<Value, V>;
  using Sums = Vector<Sum, V>;
  extern __shared__ __align__(16) unsigned char memory[];
  let_next_kernel_begin();
  const auto thread = static_cast<int>(threadIdx.x), threads = cut.threads;
  const auto rows = static_cast<int>(layout.axis_size);
  const int group = thread / cut.lanes, groups = threads / cut.lanes;
  const int64_t column = (int64_t{blockIdx.y} * cut.lanes + thread - group * cut.lanes) * V;
  const int64_t slab = blockIdx.x / cut.parts, part = blockIdx.x - slab * cut.parts;
  const int64_t first = part * cut.part_entries;
  const auto entries = static_cast<int>(min(cut.part_entries, layout.entries - first));

  // [row, thread]; the last row is that of entries which name none.
  auto* own = reinterpret_cast<Sums*>(memory) + thread;
  auto* rows_named = reinterpret_cast<uint16_t*>(memory + cut.table_bytes);
  Sums none;
#pragma unroll
  for (int v = 0; v < V; ++v) none.values[v] = nothing<Sum>();
#pragma unroll 4
  for (int row = 0; row <= rows; ++row) own[row * threads] = none;

  const int64_t batch = layout.outer == 1 ? slab : slab / layout.outer;
  const IndexView named_from =
      index.from(batch * layout.index_batch_stride + first * layout.index_entry_stride);
  const auto stride = static_cast<int>(layout.index_entry_stride);
  int64_t named[kNamed];
  const auto read_index = [&](int tile) {
    int positions[kNamed];
#pragma unroll
    for (int k = 0; k < kNamed; ++k) {
      positions[k] = min(tile + thread + k * threads, entries - 1) * stride;
    }
    named_from.load(positions, named);
  };
  const bool live = group < groups && column < layout.inner;
  const auto inner = static_cast<int>(layout.inner);
  const Value* from = values + (slab * layout.entries + first) * layout.inner + column;
  // Adds K entries of a group; `all`: the tile has so many more.
  const auto add_entries = [&](auto all, int entry, int count) {
    Word words[K];
    int named_rows[K];
    const auto read = [&](auto aligned) {
#pragma unroll
      for (int k = 0; k < K; ++k) {
        const int at = all() ? entry + k * groups : min(entry + k * groups, count - 1);
        const Value* row = from + at * inner;
        if constexpr (aligned()) {
          words[k] = load_vector<V>(row);
        } else {
#pragma unroll
          for (int v = 0; v < V; ++v) words[k].values[v] = load_in_order(row + v);
        }
        named_rows[k] = all() || entry + k * groups < count ? rows_named[at] : rows;
      }
    };
    if (V == 1 || cut.aligned) {
      read(std::true_type());
    } else {
      read(std::false_type());
    }
#pragma unroll
    for (int k = 0; k < K; ++k) add(own[named_rows[k] * threads], words[k]);
  };

  // A tile of the index is read while the block adds the previous one's values.
  read_index(0);
  const int tile_entries = kNamed * threads;
  for (int tile = 0; tile < entries; tile += tile_entries, from += int64_t{tile_entries} * inner) {
    const int count = min(tile_entries, entries - tile);
    apply_rule(rule, named);
    __syncthreads();
#pragma unroll
    for (int k = 0; k < kNamed; ++k) {
      const int at = thread + k * threads;
      const bool is_row = in_range(named[k], rows);
      rows_named[at] = static_cast<uint16_t>(is_row ? named[k] : rows);
      if (!is_row && at < count && blockIdx.y == 0) {
        record_bad_entry(errors, slab * layout.entries + first + tile + at, named[k]);
      }
    }
    __syncthreads();
    if (tile + tile_entries < entries) read_index(tile + tile_entries);
    if (live) {
      int entry = group;
      for (; entry + (K - 1) * groups < count; entry += K * groups) {
        add_entries(std::true_type(), entry, count);
      }
      if (entry < count) add_entries(std::false_type(), entry, count);
    }
  }

  // Half of the groups add the sums of the other half.
  for (int left = groups; left > 1;) {
    const int half = (left + 1) / 2;
    __syncthreads();
    if (group < left - half) {
      const Sums* other = own + half * cut.lanes;
#pragma unroll 4
      for (int row = 0; row < rows; ++row) add(own[row * threads], other[row * threads]);
    }
    left = half;
  }
  __syncthreads();
  if (!live) return;
  own -= group * cut.lanes;
  for (int row = group; row < rows; row += groups) {
    const Sums sums = own[row * threads];
    if (cut.parts > 1) {
      store(partials + (int64_t{blockIdx.x} * rows + row) * layout.inner + column, sums);
    } else {
      Result* to = result + (slab * rows + row) * layout.inner + column;
#pragma unroll
      for (int v = 0; v < V; ++v) write(to + v, sums.values[v], in_place);
    }
  }
}

constexpr int kJoinThreads = 512;

// Adds up the parts of each slab, and writes the result. A block has some of its values, x, and
// for each some lanes, y.
template <class Sum, class Result>
__global__ void __launch_bounds__(kJoinThreads)
    join_kernel(const Sum* partials, Result* result, int64_t slabs, int64_t slab_sums,
                int64_t parts, bool in_place) {
  __shared__ Sum sums[kJoinThreads];
  wait_for_kernel_before();
  const auto own = static_cast<int>(threadIdx.x), values = static_cast<int>(blockDim.x);
  const auto lane = static_cast<int>(threadIdx.y), lanes = static_cast<int>(blockDim.y);
  const int64_t at = int64_t{blockIdx.x} * values + own;
  const bool live = at < slabs * slab_sums;
  Sum sum = nothing<Sum>();
  if (live) {
    const int64_t slab = at / slab_sums;
    const Sum* from = partials + (slab * (parts - 1) * slab_sums + at);
#pragma unroll 4
    for (int64_t part = lane; part < parts; part += lanes) sum += from[part * slab_sums];
  }
  sums[lane * values + own] = sum;
  __syncthreads();
  if (lane == 0 && live) {
    for (int i = 1; i < lanes; ++i) sum += sums[i * values + own];
    write(result + at, sum, in_place);
  }
}

}  // namespace torch_ops::privatized
