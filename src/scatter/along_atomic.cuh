// scatter_elements_add by atomics, in no given order; on raw pointers, no torch.
#pragma once

#include <cstdint>

#include "common/element_grid.cuh"
#include "common/fast_divisor.cuh"
#include "common/index_mode.h"
#include "common/index_view.cuh"
#include "scatter/scatter_atomic.cuh"

namespace torch_ops::atomic {

// What a launch knows beside its layout.
struct AlongCall {
  int64_t position;  // of its first element, among all
  IndexRule rule;
  bool merge;     // neighbours may go to one place: then lanes look for their peers
  bool wide;      // places may exceed 32 bits
  uint32_t step;  // how far apart the elements of a lane are
  FastDivisor by_step;
  uint32_t rounds;  // of kUnroll elements that a lane has
};

// What a lane adds up of what goes to one place, in place of an atomic for each value: a place that
// two of its values that follow each other had. So a place that most values have takes few atomics.
template <class Sum, class Place>
struct KeptPlace {
  static constexpr Place kNone = static_cast<Place>(kDropped);
  Place place = kNone;
  Sum sum = 0;

  // Takes over what it can; those places become kNone.
  __device__ __forceinline__ void take(Place (&places)[kUnroll], Sum (&sums)[kUnroll][1],
                                       Sum* table) {
    Place next = place;
#pragma unroll
    for (int k = 0; k + 1 < kUnroll; ++k) {
      if (places[k] == places[k + 1] && places[k] != kNone) next = places[k];
    }
    if (next != place) {
      flush(table);
      place = next;
    }
#pragma unroll
    for (int k = 0; k < kUnroll; ++k) {
      const bool mine = places[k] == place;
      sum += mine ? sums[k][0] : Sum(0);
      places[k] = mine ? kNone : places[k];
    }
  }

  __device__ __forceinline__ void flush(Sum* table) {
    if (place != kNone) atomicAdd(table + place, sum);
    sum = 0;
  }
};

// As add_values_kernel, with an entry for each value. Where neighbours go to different columns of
// the result, the elements of a lane are of one column, in rows one below the other. Place holds
// all offsets of a launch: with 32 bits a lane takes fewer registers, and more lanes wait at a
// time.
template <class Value, class Sum, class Place>
__global__ void __launch_bounds__(kThreads)
    add_along_kernel(const Value* __restrict__ values, IndexView index, Sum* __restrict__ table,
                     const __grid_constant__ ElementGrid grid,
                     const __grid_constant__ AlongCall call,
                     const __grid_constant__ IndexErrorSite errors) {
  constexpr int K = kUnroll;
  const ElementLayout& layout = grid.layout;
  const auto count = static_cast<uint32_t>(layout.count);
  uint32_t column;
  const uint32_t rows = call.by_step.divide(blockIdx.x * kThreads + threadIdx.x, column);
  uint32_t first = rows * (call.step * K * call.rounds) + column;
  using Kept = KeptPlace<Sum, Place>;
  Kept kept;
#pragma unroll 1
  for (uint32_t round = 0; round < call.rounds; ++round, first += call.step * K) {
    uint32_t numbers[K];
    Place places[K], at[K], from[K];
    int64_t entries[K];
    // Beyond the end the last value is read again, and not added.
#pragma unroll
    for (int k = 0; k < K; ++k) numbers[k] = min(first + k * call.step, count - 1);
    grid.locate(numbers, places, at, from);
    index.load(at, entries);
    Sum sums[K][1];
#pragma unroll
    for (int k = 0; k < K; ++k) sums[k][0] = static_cast<Sum>(values[from[k]]);
    uint32_t bad = 0;  // a bit for each element whose entry is out of range
#pragma unroll
    for (int k = 0; k < K; ++k) {
      int64_t row = entries[k];
      if (call.rule.rewrites()) row = call.rule.resolve(row);
      const bool exists = first + k * call.step < count;
      const bool good = in_range(row, layout.axis_size);
      bad |= exists && !good ? 1u << k : 0;
      const Place there =
          places[k] + static_cast<Place>(row) * static_cast<Place>(layout.axis_stride);
      places[k] = exists && good ? there : Kept::kNone;
    }
    // Under merge they are a block apart, and lanes that are neighbours look for each other.
    if (!call.merge) kept.take(places, sums, table);
    const bool shared = call.merge && is_shared(places[0], call.wide);
#pragma unroll
    for (int k = 0; k < K; ++k) {
      bool mine = places[k] != Kept::kNone;
      if (shared) mine &= add_up_peers<1>(find_peers(places[k], call.wide), sums[k]);
      if (mine) atomicAdd(table + places[k], sums[k][0]);
    }
    if (bad != 0) {  // looked up again: the way of good entries shall not need registers for it
      const uint32_t number[1] = {first + (__ffs(bad) - 1) * call.step};
      int64_t unused[1], place[1];
      grid.locate(number, unused, place, unused);
      record_bad_entry(errors, call.position + number[0], index[place[0]]);
    }
  }
  kept.flush(table);
}

// The places of the entries, as find_places_cuda says. `places` begins at the part's first element.
template <class Index>
__global__ void find_places_kernel(const Index* __restrict__ index, int64_t* __restrict__ places,
                                   int64_t offset, int64_t nowhere,
                                   const __grid_constant__ ElementGrid grid,
                                   const __grid_constant__ AlongCall call,
                                   const __grid_constant__ IndexErrorSite errors) {
  const ElementLayout& layout = grid.layout;
  const uint32_t number = blockIdx.x * blockDim.x + threadIdx.x;
  if (number >= static_cast<uint32_t>(layout.count)) return;
  const uint32_t numbers[1] = {number};
  int64_t place[1], at[1], unused[1];
  grid.locate(numbers, place, at, unused);
  const int64_t entry = index[at[0]];
  const int64_t row = call.rule.rewrites() ? call.rule.resolve(entry) : entry;
  const bool good = in_range(row, layout.axis_size);
  places[number] = good ? offset + place[0] + row * layout.axis_stride : nowhere;
  if (!good) record_bad_entry(errors, call.position + number, entry);
}

}  // namespace torch_ops::atomic
