// Reductions of segments on CUDA. No torch.
//
// Entries are in order as they stand, so that nothing is sorted or listed: a block reads the bounds
// of its segments, and then a few lanes of a warp the rows of each, of which a lane has V columns.
// Of many short segments, these lanes have several in turn, and read on while one ends and the next
// begins. A segment that is longer than some is put on one of two lists instead. Then a warp totals
// each of the medium ones, and blocks total the chunks of the long ones, which the block that is
// done last joins, in a fixed order.
#pragma once

#include <cstdint>
#include <type_traits>

#include "common/cuda/fast_divisor.cuh"
#include "common/cuda/kernel_overlap.cuh"
#include "common/cuda/vectorized.cuh"
#include "common/cuda/warp.cuh"
#include "common/indexing/index_error.cuh"
#include "scatter/cuda/sorted/runs.cuh"
#include "scatter/cuda/sorted/sorted.cuh"
#include "segments/cuda/offsets.cuh"

namespace torch_ops::segments {

// Sums, which are divided by the number of entries where a call asks for means.
struct MeansOptions {
  bool divides;
};
template <int V, class Sum>
struct Means : Sums<V, Sum> {
  using Options = MeansOptions;
  template <class Value, class Place>
  static __device__ __forceinline__ Vector<Value, V> load(const Value* from, Place place, Options) {
    return Sums<V, Sum>::load(from, place, {});
  }
  template <class Value>
  __device__ __forceinline__ void write(Value* to, int64_t count) const {
    Means result = *this;
    if (count != 1) {
#pragma unroll
      for (int v = 0; v < V; ++v) result.values[v] /= static_cast<Sum>(count);
    }
    result.Sums<V, Sum>::write(to, count);
  }
};

template <class Total>
constexpr bool is_mean = std::is_same_v<typename Total::Options, MeansOptions>;

constexpr int kRowThreads = 256;
constexpr int kShortThreads =
    64;                        // of a block of short segments, which lasts as long as the longest
constexpr int kRowUnroll = 4;  // entries of a lane whose loads are in flight together, ...
// ... or twice as many of single values; of 16 bits, nvcc would put the loads one after another.
template <class Total, class Value>
constexpr int kUnroll = Total::kColumns == 1 && sizeof(Value) == 4 ? 2 * kRowUnroll : kRowUnroll;
constexpr int kAlone = 64;         // entries that a lane totals one after another, at most
constexpr int kChunkEntries = 16;  // of a lane, in a chunk of a long segment, at least
constexpr int kMostRun = 8;        // segments that a group of lanes has in turn, ...
constexpr int kRunLanes = 8;  // ... if it has so many lanes at least, more than half of them used
// Of a block, whose bounds are in shared memory: of all its groups, and of one that it shares with
// the block before it and one with the next.
constexpr int kMostRows = (kShortThreads / (kRunLanes / 2 + 1) + 2) * kMostRun;

// Rows whose segments are medium or long, and the chunks that long ones are cut into. Offsets that
// decrease may ask for more than there is room for: what has none is left out.
struct LongRows {
  struct Item {
    Id row;
    uint32_t chunk;    // the first of its chunks; those of the items follow each other
    uint32_t arrived;  // blocks that are done with a chunk
  };
  unsigned long long* counters;  // of items, with chunks above; and of medium rows
  Item* items;
  Id* mediums;
  int64_t most_items;  // and most medium rows
  int64_t most_chunks;
  int64_t limit;   // a segment of more entries is medium, ...
  int64_t medium;  // ... or long if it has more than so many
  int64_t chunk;   // entries

  __device__ int64_t chunks_of(int64_t count) const { return (count + chunk - 1) / chunk; }
  __device__ void append(Id row, int64_t count) const {
    if (count <= medium) {
      const auto number = static_cast<int64_t>(atomicAdd(counters + 1, 1));
      if (number < most_items) mediums[number] = row;
      return;
    }
    const unsigned long long more = static_cast<unsigned long long>(chunks_of(count)) << 32 | 1;
    const unsigned long long old = atomicAdd(counters, more);
    const auto number = static_cast<uint32_t>(old);
    if (number < most_items) items[number] = {row, static_cast<uint32_t>(old >> 32), 0};
  }
  __device__ int64_t item_count() const {
    return min(static_cast<int64_t>(static_cast<uint32_t>(*counters)), most_items);
  }
  __device__ int64_t chunk_count() const {
    return min(static_cast<int64_t>(*counters >> 32), most_chunks);
  }
  __device__ int64_t medium_count() const {
    return min(static_cast<int64_t>(counters[1]), most_items);
  }
};

// How threads share segments: 2^lane_bits lanes have the columns of a piece of a row, and
// 2^way_bits such groups, of one warp or of the block, have a segment's entries in turn. Bits, for
// the work of one warp is so short that divisions would show.
struct RowSplit {
  int lane_bits;
  int way_bits;
  int pieces;
  int run;  // segments that a group has in turn; one, if there are several ways
};

// The rows of a block that is told where their segments are.
struct Bounds {
  static constexpr int kLong = -1;
  int64_t starts[kMostRows];  // entry of the segment's first, counted over all slabs
  int counts[kMostRows];      // its entries, or kLong
};

__global__ void clear_kernel(unsigned long long* counters) {
  let_next_kernel_begin();
  counters[0] = counters[1] = 0;
}

// What all kernels are told.
template <class Total, class Value, class Result>
struct SegmentRows {
  const Value* values;
  Result* result;
  typename Total::Part* partials;  // a row for each chunk
  Offsets offsets;
  LongRows longs;
  Id rows;
  int64_t inner;
  typename Total::Options options;
  Result empty;

  // Adds each step-th of the entries [first, last) of the segment that starts at `start`.
  __device__ __forceinline__ void add(Total& sums, int64_t start, int64_t column, int64_t first,
                                      int64_t last, int step) const {
    constexpr int U = kUnroll<Total, Value>;
    const Value* from = values + start * inner + column;
    const int64_t stride = step * inner;
    from += first * inner;
    for (int64_t e = first; e < last; e += step * U, from += U * stride) {
      decltype(Total::load(from, Id(0), options)) loaded[U];
#pragma unroll
      for (int k = 0; k < U; ++k) {
        if (e + k * step < last) {
          const auto place = static_cast<Id>(start + e + k * step);
          loaded[k] = Total::load(from + k * stride, place, options);
        }
      }
#pragma unroll
      for (int k = 0; k < U; ++k) {
        if (e + k * step < last) sums.add(loaded[k]);
      }
    }
  }

  __device__ __forceinline__ void write(const Total& sums, Id row, int64_t column,
                                        int64_t count) const {
    Result* const to = result + row * inner + column;
    if constexpr (is_mean<Total>) {
      sums.write(to, options.divides ? count : 1);
    } else {
      sums.write(to, options);
    }
  }

  // Totals the rows [n, end) of a block, whose segments follow each other, and writes them.
  __device__ __forceinline__ void total_run(const Bounds& bounds, int n, int end, int all,
                                            Id first_row, int64_t column) const {
    constexpr int U = kUnroll<Total, Value>;
    Total sums;
    const int64_t start = bounds.starts[n];
    int left = bounds.counts[n];
    const auto next = [&] {
      write_or_empty(sums, first_row + n, column, bounds.counts[n]);
      sums = Total();
      left = ++n < end ? bounds.counts[n] : 0;
    };
    const Value* from = values + start * inner + column;
    for (int e = 0; e < all; e += U, from += U * inner) {
      decltype(Total::load(from, Id(0), options)) loaded[U];
#pragma unroll
      for (int k = 0; k < U; ++k) {
        if (e + k < all) {
          loaded[k] = Total::load(from + k * inner, static_cast<Id>(start + e + k), options);
        }
      }
#pragma unroll
      for (int k = 0; k < U; ++k) {
        if (e + k < all) {
          while (left == 0) next();
          sums.add(loaded[k]);
          --left;
        }
      }
    }
    while (n < end) next();
  }

  __device__ __forceinline__ void write_or_empty(const Total& sums, Id row, int64_t column,
                                                 int64_t count) const {
    if (count > 0) return write(sums, row, column, count);
    constexpr int V = Total::kColumns;
    constexpr int W = V * sizeof(Result) > kVectorBytes ? kVectorSize<Result> : V;
    Vector<Result, W> empties;
#pragma unroll
    for (int v = 0; v < W; ++v) empties.values[v] = empty;
#pragma unroll
    for (int v = 0; v < V; v += W) store(result + row * inner + column + v, empties);
  }
};

template <class T>
__device__ __forceinline__ T shuffle_down(const T& value, int lanes) {
  uint32_t words[(sizeof(T) + 3) / 4] = {};
  memcpy(words, &value, sizeof(T));
#pragma unroll
  for (uint32_t& word : words) word = __shfl_down_sync(kAllLanes, word, lanes);
  T other;
  memcpy(&other, words, sizeof(T));
  return other;
}

// The totals of a warp's groups of lanes that have one segment, in the first group.
template <class Total>
__device__ __forceinline__ void join_ways(Total& sums, int way, int lanes, int ways) {
  constexpr int V = Total::kColumns;
  for (int half = ways / 2; half > 0; half /= 2) {
    typename Total::Part parts[V];
    sums.copy_to(parts);
#pragma unroll
    for (int v = 0; v < V; ++v) parts[v] = shuffle_down(parts[v], half * lanes);
    if (way < half) sums.add(parts);
  }
}

// The totals of a block's groups, in the first group; in a fixed order.
template <class Total>
__device__ __forceinline__ void join_groups(Total& sums, int lanes, typename Total::Part* shared) {
  constexpr int V = Total::kColumns;
  const int thread = static_cast<int>(threadIdx.x), group = thread / lanes;
  for (int half = static_cast<int>(blockDim.x) / lanes / 2; half > 0; half /= 2) {
    __syncthreads();
    if (group >= half && group < 2 * half) sums.copy_to(shared + (thread - half * lanes) * V);
    __syncthreads();
    if (group < half) sums.add(shared + thread * V);
  }
}

// Rows of short segments; the others are listed. Begins while `clear_kernel` is ending.
template <class Total, class Value, class Result>
__global__ void __launch_bounds__(kRowThreads)
    rows_kernel(const __grid_constant__ SegmentRows<Total, Value, Result> call, RowSplit split,
                const __grid_constant__ IndexErrorSite errors) {
  constexpr int V = Total::kColumns;
  __shared__ Bounds bounds;
  __shared__ typename Total::Part shared[kRowThreads / 2 * V];
  let_next_kernel_begin();
  const Offsets& offsets = call.offsets;
  const int lanes = 1 << split.lane_bits, ways = 1 << split.way_bits, run = split.run;
  const int unit_bits = split.lane_bits + split.way_bits;
  const int own = static_cast<int>(threadIdx.x) & ((1 << unit_bits) - 1);
  const int way = own >> split.lane_bits;
  // Where a row's entries start, counted over all slabs, and how many there are, or kLong. One
  // thread of all that look lists the row, and records offsets that are out of range.
  const auto look = [&](Id row, bool tells, int64_t& start, int& count) {
    const Segment segment = segment_of(offsets, row);
    const bool is_long = segment.count > call.longs.limit;
    start = segment.slab * offsets.entries + segment.begin;
    count = is_long ? Bounds::kLong : static_cast<int>(segment.count);
    if (!tells) return;
    const Id slab = static_cast<Id>(segment.slab), s = row - slab * offsets.segments;
    const Id b = offsets.batch_of_slab(slab);
    if (slab == b * offsets.outer) {  // once for all slices
      const auto place = static_cast<int64_t>(s);
      check_offset(offsets, b, place, segment.begin, errors);
      if (s + 1 == offsets.segments) check_offset(offsets, b, place + 1, segment.end, errors);
    }
    if (is_long) {
      wait_for_kernel_before();
      call.longs.append(row, segment.count);
    }
  };
  // A unit is a piece of the rows of a run.
  const unsigned pieces = split.pieces, units = blockDim.x >> unit_bits;
  const uint64_t first_unit = uint64_t{blockIdx.x} * units;
  const uint64_t first_run = quotient(first_unit, pieces);
  const auto skipped = static_cast<unsigned>(first_unit - first_run * pieces);
  const unsigned unit = skipped + (threadIdx.x >> unit_bits);
  const auto own_run = static_cast<unsigned>(quotient(unit, pieces));
  const unsigned piece = unit - own_run * pieces;
  const int64_t column = int64_t{piece * lanes + (own & (lanes - 1))} * V;
  const auto first = static_cast<int64_t>(first_run) * run;
  if (run > 1) {
    // A block may have only some pieces of its first rows.
    const auto runs = static_cast<unsigned>(quotient(skipped + units + pieces - 1, pieces));
    const int rows =
        static_cast<int>(min(int64_t{runs} * run, static_cast<int64_t>(call.rows) - first));
    const int others = skipped == 0 ? 0 : run;
    for (int n = static_cast<int>(threadIdx.x); n < rows; n += kShortThreads) {
      look(static_cast<Id>(first + n), n >= others, bounds.starts[n], bounds.counts[n]);
    }
    __syncthreads();
    const int n = static_cast<int>(own_run) * run;
    const int last = column < call.inner ? min(n + run, rows) : n;
    for (int begin = n, next; begin < last; begin = next) {
      next = begin + 1;
      int all = bounds.counts[begin];
      if (all == Bounds::kLong) continue;
      while (next < last && bounds.counts[next] != Bounds::kLong &&
             bounds.starts[next] == bounds.starts[begin] + all) {
        all += bounds.counts[next++];
      }
      call.total_run(bounds, begin, next, all, static_cast<Id>(first), column);
    }
  } else {
    const Id row = first_run + own_run;
    const bool exists = row < call.rows, live = exists && column < call.inner;
    int64_t start;
    int count;
    look(exists ? row : 0, exists && own == 0 && piece == 0, start, count);
    Total sums;
    if (live && count > 0) call.add(sums, start, column, way, count, ways);
    unit_bits > 5 ? join_groups(sums, lanes, shared) : join_ways(sums, way, lanes, ways);
    if (live && way == 0 && count != Bounds::kLong) {
      call.write_or_empty(sums, row, column, count);
    }
  }
  if (threadIdx.x == 0) wait_for_kernel_before();  // for the kernel that waits for this one
}

// Blocks per multiprocessor, at least, of totals that would otherwise have too many registers.
template <class Total>
constexpr int kChunkBlocks = sizeof(typename Total::Part) >= 16 ? 3 : 1;

// Medium segments, one warp for each at a time, and chunks of long ones, one block for each. The
// last block of a segment joins them.
template <class Total, class Value, class Result>
__global__ void __launch_bounds__(kRowThreads, kChunkBlocks<Total>)
    chunks_kernel(const __grid_constant__ SegmentRows<Total, Value, Result> call, RowPieces split) {
  constexpr int V = Total::kColumns;
  __shared__ typename Total::Part shared[kRowThreads / 2 * V];
  __shared__ bool is_last;
  const int lanes = split.lanes, groups = kRowThreads / lanes;
  const int group = static_cast<int>(threadIdx.x) / lanes;
  const auto column_of = [&](int64_t piece) { return (piece * lanes + threadIdx.x % lanes) * V; };
  const LongRows& longs = call.longs;
  wait_for_kernel_before();
  constexpr int kWarps = kRowThreads / 32;
  const int ways = 32 / lanes, way = static_cast<int>(threadIdx.x) % 32 / lanes;
  const int64_t items = longs.item_count(), mediums = longs.medium_count();
  const int64_t for_mediums = (mediums + kWarps - 1) / kWarps;
  const int64_t all = for_mediums + longs.chunk_count();
  const int64_t column = column_of(blockIdx.x % split.pieces);
  for (int64_t n = blockIdx.x / split.pieces; n < all; n += gridDim.x / split.pieces) {
    const bool is_medium = n < for_mediums;
    const int64_t medium = n * kWarps + threadIdx.x / 32, c = n - for_mediums;
    // The last item that starts at chunk c or before: number c, if each has one chunk.
    int64_t low = is_medium ? 0 : min(c, items - 1);
    if (!is_medium && longs.items[low].chunk > c) {
      int64_t high = low;
      low = 0;
      while (high - low > 1) {
        const int64_t middle = (low + high) / 2;
        (longs.items[middle].chunk <= c ? low : high) = middle;
      }
    }
    LongRows::Item& item = longs.items[low];
    const Id row = is_medium ? longs.mediums[min(medium, mediums - 1)] : item.row;
    const Segment segment = segment_of(call.offsets, row);
    const int64_t parts = longs.chunks_of(segment.count);
    const int64_t first = is_medium ? 0 : (c - item.chunk) * longs.chunk;
    const int64_t last = is_medium ? segment.count : min(first + longs.chunk, segment.count);
    const bool live = column < call.inner && (!is_medium || medium < mediums);
    Total sums;
    if (live) {
      const int64_t start = segment.slab * call.offsets.entries + segment.begin;
      call.add(sums, start, column, first + (is_medium ? way : group), last,
               is_medium ? ways : groups);
    }
    if (is_medium) {
      join_ways(sums, way, lanes, ways);
      if (live && way == 0) call.write(sums, row, column, segment.count);
      continue;
    }
    join_groups(sums, lanes, shared);
    if (group == 0 && column < call.inner) {
      if (parts == 1) {
        call.write(sums, item.row, column, segment.count);
      } else {
        sums.copy_to(call.partials + c * call.inner + column);
      }
    }
    if (parts == 1) continue;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) is_last = atomicAdd(&item.arrived, 1) + 1 == parts * split.pieces;
    __syncthreads();
    if (!is_last) continue;
    __threadfence();
    for (int64_t piece = 0; piece < split.pieces; ++piece) {
      const int64_t at = column_of(piece);
      Total total;
      if (at < call.inner) {
#pragma unroll 8
        for (int64_t part = group; part < parts; part += groups) {
          total.add(call.partials + (item.chunk + part) * call.inner + at);
        }
      }
      join_groups(total, lanes, shared);
      if (group == 0 && at < call.inner) call.write(total, item.row, at, segment.count);
    }
  }
}

}  // namespace torch_ops::segments
