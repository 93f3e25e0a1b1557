// The totals of runs: of sorted entries that go to one row. Common code of both ways of scatter_add
// with long rows, and of the other reductions. No torch.
//
// A total is a type like Sums: of V adjacent columns, of which a lane keeps one for its row.
//
// A block has a tile of sorted entries, a group of lanes in it a span of kSpan entries, and each
// lane of the group V adjacent columns. So every lane has equal work, however long the runs are.
// A run that ends inside its group's span is complete. The pieces of one that does not are left in
// shared memory, and the group in which the run starts adds them up.
#pragma once

#include <cstdint>

#include "common/cuda/vectorized.cuh"
#include "common/elementwise/joins.h"
#include "scatter/sum/run_shape.h"

namespace torch_ops {

// Sums, or another combination of two numbers by Op.
template <int V, class Sum, class Op = Plus>
struct Sums {
  static constexpr int kColumns = V;
  static constexpr int kBlocks = V < 8 ? 5 : 4;  // per multiprocessor, as registers allow
  using Part = Sum;                              // one lane leaves V of them for another
  struct Options {};                             // of a call
  Sum values[V];

  __device__ __forceinline__ Sums() {
#pragma unroll
    for (int v = 0; v < V; ++v) values[v] = Op::template identity<Sum>();
  }

  // The argument of `add`: the values at `from`, of the entry whose number is `place`.
  template <class Value, class Place>
  static __device__ __forceinline__ Vector<Value, V> load(const Value* from, Place /*place*/,
                                                          Options /*options*/) {
    return *reinterpret_cast<const Vector<Value, V>*>(from);
  }

  template <class Value>
  __device__ __forceinline__ void add(const Vector<Value, V>& more) {
#pragma unroll
    for (int v = 0; v < V; ++v) values[v] = Op::join(values[v], static_cast<Sum>(more.values[v]));
  }

  __device__ __forceinline__ void add(const Sum* more) {
#pragma unroll
    for (int v = 0; v < V; ++v) values[v] = Op::join(values[v], more[v]);
  }

  __device__ __forceinline__ void copy_to(Sum* to) const {
#pragma unroll
    for (int v = 0; v < V; ++v) to[v] = values[v];
  }

  // Starts again if `done`. No branch: the groups of a warp would diverge.
  __device__ __forceinline__ void clear_if(bool done) {
#pragma unroll
    for (int v = 0; v < V; ++v) values[v] = done ? Op::template identity<Sum>() : values[v];
  }

  // To the result, rounded.
  template <class Value, class Given>
  __device__ __forceinline__ void write(Value* to, Given /*options*/) const {
    Vector<Value, V> result;
#pragma unroll
    for (int v = 0; v < V; ++v) result.values[v] = static_cast<Value>(values[v]);
    store(to, result);
  }
};

// The values that the groups of a block leave for each other.
template <class Total>
struct RunEdges {
  using Part = typename Total::Part;
  Part heads[kRunThreads * Total::kColumns];  // of a run that came into the span from the left
  Part tails[kRunThreads * Total::kColumns];  // of one that starts there and goes on to the right
  bool through[kRunThreads];  // of a group: one run came in from the left and goes on to the right
  bool starts[kRunThreads];   // a run starts in the span and goes on
};

// Totals the runs of one tile, for the columns of this lane. `Entries` gives for entry `i` of the
// tile (from -1 to one after the tile's last)
//   key(i)     the row that it goes to
//   is_row(k)  is that one? Not if there is no entry, or a dropped one
//   place(i)   where its values are; some entry's place if there is none
//   values(p)  the values at a place, in this lane's columns, as the total loads them
// and receives
//   ends(key)           a run ends: to the lanes of one group
//   whole(key, sums)    the total of a run that starts and ends in the tile
//   enters(sums)        the part of a run that came into the tile from the left
//   leaves(sums)        the part of a run that starts in the tile and goes on to the right
// `live`: this lane has columns; otherwise it loads others' and writes nothing. All threads of the
// block must call this.
template <int kSpanned = kSpan, class Total, class Entries>
__device__ __forceinline__ void sum_runs(Entries& entries, RunEdges<Total>& edges, int lanes,
                                         bool live) {
  constexpr int V = Total::kColumns;
  const int thread = static_cast<int>(threadIdx.x);
  const int group = thread / lanes, groups = kRunThreads / lanes;
  const int first = group * kSpanned;

  Total sums;
  auto key = entries.key(first);
  const bool came_in = entries.is_row(key) && entries.key(first - 1) == key;
  bool from_left = came_in;
  bool goes_on = false;
#pragma unroll 1
  for (int at = first; at < first + kSpanned; at += kWindow) {
    // Keys and places together, then all values: no load waits for more than one other, or for a
    // branch. Values of missing entries are loaded needlessly.
    decltype(key) keys[kWindow + 1];
    decltype(entries.place(0)) places[kWindow];
    decltype(entries.values(places[0])) loaded[kWindow];
#pragma unroll
    for (int k = 0; k <= kWindow; ++k) keys[k] = entries.key(at + k);
#pragma unroll
    for (int k = 0; k < kWindow; ++k) places[k] = entries.place(at + k);
#pragma unroll
    for (int k = 0; k < kWindow; ++k) loaded[k] = entries.values(places[k]);
#pragma unroll
    for (int k = 0; k < kWindow; ++k) {
      // Few and short branches: the groups of a warp diverge.
      const bool here = entries.is_row(keys[k]);
      const bool last = here && keys[k + 1] != keys[k];
      if (here) {
        key = keys[k];
        goes_on = !last;
        sums.add(loaded[k]);
      }
      if (last) entries.ends(key);
      if (last && from_left) sums.copy_to(edges.heads + thread * V);
      if (last && !from_left && live) entries.whole(key, sums);
      from_left = from_left && !last;
      sums.clear_if(last);
    }
  }
  // The run that is open at the right edge of the span.
  if (thread % lanes == 0) {
    edges.through[group] = goes_on && from_left;
    edges.starts[group] = goes_on && !from_left;
  }
  if (goes_on) sums.copy_to((from_left ? edges.heads : edges.tails) + thread * V);
  __syncthreads();

  if (live) {
    const auto head_of = [&](int g) { return edges.heads + (thread + (g - group) * lanes) * V; };
    if (group == 0 && came_in) {
      Total part;
      part.add(head_of(0));
#pragma unroll 1
      for (int g = 0; edges.through[g] && g + 1 < groups; ++g) part.add(head_of(g + 1));
      entries.enters(part);
    }
    if (edges.starts[group]) {
      bool open = true;
#pragma unroll 1
      for (int g = group + 1; open && g < groups; ++g) {
        sums.add(head_of(g));
        open = edges.through[g];
      }
      if (open) {
        entries.leaves(sums);
      } else {
        entries.whole(key, sums);
      }
    }
  }
  __syncthreads();  // before the edges are used again
}

}  // namespace torch_ops
