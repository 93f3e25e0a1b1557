// scatter_elements_add by atomics, in no fixed order; on raw pointers, no torch.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "common/cuda/fast_divisor.cuh"
#include "common/indexing/index_mode.h"
#include "common/indexing/index_view.cuh"
#include "common/layout/element_grid.cuh"
#include "scatter/cuda/atomic/atomic.cuh"
#include "scatter/sum/atomic_cut.h"

namespace torch_ops::atomic {

constexpr int kAlongThreads = 256;
constexpr int kFewAlong = 2, kManyAlong = 6;  // elements of a lane

// What a launch knows in addition to its layout: how its elements are divided.
//
// Elements that are adjacent and differ in other coordinates than that on the axis are of as
// many columns, and a row is one of each. A block takes `width` neighbouring columns of
// groups * unroll rows; a lane has elements of one column, which are `groups` rows apart.
//
// The axes before the axis make slices, each with its own part of the table. Successive
// blocks, except those of other strips, are of `spread` slices in turn: atomics for an
// element that many entries name wait for each other, so there are more such elements at a time.
struct AlongCall {
  int64_t position;  // of its first element, among all
  IndexRule rule;
  bool merge;  // lanes of a warp are likely to go to one place: they look for their peers
  bool wide;   // places may exceed 32 bits
  int unroll;
  uint32_t columns;
  uint32_t width;
  uint32_t groups;
  uint32_t strips;
  uint32_t tiles;  // one below the other
  uint32_t spread;
  FastDivisor by_width;
  FastDivisor by_strips;
  FastDivisor by_spread;

  AlongCall(const ElementLayout& layout, int64_t position, const IndexRule& rule, bool wide,
            int64_t sum_bytes, const DeviceLimits& device)
      : position(position), rule(rule), wide(wide) {
    const ElementsTuning& tuned = tuning(device).elements;
    int64_t side_by_side = 1;
    for (int d = layout.axis + 1; d < layout.rank; ++d) side_by_side *= layout.sizes[d];
    merge = layout.axis >= 0 && side_by_side < tuned.few_side_by_side &&
            layout.axis_size <= tuned.few_rows;
    // Small calls need all available lanes, each with few elements.
    unroll = layout.count >= tuned.many_lanes * kManyAlong ? kManyAlong : kFewAlong;
    // A column of few elements does not fill a lane: then it does not matter what is one.
    const bool short_columns = layout.axis < 0 || side_by_side * unroll > layout.count;
    const int64_t count = short_columns ? tuned.strip : side_by_side;
    const int64_t row_groups = ceil_div(ceil_div(layout.count, count), unroll);
    const int64_t most = kAlongThreads / std::min(row_groups, kAlongThreads / tuned.strip);
    columns = static_cast<uint32_t>(count);
    strips = static_cast<uint32_t>(ceil_div(count, most));
    width = static_cast<uint32_t>(ceil_div(count, strips));
    groups = static_cast<uint32_t>(std::min<int64_t>(kAlongThreads / width, row_groups));
    tiles = static_cast<uint32_t>(ceil_div(row_groups, groups));
    const int64_t slice_bytes = side_by_side * layout.axis_size * sum_bytes;
    int64_t slices = 1;
    for (int d = 0; d < layout.axis; ++d) slices *= layout.sizes[d];
    spread = static_cast<uint32_t>(parts_together(slices, slice_bytes, device));
    by_width = FastDivisor(width);
    by_strips = FastDivisor(strips);
    by_spread = FastDivisor(spread);
  }

  unsigned threads() const { return static_cast<unsigned>(round_up(width * groups, 32)); }
  unsigned blocks() const { return static_cast<unsigned>(round_up(tiles, spread) * strips); }

  // The tile of the block with a number; the last ones may have none.
  __device__ __forceinline__ uint32_t tile_of(uint32_t number) const {
    uint32_t slice;
    const uint32_t turn = by_spread.divide(number, slice);
    return slice * ((tiles + spread - 1) / spread) + turn;
  }
};

// A lane has adjacent values, with an entry for each. Most entries of each column may
// be for one row: these elements of the table are adjacent, so that atomics for them go to few
// lines of the L2 cache. If lanes of a block have a place twice, the block therefore adds up
// the values of a column's lanes for it, and issues one atomic. Place can hold all offsets of a
// launch: with 32 bits a lane needs fewer registers, and more lanes wait at a time.
template <int K, class Value, class Sum, class Place>
__global__ void __launch_bounds__(kAlongThreads)
    add_along_kernel(const Value* __restrict__ values, IndexView index, Sum* __restrict__ table,
                     const __grid_constant__ ElementGrid grid,
                     const __grid_constant__ AlongCall call,
                     const __grid_constant__ IndexErrorSite errors) {
  constexpr Place kNone = static_cast<Place>(kDropped);
  __shared__ Place offered[kAlongThreads];  // the places that lanes have twice
  __shared__ int chosen[kAlongThreads];     // of each column, the lane whose offer is accepted
  __shared__ Sum partial[kAlongThreads];
  const ElementLayout& layout = grid.layout;
  const auto count = static_cast<uint32_t>(layout.count);
  uint32_t strip, within;
  const uint32_t tile = call.tile_of(call.by_strips.divide(blockIdx.x, strip));
  const uint32_t group = call.by_width.divide(threadIdx.x, within);
  const uint32_t column = strip * call.width + within;
  const uint32_t first = (tile * (call.groups * K) + group) * call.columns + column;
  const uint32_t step = call.groups * call.columns;
  const bool on = group < call.groups && column < call.columns && tile < call.tiles;

  uint32_t numbers[K];
  Place places[K], at[K], from[K];
  int64_t entries[K];
  // Beyond the end the last value is read again, and not added.
#pragma unroll
  for (int k = 0; k < K; ++k) numbers[k] = min(first + k * step, count - 1);
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
    const bool exists = on && first + k * step < count;
    const bool good = in_range(row, layout.axis_size);
    bad |= exists && !good ? 1u << k : 0;
    const Place there =
        places[k] + static_cast<Place>(row) * static_cast<Place>(layout.axis_stride);
    places[k] = exists && good ? there : kNone;
  }

  Place twice = kNone;
#pragma unroll
  for (int k = 0; k + 1 < K; ++k) {
    if (places[k] == places[k + 1]) twice = places[k];
  }
  const bool crowded = __syncthreads_count(twice != kNone) > kAlongThreads / 8;
  Place kept = kNone;
  Sum sum = 0;
  if (crowded) {
    offered[threadIdx.x] = twice;
    if (group == 0) chosen[within] = kAlongThreads;
    __syncthreads();
    if (twice != kNone) atomicMin(&chosen[within], static_cast<int>(threadIdx.x));
    __syncthreads();
    const int lane = chosen[within];
    kept = lane < kAlongThreads ? offered[lane] : kNone;
#pragma unroll
    for (int k = 0; k < K; ++k) {
      const bool mine = places[k] == kept;
      sum += mine ? sums[k][0] : Sum(0);
      places[k] = mine ? kNone : places[k];
    }
  }
  using Signed = std::make_signed_t<Place>;  // kNone is kDropped then
  const bool shared = call.merge && is_shared(static_cast<Signed>(places[0]), call.wide);
#pragma unroll
  for (int k = 0; k < K; ++k) {
    bool mine = places[k] != kNone;
    if (shared) mine &= add_up_peers<1>(find_peers(places[k], call.wide), sums[k]);
    if (mine) atomicAdd(table + places[k], sums[k][0]);
  }
  if (bad != 0) {  // looked up again: the path of good entries must not need registers for it
    const uint32_t number[1] = {first + (__ffs(bad) - 1) * step};
    int64_t unused[1], place[1];
    grid.locate(number, unused, place, unused);
    int64_t entry[1] = {index[place[0]]};
    apply_rule(call.rule, entry);
    record_bad_entry(errors, call.position + number[0], entry[0]);
  }
  if (!crowded) return;
  partial[threadIdx.x] = sum;
#pragma unroll 1
  for (uint32_t left = call.groups; left > 1;) {
    const uint32_t half = (left + 1) / 2;
    __syncthreads();
    if (group + half < left) {
      sum += partial[threadIdx.x + half * call.width];
      partial[threadIdx.x] = sum;
    }
    left = half;
  }
  if (group == 0 && kept != kNone) atomicAdd(table + kept, sum);
}

// The places of the entries, for find_places. `places` begins at the part's first element,
// which has the number `position`.
template <class Index>
__global__ void find_places_kernel(const Index* __restrict__ index, int64_t* __restrict__ places,
                                   int64_t offset, int64_t nowhere, int64_t position,
                                   const __grid_constant__ IndexRule rule,
                                   const __grid_constant__ ElementGrid grid,
                                   const __grid_constant__ IndexErrorSite errors) {
  const ElementLayout& layout = grid.layout;
  const uint32_t number = blockIdx.x * blockDim.x + threadIdx.x;
  if (number >= static_cast<uint32_t>(layout.count)) return;
  const uint32_t numbers[1] = {number};
  int64_t place[1], at[1], unused[1];
  grid.locate(numbers, place, at, unused);
  const int64_t entry = index[at[0]];
  const int64_t row = rule.rewrites() ? rule.resolve(entry) : entry;
  const bool good = in_range(row, layout.axis_size);
  places[number] = good ? offset + place[0] + row * layout.axis_stride : nowhere;
  if (!good) record_bad_entry(errors, position + number, row);
}

}  // namespace torch_ops::atomic
