// Totals of entries that go to few rows, on raw pointers. Atomics would wait for each other there.
// No torch.
//
// A total is a type like Sums: of V adjacent columns. Each lane has V columns, and its own totals
// of all rows in shared memory, to which nobody else adds: no atomics, and no conflicts of banks.
// At the end a block joins the totals of its lanes that have the same columns, and join_kernel
// those of blocks, both in a fixed order.
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

struct SumOptions {
  bool in_place;
};

template <int V, class Sum>
struct Sums {
  static constexpr int kColumns = V;
  using Column = Sums<1, Sum>;  // V of them are a total
  using Options = SumOptions;   // of a call
  Vector<Sum, V> sums;

  // Added to a value, -0 does not change it, not even -0.
  __device__ __forceinline__ Sums() {
#pragma unroll
    for (int v = 0; v < V; ++v) sums.values[v] = std::is_integral_v<Sum> ? Sum(0) : Sum(-0.0);
  }

  // Adds the values of an entry, whose number in its slab is `place`.
  template <class Value>
  __device__ __forceinline__ void add(const Vector<Value, V>& values, int64_t /*place*/, Options) {
#pragma unroll
    for (int v = 0; v < V; ++v) sums.values[v] += static_cast<Sum>(values.values[v]);
  }
  __device__ __forceinline__ void join(const Sums& other) {
#pragma unroll
    for (int v = 0; v < V; ++v) sums.values[v] += other.sums.values[v];
  }

  template <class Result>
  __device__ __forceinline__ void write(Result* to, Options options) const {
#pragma unroll
    for (int v = 0; v < V; ++v) {
      const Sum start = options.in_place ? static_cast<Sum>(to[v]) : Sum(0);
      to[v] = static_cast<Result>(start + sums.values[v]);
    }
  }
};

// Blocks: x parts of slabs, y strips. Writes totals [slab, part, row, column] to `partials`; if
// slabs have one part each, the result.
template <class Total, class Value, class Result>
__global__ void __launch_bounds__(PrivatizedCut::threads_for(Total::kColumns),
                                  PrivatizedCut::kBlocks)
    total_kernel(const Value* __restrict__ values, IndexView index, Result* result, Total* partials,
                 const __grid_constant__ RowLayout layout, IndexRule rule, PrivatizedCut cut,
                 typename Total::Options options, const __grid_constant__ IndexErrorSite errors) {
  constexpr int V = Total::kColumns;
  constexpr int kJoined =
      sizeof(Total) > 4 ? 4 : 8;  // rows, whose loads do not wait for each other
  constexpr int K = PrivatizedCut::kAhead, kNamed = PrivatizedCut::kNamed;
  using Word = Vector<Value, V>;
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
  auto* own = reinterpret_cast<Total*>(memory) + thread;
  auto* rows_named = reinterpret_cast<uint16_t*>(memory + cut.table_bytes);
#pragma unroll 4
  for (int row = 0; row <= rows; ++row) own[row * threads] = Total();

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
  // Adds K entries of a group, from one of the tile on; `all`: the tile has so many more.
  const auto add_entries = [&](auto all, int entry, int tile, int count) {
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
    for (int k = 0; k < K; ++k) {
      Total& total = own[named_rows[k] * threads];
      Total sum = total;
      sum.add(words[k], first + tile + entry + k * groups, options);
      total = sum;
    }
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
        add_entries(std::true_type(), entry, tile, count);
      }
      if (entry < count) add_entries(std::false_type(), entry, tile, count);
    }
  }

  // Half of the groups join the totals of the other half.
  for (int left = groups; left > 1;) {
    const int half = (left + 1) / 2;
    __syncthreads();
    if (group < left - half) {
      const Total* other = own + half * cut.lanes;
      for (int row = 0; row < rows; row += kJoined) {
        Total joined[kJoined], others[kJoined];
#pragma unroll
        for (int k = 0; k < kJoined; ++k) {
          joined[k] = own[min(row + k, rows) * threads];
          others[k] = other[min(row + k, rows) * threads];
        }
#pragma unroll
        for (int k = 0; k < kJoined; ++k) {
          joined[k].join(others[k]);
          own[min(row + k, rows) * threads] = joined[k];
        }
      }
    }
    left = half;
  }
  __syncthreads();
  if (!live) return;
  own -= group * cut.lanes;
  for (int row = group; row < rows; row += groups) {
    const Total& total = own[row * threads];
    if (cut.parts > 1) {
      partials[((int64_t{blockIdx.x} * rows + row) * layout.inner + column) / V] = total;
    } else {
      total.write(result + (slab * rows + row) * layout.inner + column, options);
    }
  }
}

constexpr int kJoinThreads = 512;

// Joins the parts of each slab, and writes the result. A block has some of its columns, x, and for
// each some lanes, y.
template <class Total, class Result>
__global__ void __launch_bounds__(kJoinThreads)
    join_kernel(const Total* partials, Result* result, int64_t slabs, int64_t slab_columns,
                int64_t parts, typename Total::Options options) {
  extern __shared__ __align__(16) unsigned char memory[];
  wait_for_kernel_before();
  const auto own = static_cast<int>(threadIdx.x), columns = static_cast<int>(blockDim.x);
  const auto lane = static_cast<int>(threadIdx.y), lanes = static_cast<int>(blockDim.y);
  const int64_t at = int64_t{blockIdx.x} * columns + own;
  const bool live = at < slabs * slab_columns;
  auto* totals = reinterpret_cast<Total*>(memory) + own;  // [lane, column]
  Total total;
  if (live) {
    const int64_t slab = at / slab_columns;
    const Total* from = partials + (slab * (parts - 1) * slab_columns + at);
#pragma unroll 4
    for (int64_t part = lane; part < parts; part += lanes) total.join(from[part * slab_columns]);
  }
  totals[lane * columns] = total;
  __syncthreads();
  if (lane == 0 && live) {
    for (int i = 1; i < lanes; ++i) total.join(totals[i * columns]);
    total.write(result + at, options);
  }
}

}  // namespace torch_ops::privatized
