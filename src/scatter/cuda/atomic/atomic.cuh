// scatter_add by atomics, in no fixed order: for short rows, for sums too small to be worth a sort,
// and for integers. On raw pointers, no torch.
//
// The atomics of entries that name the same row would wait for each other. So entries that go to
// one row are added up first, as far as they meet: in a warp or in a tile.
#pragma once

#include <cstdint>

#include "common/cuda/kernel_overlap.cuh"
#include "common/cuda/vectorized.cuh"
#include "common/cuda/warp.cuh"
#include "common/indexing/index_error.cuh"
#include "common/indexing/index_mode.h"
#include "common/indexing/index_view.cuh"
#include "common/layout/row_grid.cuh"
#include "common/layout/row_layout.h"
#include "scatter/cuda/entries.cuh"
#include "scatter/cuda/sorted/runs.cuh"
#include "scatter/sum/atomic_cut.h"

namespace torch_ops::atomic {

constexpr int kThreads = kRunThreads;

// ---- Adding -------------------------------------------------------------------------------------

// V adjacent sums, in one instruction if there is one: from compute capability 9.0 on, for four
// floats or two at an address that is a multiple of their size.
template <int V, class Sum>
__device__ __forceinline__ void add_atomically(Sum* to, const Sum (&values)[V]) {
#pragma unroll
  for (int v = 0; v < V; ++v) atomicAdd(to + v, values[v]);
}

#if __CUDA_ARCH__ >= 900
template <>
__device__ __forceinline__ void add_atomically<4, float>(float* to, const float (&values)[4]) {
  asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(values[0]),
               "f"(values[1]), "f"(values[2]), "f"(values[3])
               : "memory");
}
template <>
__device__ __forceinline__ void add_atomically<2, float>(float* to, const float (&values)[2]) {
  asm volatile("red.global.add.v2.f32 [%0], {%1, %2};" ::"l"(to), "f"(values[0]), "f"(values[1])
               : "memory");
}
#endif

// Adds up the values of each set of lanes that are `peers`, which takes as many rounds as the
// size of the largest set has bits: in each, a lane adds the sum of the next of its peers, and
// every other one drops out. Returns whether this lane has its set's sum. All lanes of the warp
// must call this.
template <int V, class Sum>
__device__ __forceinline__ bool add_up_peers(unsigned peers, Sum (&values)[V]) {
  const unsigned lane = threadIdx.x % 32;
  const unsigned below = peers & ((1u << lane) - 1);
  unsigned above = peers & ~below & ~(1u << lane);
  int rank = __popc(below);  // among those that are left
  while (__any_sync(kAllLanes, above != 0)) {
    const int next = above != 0 ? __ffs(above) - 1 : static_cast<int>(lane);
#pragma unroll
    for (int v = 0; v < V; ++v) {
      const Sum other = __shfl_sync(kAllLanes, values[v], next);
      if (above != 0) values[v] += other;
    }
    above &= ~__ballot_sync(kAllLanes, rank & 1);
    rank >>= 1;
  }
  return below == 0;
}

// The lanes whose place is this lane's. `wide`: places may exceed 32 bits.
__device__ __forceinline__ unsigned find_peers(int64_t place, bool wide) {
  unsigned peers = __match_any_sync(kAllLanes, static_cast<uint32_t>(place));
  if (wide) peers &= __match_any_sync(kAllLanes, static_cast<uint32_t>(place >> 32));
  return peers;
}

// What a launch knows of its tensors, in addition to their layout.
struct AtomicCall {
  RowGrid grid;
  int64_t first_row;  // of the launch's entries, among those of the call
  // blockIdx.x walks chunks that run together, y a chunk's blocks, and z sets of such chunks;
  // or x a chunk's blocks, and y all chunks.
  bool chunks_in_x;
  bool wide;  // the result has 2^32 values or more
  IndexRule rule;

  __device__ int64_t first_chunk() const {
    return chunks_in_x ? blockIdx.x + int64_t{gridDim.x} * blockIdx.z : blockIdx.y;
  }
  __device__ int64_t chunk_step() const {
    return chunks_in_x ? int64_t{gridDim.x} * gridDim.z : gridDim.y;
  }
  __device__ uint32_t block() const { return chunks_in_x ? blockIdx.y : blockIdx.x; }
};

constexpr int kUnroll = 4;        // entries, or values, of a lane
constexpr int64_t kDropped = -1;  // the place of an entry that adds nothing

// Which row of [batch, outer, axis_size] an entry adds to: kDropped if it is out of range.
// `row` is the entry's own.
__device__ __forceinline__ int64_t find_place(int64_t entry, int64_t slab, int64_t row,
                                              const RowLayout& layout, BadEntry& bad) {
  if (in_range(entry, layout.axis_size)) return slab * layout.axis_size + entry;
  bad = {row, entry};
  return kDropped;
}

// N entries of a chunk's rows, a block's threads apart, from `row` on; after the last row, its
// entry. In the rule's form.
template <int N>
__device__ __forceinline__ void load_entries(const IndexView& index, const RowLayout& layout,
                                             const AtomicCall& call, const RowGrid::Chunk& chunk,
                                             int64_t row, int64_t last, int64_t (&entries)[N]) {
  int64_t positions[N];
#pragma unroll
  for (int k = 0; k < N; ++k) {
    const RowGrid::Place at =
        call.grid.place_row(chunk, static_cast<uint32_t>(min(row + k * kThreads, last)));
    int64_t batch, slice;
    call.grid.split_slab(chunk.slab + at.slab, batch, slice);
    positions[k] = batch * layout.index_batch_stride + at.entry * layout.index_entry_stride;
  }
  index.load(positions, entries);
  apply_rule(call.rule, entries);
}

// Where the entry of a chunk's row is in an index without gaps, of which all slabs of a batch
// have the same entries.
__device__ __forceinline__ int64_t find_adjacent(const RowLayout& layout, const AtomicCall& call,
                                                 const RowGrid::Chunk& chunk, uint32_t row) {
  if (layout.outer == 1) return chunk.row + row;
  const RowGrid::Place at = call.grid.place_row(chunk, row);
  int64_t batch, slice;
  call.grid.split_slab(chunk.slab + at.slab, batch, slice);
  return batch * layout.entries + at.entry;
}

// Adds up the sums of a lane's own places if neighbours are equal, as in a sorted index.
template <int D, class Place, class Sum>
__device__ __forceinline__ void add_up_neighbours(Place (&places)[kUnroll],
                                                  Sum (&sums)[kUnroll][D]) {
#pragma unroll
  for (int k = 0; k + 1 < kUnroll; ++k) {
    if (places[k] != places[k + 1]) continue;
    places[k] = kDropped;
#pragma unroll
    for (int d = 0; d < D; ++d) sums[k + 1][d] += sums[k][d];
  }
}

// Do several lanes of the warp share a place? Then it is worth looking for peers in all of its
// places, which takes longer than a few atomics.
__device__ __forceinline__ bool is_shared(int64_t place, bool wide) {
  const unsigned peers = find_peers(place, wide);
  const bool doubled = (peers & (peers - 1)) != 0 && place != kDropped;
  return count_lanes(doubled) > 2;
}

// If eight lanes or more have one place as their last, adds up all that the warp has for it, in
// one atomic instead of one for each of a lane's places: fewer that wait for each other, and fewer
// roundings to the size that the row's sum has by then. They are dropped. `peers`: the lanes whose
// last place is this lane's.
template <int D, class Sum>
__device__ __forceinline__ void add_crowd(unsigned peers, int64_t (&places)[kUnroll],
                                          Sum (&sums)[kUnroll][D], Sum* table) {
  constexpr int kCrowd = 8;
  const bool crowds = __popc(peers) >= kCrowd && places[kUnroll - 1] != kDropped;
  const unsigned crowded = __ballot_sync(kAllLanes, crowds);
  if (crowded == 0) return;
  const int64_t place = __shfl_sync(kAllLanes, places[kUnroll - 1], __ffs(crowded) - 1);
  Sum total[D] = {};
#pragma unroll
  for (int k = 0; k < kUnroll; ++k) {
    if (places[k] != place) continue;
    places[k] = kDropped;
#pragma unroll
    for (int d = 0; d < D; ++d) total[d] += sums[k][d];
  }
  sum_warp(total);
  if (threadIdx.x % 32 == 0) add_atomically<D>(table + place * D, total);
}

// ---- Rows of one value, of two or four floats: a lane per entry ---------------------------------

// A lane has four entries; call.grid counts entries. They may be adjacent if index and values
// are contiguous, aligned to four entries, and a batch's entries a multiple of four.
template <bool adjacent, int D, class Value, class Sum>
__global__ void __launch_bounds__(kThreads, !adjacent              ? 4
                                            : D * sizeof(Sum) <= 8 ? 6
                                                                   : 5)
    add_entries_kernel(const Value* __restrict__ values, IndexView index, Sum* __restrict__ table,
                       RowLayout layout, AtomicCall call,
                       const __grid_constant__ IndexErrorSite errors) {
  constexpr int K = kUnroll;
  constexpr uint32_t kStep = adjacent ? 1 : kThreads;
  const uint32_t first = call.block() * (kThreads * K) + threadIdx.x * (adjacent ? K : 1);
  for (int64_t number = call.first_chunk(); number < call.grid.chunks;
       number += call.chunk_step()) {
    const RowGrid::Chunk chunk = call.grid.chunk(number);
    int64_t places[K];
    Sum sums[K][D];
    BadEntry bad;
#pragma unroll
    for (int k = 0; k < K; ++k) {
      places[k] = kDropped;
#pragma unroll
      for (int d = 0; d < D; ++d) sums[k][d] = 0;
    }
    if (first < chunk.words) {
      const int64_t row = chunk.row + first;
      int64_t entries[K];
      if constexpr (adjacent) {
        index.load4(find_adjacent(layout, call, chunk, first), entries);
        apply_rule(call.rule, entries);
        Vector<Value, K> loaded[D];  // K rows of D values
#pragma unroll
        for (int d = 0; d < D; ++d) {
          loaded[d] = reinterpret_cast<const Vector<Value, K>*>(values + row * D)[d];
        }
#pragma unroll
        for (int k = 0; k < K; ++k) {
#pragma unroll
          for (int d = 0; d < D; ++d) {
            sums[k][d] = static_cast<Sum>(loaded[(k * D + d) / K].values[(k * D + d) % K]);
          }
        }
      } else {
        load_entries(index, layout, call, chunk, first, chunk.words - 1, entries);
#pragma unroll
        for (int k = 0; k < K; ++k) {
          const int64_t from = chunk.row + min(first + k * kStep, chunk.words - 1);
#pragma unroll
          for (int d = 0; d < D; ++d) sums[k][d] = static_cast<Sum>(values[from * D + d]);
        }
      }
#pragma unroll
      for (int k = 0; k < K; ++k) {
        const uint32_t at = first + k * kStep;
        if (!adjacent && at >= chunk.words) continue;
        // Adjacent entries are of one slab.
        const uint32_t slab = call.grid.place_row(chunk, adjacent ? first : at).slab;
        places[k] = find_place(entries[k], chunk.slab + slab, chunk.row + at, layout, bad);
      }
    }
    // If entries are read one by one, their rows are compared only where that pays.
    const bool shared = adjacent || is_shared(places[0], call.wide);
    add_up_neighbours(places, sums);
    wait_for_kernel_before();
    unsigned peers = 0;
    if (shared) {
      peers = find_peers(places[K - 1], call.wide);
      add_crowd<D>(peers, places, sums, table);
    }
#pragma unroll
    for (int k = K - 1; k >= 0; --k) {
      bool mine = places[k] != kDropped;
      if (shared) {
        if (k < K - 1) peers = find_peers(places[k], call.wide);
        mine &= add_up_peers<D>(mine ? peers : 0, sums[k]);
      }
      if (mine) add_atomically<D>(table + places[k] * D, sums[k]);
    }
    bad.record(errors, call.first_row);
  }
}

// ---- Other short rows, of small calls: a lane per value -----------------------------------------

// Like is_shared, if lanes have a value each of adjacent rows. Neighbours share a row in a sorted
// index too, whose atomics go to many rows: then it pays if eight lanes share a place, or
// if a lane's other values go to the row of its first (`again`).
__device__ __forceinline__ bool is_crowded(int64_t place, bool again, bool wide) {
  constexpr int kCrowd = 8;
  const unsigned peers = find_peers(place, wide);
  const int sharing = place == kDropped ? 0 : __popc(peers);
  if (__any_sync(kAllLanes, sharing >= kCrowd)) return true;
  return __any_sync(kAllLanes, again) && count_lanes(sharing > 1) > 2;
}

// Lanes walk the values in memory order, so the atomics of a row share their way to the cache.
// call.grid counts values.
template <class Value, class Sum>
__global__ void __launch_bounds__(kThreads, 5)
    add_values_kernel(const Value* __restrict__ values, IndexView index, Sum* __restrict__ table,
                      RowLayout layout, AtomicCall call,
                      const __grid_constant__ IndexErrorSite errors) {
  constexpr int K = kUnroll;
  for (int64_t number = call.first_chunk(); number < call.grid.chunks;
       number += call.chunk_step()) {
    const RowGrid::Chunk chunk = call.grid.chunk(number);
    const uint32_t first = call.block() * (kThreads * K) + threadIdx.x;
    int64_t positions[K], entries[K], places[K];
    int64_t slabs[K];
    Sum sums[K][1];
    BadEntry bad;
    int64_t first_place = kDropped;  // of the row that the first value goes to
    bool again = false;              // another goes there
#pragma unroll
    for (int k = 0; k < K; ++k) {
      // Beyond the end the last value is read again, and not added.
      const uint32_t word = min(first + k * kThreads, chunk.words - 1);
      const RowGrid::Place at = call.grid.place(chunk, word);
      int64_t batch, slice;
      call.grid.split_slab(chunk.slab + at.slab, batch, slice);
      positions[k] = batch * layout.index_batch_stride + at.entry * layout.index_entry_stride;
      sums[k][0] = static_cast<Sum>(values[chunk.row * layout.inner + word]);
      slabs[k] = chunk.slab + at.slab;
      places[k] = at.column;
    }
    index.load(positions, entries);
    apply_rule(call.rule, entries);
#pragma unroll
    for (int k = 0; k < K; ++k) {
      const uint32_t word = first + k * kThreads;
      const int64_t column = places[k];
      places[k] = kDropped;
      if (word >= chunk.words) continue;
      const int64_t row = find_place(entries[k], slabs[k],
                                     chunk.row + call.grid.by_words.divide(word), layout, bad);
      if (row != kDropped) places[k] = row * layout.inner + column;
      again |= k > 0 && row == first_place && row != kDropped;
      if (k == 0) first_place = row;
    }
    const bool shared = is_crowded(places[0], again, call.wide);
    wait_for_kernel_before();
#pragma unroll
    for (int k = 0; k < K; ++k) {
      bool mine = places[k] != kDropped;
      if (shared) mine &= add_up_peers<1>(find_peers(places[k], call.wide), sums[k]);
      if (mine) atomicAdd(table + places[k], sums[k][0]);
    }
    bad.record(errors, call.first_row);
  }
}

// ---- Elements of a small table: summed in shared memory -----------------------------------------

constexpr int kMostStagedThreads = 1024;

// A block sums `part` entries of a slab, a multiple of four, in shared memory and adds the sums to
// the slab's rows. A lane has four entries, adjacent as above or a block's threads apart.
// call.grid counts entries. `fresh`: the table is zeros so far.
template <bool adjacent, class Value, class Sum>
__global__ void __launch_bounds__(kMostStagedThreads)
    add_staged_kernel(const Value* __restrict__ values, IndexView index, Sum* __restrict__ table,
                      RowLayout layout, AtomicCall call, int64_t part, bool fresh,
                      const __grid_constant__ IndexErrorSite errors) {
  constexpr int K = kUnroll;
  extern __shared__ __align__(16) unsigned char shared[];
  Sum* sums = reinterpret_cast<Sum*>(shared);
  const auto axis_size = static_cast<uint32_t>(layout.axis_size);
  const bool only_block = fresh && part >= layout.entries;
  const int64_t step = adjacent ? 1 : blockDim.x;

  for (int64_t slab = blockIdx.y; slab < call.grid.slabs; slab += gridDim.y) {
    for (uint32_t i = threadIdx.x; i < axis_size; i += blockDim.x) sums[i] = 0;
    __syncthreads();

    int64_t batch, slice;
    call.grid.split_slab(slab, batch, slice);
    const int64_t slab_index = batch * layout.index_batch_stride;
    const int64_t slab_row = slab * layout.entries;
    const int64_t begin = int64_t{blockIdx.x} * part;
    const int64_t end = min(begin + part, layout.entries);
    for (int64_t at = begin; at < end; at += int64_t{blockDim.x} * K) {
      const int64_t row = at + threadIdx.x * (adjacent ? K : 1);
      int32_t places[K];
      Sum loaded[K][1];
      BadEntry bad;
#pragma unroll
      for (int k = 0; k < K; ++k) {
        places[k] = kDropped;
        loaded[k][0] = 0;
      }
      if (row < end) {
        int64_t entries[K];
        if constexpr (adjacent) {
          index.load4(slab_index + row, entries);
          const auto four = *reinterpret_cast<const Vector<Value, K>*>(values + slab_row + row);
#pragma unroll
          for (int k = 0; k < K; ++k) loaded[k][0] = static_cast<Sum>(four.values[k]);
        } else {
          int64_t positions[K];
#pragma unroll
          for (int k = 0; k < K; ++k) {
            // Beyond the end the last entry is read again, and not added.
            const int64_t entry = min(row + k * step, end - 1);
            positions[k] = slab_index + entry * layout.index_entry_stride;
            loaded[k][0] = static_cast<Sum>(values[slab_row + entry]);
          }
          index.load(positions, entries);
        }
#pragma unroll
        for (int k = 0; k < K; ++k) {
          if (!adjacent && row + k * step >= end) continue;
          const int64_t entry = call.rule.rewrites() ? call.rule.resolve(entries[k]) : entries[k];
          places[k] = static_cast<int32_t>(
              find_place(entry, /*slab=*/0, slab_row + row + k * step, layout, bad));
        }
      }
      // Of entries that are not adjacent, lanes at a part's end have only their first ones; and
      // neighbours that are joined leave the last.
      bool merge = !adjacent && is_shared(places[0], /*wide=*/false);
      add_up_neighbours(places, loaded);
      if (adjacent) merge = is_shared(places[K - 1], /*wide=*/false);
#pragma unroll
      for (int k = 0; k < K; ++k) {
        bool mine = places[k] != kDropped;
        if (merge) {
          mine &= add_up_peers<1>(__match_any_sync(kAllLanes, places[k]), loaded[k]);
        }
        if (mine) atomicAdd(sums + places[k], loaded[k][0]);
      }
      bad.record(errors, call.first_row);
    }
    __syncthreads();

    wait_for_kernel_before();
    Sum* to = table + slab * layout.axis_size;
    for (uint32_t i = threadIdx.x; i < axis_size; i += blockDim.x) {
      if (only_block) {
        to[i] = sums[i];
      } else if (sums[i] != Sum(0)) {
        atomicAdd(to + i, sums[i]);
      }
    }
    __syncthreads();  // before the next slab's sums
  }
}

// ---- Longer rows: grouped within a warp's entries -----------------------------------------------

// The position of a lane's entry once the warp's are grouped by their places: groups in the order
// of their first lanes, entries of a group in their own.
__device__ __forceinline__ int rank_in_groups(unsigned peers) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int first = __ffs(peers) - 1;
  // Entries of the groups up to this lane's, counted at their first lanes.
  const int before = scan_warp(first == lane ? __popc(peers) : 0);
  return __shfl_sync(kAllLanes, before, first) - __popc(peers) + count_before(peers);
}

// A tile's entries in the form for sum_runs: grouped by place, warp by warp. For a tile all runs
// are whole.
template <class Value>
struct LocalTile {
  static constexpr int V = kTileVector;
  const Value* rows_of_values;  // of the tile's first entry
  float* table;
  const int64_t* keys;    // grouped
  const uint16_t* order;  // their numbers in the tile
  int count;
  int64_t inner;
  int64_t column;

  __device__ __forceinline__ bool is_row(int64_t key) const { return key != kDropped; }
  __device__ __forceinline__ int64_t key(int i) const {
    return i >= 0 && i < count ? keys[i] : kDropped;
  }
  __device__ __forceinline__ int place(int i) const { return order[min(i, count - 1)]; }
  __device__ __forceinline__ Vector<Value, V> values(int place) const {
    return *reinterpret_cast<const Vector<Value, V>*>(rows_of_values + place * inner + column);
  }
  __device__ __forceinline__ void ends(int64_t) const {}
  __device__ __forceinline__ void whole(int64_t key, const Sums<V, float>& sums) const {
    add_atomically(table + key * inner + column, sums.values);
  }
  __device__ __forceinline__ void enters(const Sums<V, float>&) const {}
  __device__ __forceinline__ void leaves(const Sums<V, float>&) const {}
};

// kSpanned: the entries of a group.
template <int kSpanned, class Value>
__global__ void __launch_bounds__(kThreads, 4)
    add_tiles_kernel(const Value* __restrict__ values, IndexView index, float* __restrict__ table,
                     RowLayout layout, AtomicCall call, RowPieces split,
                     const __grid_constant__ IndexErrorSite errors) {
  constexpr int V = kTileVector;
  __shared__ RunEdges<Sums<V, float>> edges;
  __shared__ int64_t keys[TilesCut::kMostEntries];
  __shared__ uint16_t order[TilesCut::kMostEntries];
  const int thread = static_cast<int>(threadIdx.x);
  const int tile_entries = split.groups(kThreads) * kSpanned;  // a multiple of 32
  const uint32_t tile = call.block() / split.pieces;
  const int piece = static_cast<int>(call.block() % split.pieces);
  const int64_t own_column = (int64_t{piece} * split.lanes + thread % split.lanes) * V;
  const bool live = own_column < layout.inner;
  const int64_t column = live ? own_column : 0;

  for (int64_t number = call.first_chunk(); number < call.grid.chunks;
       number += call.chunk_step()) {
    const RowGrid::Chunk chunk = call.grid.chunk(number);
    const int64_t first = int64_t{tile} * tile_entries;
    if (first >= chunk.words) continue;  // the same for the whole block
    const int count = static_cast<int>(min(int64_t{tile_entries}, int64_t{chunk.words} - first));
    for (int i = thread; i < tile_entries; i += kThreads) {
      int64_t place = kDropped;
      BadEntry bad;
      if (i < count) {
        const int64_t row = first + i;
        int64_t entry[1];
        load_entries(index, layout, call, chunk, row, row, entry);
        const auto slab = chunk.slab + call.grid.place_row(chunk, static_cast<uint32_t>(row)).slab;
        place = find_place(entry[0], slab, chunk.row + row, layout, bad);
      }
      const unsigned peers = find_peers(place, call.wide);
      const int to = i / 32 * 32 + rank_in_groups(peers);
      keys[to] = place;
      order[to] = static_cast<uint16_t>(min(i, count - 1));
      bad.record(errors, call.first_row);
    }
    __syncthreads();

    LocalTile<Value> entries{values + (chunk.row + first) * layout.inner,
                             table,
                             keys,
                             order,
                             tile_entries,
                             layout.inner,
                             column};
    wait_for_kernel_before();
    sum_runs<kSpanned>(entries, edges, split.lanes, live);
  }
}

}  // namespace torch_ops::atomic
