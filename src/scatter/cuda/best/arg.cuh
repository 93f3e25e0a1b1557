// Which entry has the largest, or the smallest, value for each element of scatter's result: on raw
// pointers, no torch.
//
// For calls that are too small to be worth a sort (best.cuh). Two passes of atomics, neither of
// which depends on their order: the best key of each element, then the least position with that
// key. A table of keys starts as zeros, and a thread that sees a better one there does not write:
// a row that many entries name needs few atomics.
#pragma once

#include <cstdint>

#include "common/cuda/ordered_key.cuh"
#include "common/indexing/index_error.cuh"
#include "common/indexing/index_mode.h"
#include "common/indexing/index_view.cuh"
#include "common/layout/row_grid.cuh"
#include "common/layout/row_layout.h"
#include "scatter/cuda/entries.cuh"

namespace torch_ops::reduce {

// The rows of a call, as row_grid.cuh distributes them, from the column to which the kernel's
// pointers have been moved.
struct ArgCall {
  RowGrid grid;
  RowLayout layout;
  IndexRule rule;
  bool largest;
};

constexpr int kUnroll = 4;

// Walks the values of a thread, kUnroll at a time, whose loads do not wait for each other:
//   load(k, at)                       the value at an offset,
//   look(k, place)                    at the element that it goes to; at any if the entry is bad,
//   use(k, place, good, own, entry)   of the entry with the number `own` of [batch, outer, entries]
template <class Load, class Look, class Use>
__device__ __forceinline__ void for_each_value(const IndexView& index, const ArgCall& call,
                                               const Load& load, const Look& look, const Use& use) {
  constexpr int K = kUnroll;
  const RowLayout& layout = call.layout;
  for (int64_t number = blockIdx.y; number < call.grid.chunks; number += gridDim.y) {
    const RowGrid::Chunk chunk = call.grid.chunk(number);
    const uint32_t first = blockIdx.x * (blockDim.x * K) + threadIdx.x;
    if (first >= chunk.words) continue;
    int64_t at_entry[K], entries[K], own[K], places[K];
#pragma unroll
    for (int k = 0; k < K; ++k) {
      // Beyond the end the last value is looked at again, which changes nothing.
      const RowGrid::Place at =
          call.grid.place(chunk, min(first + k * blockDim.x, chunk.words - 1));
      const int64_t slab = chunk.slab + at.slab;
      int64_t batch, slice;
      call.grid.split_slab(slab, batch, slice);
      at_entry[k] = batch * layout.index_batch_stride + at.entry * layout.index_entry_stride;
      own[k] = slab * layout.entries + at.entry;
      load(k, own[k] * layout.inner + at.column);
      places[k] = slab * layout.axis_size * layout.inner + at.column;
    }
    index.load(at_entry, entries);
    apply_rule(call.rule, entries);
    bool good[K];
#pragma unroll
    for (int k = 0; k < K; ++k) {
      good[k] = in_range(entries[k], layout.axis_size);
      places[k] += (good[k] ? entries[k] : 0) * layout.inner;
      look(k, places[k]);
    }
#pragma unroll
    for (int k = 0; k < K; ++k) use(k, places[k], good[k], own[k], entries[k]);
  }
}

// kSecond: the second pass.
template <bool kSecond, class Value>
__global__ void arg_kernel(const Value* __restrict__ values, IndexView index,
                           OrderedKey<Value>* __restrict__ keys,
                           unsigned long long* __restrict__ positions,
                           const __grid_constant__ ArgCall call,
                           const __grid_constant__ IndexErrorSite errors) {
  OrderedKey<Value> mine[kUnroll], best[kUnroll];
  const auto load = [&](int k, int64_t at) { mine[k] = ordered_key(values[at], call.largest); };
  const auto look = [&](int k, int64_t place) {
    if constexpr (kSecond) {
      best[k] = keys[place];
    } else {
      best[k] = *static_cast<volatile OrderedKey<Value>*>(keys + place);
    }
  };
  const auto use = [&](int k, int64_t place, bool good, int64_t own, int64_t entry) {
    if (!good) {
      if (!kSecond) record_bad_entry(errors, own, entry);
    } else if constexpr (kSecond) {
      if (mine[k] == best[k]) {
        const auto position = static_cast<unsigned long long>(own % call.layout.entries);
        auto* to = positions + place;
        if (*static_cast<volatile unsigned long long*>(to) > position) atomicMin(to, position);
      }
    } else if (best[k] < mine[k]) {
      atomicMax(keys + place, mine[k]);
    }
  };
  for_each_value(index, call, load, look, use);
}

}  // namespace torch_ops::reduce
