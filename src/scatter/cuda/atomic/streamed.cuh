// scatter_add by atomics, for rows whose length is not a multiple of a vector of floats, if they
// are long or many, and for many short rows of whole vectors. No torch.
//
// Lanes walk the values in memory order, so the atomics of a row share their way to the cache. A
// block copies the values of a tile of entries to shared memory with asynchronous copies: their
// bytes in flight need no registers, and need not wait for the index. If entries meet in a warp,
// the values of a row are added up first, from there.
#pragma once

#include <cstdint>

#include "common/cuda/async_copy.cuh"
#include "common/cuda/fast_divisor.cuh"
#include "common/cuda/vectorized.cuh"
#include "scatter/cuda/atomic/atomic.cuh"
#include "scatter/sum/atomic_cut.h"

namespace torch_ops::atomic {

struct StreamedTiles : StreamedCut {
  FastDivisor by_columns;

  explicit StreamedTiles(const StreamedCut& cut)
      : StreamedCut(cut), by_columns(static_cast<uint32_t>(cut.columns)) {}

  // Of dynamic shared memory: a tile's values, at the same place in 16 bytes as in memory.
  int64_t shared_bytes(int64_t value_bytes) const {
    return int64_t{entries} * columns * value_bytes + kVectorBytes;
  }
};

// Begins to copy `count` values to shared memory, to the same place in 16 bytes as in global
// memory, and returns that place. `to` has room for 16 bytes more.
template <class Value>
__device__ __forceinline__ const Value* stream_values(const Value* from, int count, void* to) {
  constexpr int kWide = kVectorSize<Value>;
  using Wide = Vector<Value, kWide>;
  const int thread = static_cast<int>(threadIdx.x);
  const auto shift =
      static_cast<int>(reinterpret_cast<uintptr_t>(from) % kVectorBytes / sizeof(Value));
  Value* values = static_cast<Value*>(to) + shift;
  const int head = min((kWide - shift) % kWide, count);
  const int wide = (count - head) / kWide, tail = head + wide * kWide;
  if (thread < head) values[thread] = from[thread];
  if (thread < count - tail) values[tail + thread] = from[tail + thread];
#pragma unroll 4
  for (int i = thread; i < wide; i += kThreads) {
    copy_async(reinterpret_cast<Wide*>(values + head) + i,
               reinterpret_cast<const Wide*>(from + head) + i);
  }
  return values;
}

constexpr int64_t kBeyond =
    -2;  // the place of no entry: that of lanes after the last, which stay there

// Entries that a warp has read at a time, grouped by place.
struct GroupedEntries {
  static constexpr uint16_t kLast = 1 << 15;  // added to the number of one that ends its group
  int64_t places[32];
  uint16_t numbers[32];  // in the tile
};

// Adds up each group of the `count` entries of `set` in a column, from the tile's `values` there,
// and adds the sums to `table`, there.
template <class Value, class Sum>
__device__ __forceinline__ void add_groups(const GroupedEntries& set, int count,
                                           const Value* values, int columns, int64_t inner,
                                           Sum* table) {
  constexpr int kAhead = 4;
  Sum sum = 0;
#pragma unroll 1
  for (int from = 0; from < count; from += kAhead) {
    uint32_t numbers[kAhead];
    Value loaded[kAhead];
#pragma unroll
    for (int k = 0; k < kAhead; ++k) numbers[k] = set.numbers[from + k];
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      loaded[k] = values[(numbers[k] & ~GroupedEntries::kLast) * columns];
    }
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      sum += static_cast<Sum>(loaded[k]);
      if ((numbers[k] & GroupedEntries::kLast) == 0) continue;
      const int64_t place = set.places[from + k];
      if (place >= 0) atomicAdd(table + place * inner, sum);
      sum = 0;
    }
  }
}

// call.grid counts rows.
template <class Value, class Sum>
__global__ void __launch_bounds__(kThreads, 5)
    add_streamed_kernel(const Value* __restrict__ values, IndexView index, Sum* __restrict__ table,
                        RowLayout layout, AtomicCall call, StreamedTiles tiles,
                        const __grid_constant__ IndexErrorSite errors) {
  constexpr int K = StreamedCut::kScanned;
  extern __shared__ __align__(16) unsigned char shared[];
  __shared__ GroupedEntries sets[StreamedCut::kMost / 32];
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  const uint32_t tile = call.block() / tiles.pieces;
  const int64_t first_column = int64_t{call.block() % tiles.pieces} * tiles.columns;
  // Of several pieces the last may be shorter; then a tile is one entry.
  const auto columns = static_cast<int>(min(int64_t{tiles.columns}, layout.inner - first_column));

  for (int64_t number = call.first_chunk(); number < call.grid.chunks;
       number += call.chunk_step()) {
    const RowGrid::Chunk chunk = call.grid.chunk(number);
    const int64_t first = int64_t{tile} * tiles.entries;
    if (first >= chunk.words) continue;  // the same for the whole block
    const int count = static_cast<int>(min(int64_t{tiles.entries}, int64_t{chunk.words} - first));
    const int used = (count + 31) / 32;  // of the sets
    const Value* streamed = stream_values(
        values + (chunk.row + first) * layout.inner + first_column, count * columns, shared);

    int64_t entries[K];
    load_entries(index, layout, call, chunk, first + thread, first + count - 1, entries);
    BadEntry bad;
    bool follows = false;  // one of the thread's entries another one, of its set and its row
#pragma unroll
    for (int k = 0; k < K; ++k) {
      const int i = thread + k * kThreads;
      if (i / 32 >= used) break;
      const int64_t row = first + i;
      int64_t place = kBeyond;
      if (i < count) {
        const auto slab = chunk.slab + call.grid.place_row(chunk, static_cast<uint32_t>(row)).slab;
        place = find_place(entries[k], slab, chunk.row + row, layout, bad);
      }
      const unsigned peers = find_peers(place, call.wide);
      const bool behind = place >= 0 && __ffs(peers) - 1 != lane;
      follows |= behind;
      const bool any = __any_sync(kAllLanes, behind);
      const int to = any ? rank_in_groups(peers) : lane;
      const bool last = !any || peers >> lane == 1;
      sets[i / 32].places[to] = place;
      sets[i / 32].numbers[to] =
          static_cast<uint16_t>(min(i, count - 1)) | (last ? GroupedEntries::kLast : 0);
    }
    wait_for_copies();
    const int crowded = __syncthreads_count(follows);

    wait_for_kernel_before();
    Sum* to = table + first_column;
    if (16 * crowded <= min(count, kThreads)) {
#pragma unroll 4
      for (int at = thread; at < count * columns; at += kThreads) {
        uint32_t column;
        const uint32_t i = tiles.by_columns.divide(static_cast<uint32_t>(at), column);
        const int64_t place = sets[i / 32].places[i % 32];
        const uint32_t number = sets[i / 32].numbers[i % 32] & ~GroupedEntries::kLast;
        if (place >= 0) {
          atomicAdd(to + place * layout.inner + column,
                    static_cast<Sum>(streamed[number * columns + column]));
        }
      }
    } else {
      for (int at = thread; at < used * columns; at += kThreads) {
        uint32_t column;
        const uint32_t set = tiles.by_columns.divide(static_cast<uint32_t>(at), column);
        const int entries_of_set = min(32, count - static_cast<int>(set) * 32);
        add_groups(sets[set], entries_of_set, streamed + column, columns, layout.inner,
                   to + column);
      }
    }
    bad.record(errors, call.first_row);
    __syncthreads();  // before the next chunk's values
  }
}

}  // namespace torch_ops::atomic
