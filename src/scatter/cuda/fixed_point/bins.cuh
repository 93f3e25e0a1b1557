// How scatter_add's entries are put into bins, for sums of each bin in shared memory: steps 1 and 2
// of tables.cuh, and how both of its halves load entries and rows. No torch.
#pragma once

#include <cstdint>
#include <type_traits>

#include "common/cuda/fast_divisor.cuh"
#include "common/cuda/kernel_overlap.cuh"
#include "common/cuda/vectorized.cuh"
#include "common/cuda/warp.cuh"
#include "common/indexing/index_error.cuh"
#include "common/indexing/index_mode.h"
#include "common/indexing/index_view.cuh"
#include "common/layout/row_layout.h"
#include "scatter/cuda/entries.cuh"
#include "scatter/sum/fixed_cut.h"

namespace torch_ops::fixed_point {

constexpr int kTileThreads = 512;
constexpr int kSumThreads = 512;
constexpr int kUnit = 32;  // entries that a warp loads at once
constexpr int kHot = 8;    // lanes of a warp with one row, or bin, that are worth joining
constexpr uint32_t kNone = UINT32_MAX;
constexpr uint16_t kWidened = 0x8000;  // next to a bound: the tile's values are floats of 32 bits

// The blocks of kSumThreads that fit a multiprocessor.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ < 800
constexpr int kSumBlocks = 2;
#elif __CUDA_ARCH__ == 800 || (__CUDA_ARCH__ >= 900 && __CUDA_ARCH__ < 1200)
constexpr int kSumBlocks = 4;
#else
constexpr int kSumBlocks = 3;
#endif

// Where a slab's index begins.
__device__ __forceinline__ int64_t index_of_slab(const RowLayout& layout, int64_t slab) {
  return (layout.outer == 1 ? slab : slab / layout.outer) * layout.index_batch_stride;
}

// What the kernels know of a call whose slabs have bins.
struct Bins {
  RowLayout layout;
  IndexRule rule;
  int row_shift;  // 2^row_shift rows per bin
  int bins;       // per slab
  int tiles;      // per slab
  int segments;   // per slab
  int64_t slab_entries;
  int64_t first_slab;  // of the launch: below, slabs are counted from it
  bool adjacent;       // index and values can be read four entries at a time

  // The first of a segment's cells. `tile`, any of its tiles.
  __device__ int64_t first_cell(uint32_t slab, uint32_t tile) const {
    const uint32_t segment = tile / static_cast<uint32_t>(FixedCut::kSegmentTiles);
    return (int64_t{slab} * segments + segment) * bins;
  }
};

// Four entries of the index in succession, of which the first of all is at `base`: from entry
// `first` on, at once if they are `adjacent`. Beyond the last one that one is read again.
__device__ __forceinline__ void load_four_entries(const IndexView& index, bool adjacent,
                                                  int64_t base, int64_t stride, int first, int last,
                                                  int64_t (&entries)[4]) {
  if (adjacent) {
    index.load4(base + min(first, last - 3), entries);
  } else {
    int64_t positions[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) positions[k] = base + min(first + k, last) * stride;
    index.load(positions, entries);
  }
}

// The same of rows, in words of up to 16 bytes.
template <bool kAdjacent, class Row>
__device__ __forceinline__ void load_four_rows(const Row* values, int first, int last, Row* rows) {
  if constexpr (kAdjacent) {
    constexpr int kAtOnce = sizeof(Row) >= 4 ? kVectorBytes / sizeof(Row) : 4;
    const Row* from = values + min(first, last - 3);
#pragma unroll
    for (int k = 0; k < 4; k += kAtOnce) {
      const auto some = *reinterpret_cast<const Vector<Row, kAtOnce>*>(from + k);
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) rows[k + i] = some.values[i];
    }
  } else {
#pragma unroll
    for (int k = 0; k < 4; ++k) rows[k] = values[min(first + k, last)];
  }
}

template <class Row>
__device__ __forceinline__ void store_four_rows(Row* to, const Row (&rows)[4]) {
  constexpr int kAtOnce = sizeof(Row) >= 4 ? kVectorBytes / sizeof(Row) : 4;
  using Some = Vector<Row, kAtOnce>;
#pragma unroll
  for (int k = 0; k < 4; k += kAtOnce) {
    Some some;
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) some.values[i] = rows[k + i];
    *reinterpret_cast<Some*>(to + k) = some;
  }
}

// ---- 1. bin -------------------------------------------------------------------------------------

// Entries of a warp, K of each lane by fours, that name one row, and whose values it adds up before
// they are put into a bin: floats in an order that depends on the index, and so do the bits. These:
//   crowd    if many lanes have one row next to itself: all entries of that row become one
//   runs     otherwise, if half of the lanes have any row next to itself: entries in succession
//   neither  if some have: those of a lane
template <int K>
class Folded {
 public:
  __device__ __forceinline__ void find(const uint32_t (&rows)[K], uint32_t none) {
    uint32_t common = none;
#pragma unroll
    for (int k = 0; k + 1 < K; ++k) {
      if (k % 4 != 3 && rows[k] == rows[k + 1] && rows[k] != none) common = rows[k];
    }
    const unsigned some = __ballot_sync(kAllLanes, common != none);
    if (some == 0) return;
    const uint32_t most = __shfl_sync(kAllLanes, common, __ffs(some) - 1);
    if (count_lanes(common == most) >= kHot) {
#pragma unroll
      for (int k = 0; k < K; ++k) {
        if (rows[k] == most) common = most;
      }
      crowd_ = __ballot_sync(kAllLanes, common == most);
    } else if (__popc(some) >= kRuns) {
      common = none;
      runs_ = true;
#pragma unroll
      for (int group = 0; group < K / 4; ++group) find_runs(rows, none, group);
    }
#pragma unroll
    for (int k = 0; k < K; ++k) {
      if (rows[k] == none) continue;
      if (rows[k] == common) {
        peers_ |= 1u << k;
      } else if (k % 4 != 3 && rows[k] == rows[k + 1]) {
        nexts_ |= 1u << k;
      }
    }
  }

  // The entries, a bit each, that were added to another.
  __device__ __forceinline__ uint32_t taken() const {
    const bool led = crowd_ >> lane() & 1 && (crowd_ & before()) != 0;
    return nexts_ | (led ? peers_ : peers_ & (peers_ - 1));
  }

  // They name `none` from now on.
  __device__ __forceinline__ void drop(uint32_t (&rows)[K], uint32_t none) const {
#pragma unroll
    for (int k = 0; k < K; ++k) {
      if (taken() >> k & 1) rows[k] = none;
    }
  }

  // Rows of N floats.
  template <int N>
  __device__ __forceinline__ void add_up(Vector<uint32_t, N> (&rows)[K]) const {
    if (!__any_sync(kAllLanes, (peers_ | nexts_) != 0)) return;
#pragma unroll
    for (int i = 0; i < N; ++i) {
#pragma unroll
      for (int k = 0; k < K; ++k) {
        if (k % 4 != 3 && (nexts_ >> k & 1)) add(rows[k + 1].values[i], rows[k].values[i]);
      }
      if (runs_) {
#pragma unroll
        for (int group = 0; group < K / 4; ++group) add_up_runs(rows, i, group);
      } else {
        add_up_peers(rows, i);
      }
    }
  }

 private:
  static constexpr int kRuns = 16;  // lanes

  static __device__ __forceinline__ unsigned lane() { return threadIdx.x % 32; }
  static __device__ __forceinline__ unsigned before() { return (1u << lane()) - 1; }
  static __device__ __forceinline__ void add(uint32_t& sum, uint32_t value) {
    sum = __float_as_uint(__uint_as_float(sum) + __uint_as_float(value));
  }

  __device__ __forceinline__ void find_runs(const uint32_t (&rows)[K], uint32_t none, int group) {
    const uint32_t* four = rows + group * 4;
    const uint32_t last = __shfl_up_sync(kAllLanes, four[3], 1);
    const bool goes_on = lane() > 0 && four[0] == last && last != none;
    const bool one = four[0] == four[1] && four[1] == four[2] && four[2] == four[3];
    const unsigned continued = __ballot_sync(kAllLanes, goes_on);
    continued_[group] = continued;
    passing_[group] = __ballot_sync(kAllLanes, goes_on && one);
    if (continued >> 1 >> lane() & 1) nexts_ |= 8u << group * 4;
  }

  // A lane's last entry is passed to the next lane, if the run continues there.
  template <int N>
  __device__ __forceinline__ void add_up_runs(Vector<uint32_t, N> (&rows)[K], int i,
                                              int group) const {
    uint32_t sum = rows[group * 4 + 3].values[i];
    unsigned passing = passing_[group];
    for (int step = 1; passing != 0; step *= 2) {
      const uint32_t other = __shfl_up_sync(kAllLanes, sum, step);
      if (passing >> lane() & 1) add(sum, other);
      passing &= passing << step;
    }
    const uint32_t other = __shfl_up_sync(kAllLanes, sum, 1);
    bool first = continued_[group] >> lane() & 1;
#pragma unroll
    for (int k = 0; k < 4; ++k) {  // the first run's last entry
      const bool goes_on = k < 3 && nexts_ >> (group * 4 + k) & 1;
      if (first && !goes_on) add(rows[group * 4 + k].values[i], other);
      first = first && goes_on;
    }
  }

  // The values of one row's entries are added to the first of them, in a crowd of all lanes.
  template <int N>
  __device__ __forceinline__ void add_up_peers(Vector<uint32_t, N> (&rows)[K], int i) const {
    float sum = 0;
#pragma unroll
    for (int k = 0; k < K; ++k) {
      if (peers_ >> k & 1) sum += __uint_as_float(rows[k].values[i]);
    }
    if (crowd_ != 0) {
      const bool in_crowd = crowd_ >> lane() & 1;
      float all[] = {in_crowd ? sum : 0.0f};
      sum_warp(all);
      if (in_crowd) sum = all[0];
    }
#pragma unroll
    for (int k = 0; k < K; ++k) {
      if ((peers_ & -peers_) >> k & 1) rows[k].values[i] = __float_as_uint(sum);
    }
  }

  uint32_t peers_ = 0;  // a bit for each entry that goes to the first of them
  uint32_t nexts_ = 0;  // a bit for each that goes to the next one
  // The same in all lanes, a bit for each:
  unsigned crowd_ = 0;  // those that have entries of the crowd's row
  bool runs_ = false;
  unsigned continued_[K / 4] = {};  // whose first entry continues the lane's before,
  unsigned passing_[K / 4] = {};    // and so do all
};

// Each entry's place among those of its bin in the tile: in any order. If a warp has many
// entries of one bin, these do not wait for each other's atomics. `kSkip`: entries of
// bin `none` get no place.
template <bool kSkip, int K>
__device__ __forceinline__ void rank_entries(uint32_t (&entries)[K], int row_shift, uint32_t none,
                                             uint32_t* counts) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const uint32_t first = entries[0] >> row_shift;
  const unsigned present = __ballot_sync(kAllLanes, !(kSkip && first == none));
  const uint32_t common = __shfl_sync(kAllLanes, first, __ffs(present | 1u << 31) - 1);
  const bool hot = __popc(__ballot_sync(kAllLanes, first == common) & present) >= kHot;
#pragma unroll
  for (int k = 0; k < K; ++k) {
    const uint32_t bin = entries[k] >> row_shift;
    uint32_t rank = 0;
    if (hot) {
      const unsigned peers = __ballot_sync(kAllLanes, bin == common);
      if (lane == 0) rank = atomicAdd(counts + common, __popc(peers));
      rank = __shfl_sync(kAllLanes, rank, 0) + count_before(peers);
    }
    if ((!hot || bin != common) && !(kSkip && bin == none)) rank = atomicAdd(counts + bin, 1u);
    entries[k] |= rank << kRowBits;
  }
}

// The rows that a tile's entries name; `none` for those that name none, one of which becomes `bad`.
// A thread has K, by fours: if they can be read at once and are rows unchanged,
template <class Index, int K>
__device__ __forceinline__ void find_rows(const Index* index, int count, int64_t axis_size,
                                          uint32_t none, uint32_t (&rows)[K], int& bad) {
  const int thread = static_cast<int>(threadIdx.x);
  Index entries[K];
#pragma unroll
  for (int group = 0; group < K; group += 4) {
    load_four_rows<true>(index, group * kTileThreads + thread * 4, count - 1, entries + group);
  }
#pragma unroll
  for (int k = 0; k < K; ++k) {
    const int number = k / 4 * 4 * kTileThreads + thread * 4 + k % 4;
    const bool exists = number < count, good = in_range(entries[k], axis_size);
    if (exists && !good) bad = number;
    rows[k] = exists && good ? static_cast<uint32_t>(entries[k]) : none;
  }
}

// and otherwise through shared memory, which is not in use yet: an unrolled loop would be as
// long as there are types of index and rules.
using Four = Vector<uint32_t, 4>;

template <int K>
__device__ __forceinline__ void find_rows(const IndexView& index, int64_t base, const Bins& call,
                                          int count, uint32_t none, Four* memory,
                                          uint32_t (&rows)[K], int& bad) {
  const int thread = static_cast<int>(threadIdx.x);
#pragma unroll 1
  for (int group = 0; group < K / 4; ++group) {
    const int number = (group * kTileThreads + thread) * 4;
    int64_t entries[4];
    load_four_entries(index, call.adjacent, base, call.layout.index_entry_stride, number, count - 1,
                      entries);
    apply_rule(call.rule, entries);
    Four four;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const bool exists = number + k < count, good = in_range(entries[k], call.layout.axis_size);
      if (exists && !good) bad = number + k;
      four.values[k] = exists && good ? static_cast<uint32_t>(entries[k]) : none;
    }
    memory[group * kTileThreads + thread] = four;
  }
#pragma unroll
  for (int group = 0; group < K / 4; ++group) {
    const Four four = memory[group * kTileThreads + thread];
#pragma unroll
    for (int k = 0; k < 4; ++k) rows[group * 4 + k] = four.values[k];
  }
}

// A block per tile. `Word`: a row of values.
template <class Word>
struct Tile {
  static constexpr int kRows = sizeof(Word) <= 4 ? 16 : 8;  // per thread
  static constexpr int kEntries = kTileThreads * kRows;
  static constexpr int shared_bytes(int bins) {
    return kEntries * static_cast<int>(sizeof(Word) + sizeof(uint16_t)) +
           (bins + 1) * static_cast<int>(sizeof(uint32_t));
  }
};

// `Value`: the type of a row's floats; rows that meet are added up to one (Folded);
// void if rows are only moved. Floats of 16 bits become ones of 32, so as not to be rounded: that
// is done if at most half of a tile's entries are left, which then need no more room.
template <class Word, class Value>
__global__ void __launch_bounds__(kTileThreads, 2)
    bin_tiles_kernel(const Word* __restrict__ values, IndexView index,
                     const __grid_constant__ Bins call, Word* __restrict__ sorted_values,
                     uint16_t* __restrict__ sorted_rows, uint16_t* __restrict__ bounds,
                     uint32_t* __restrict__ units, const __grid_constant__ IndexErrorSite errors) {
  constexpr int K = Tile<Word>::kRows;
  constexpr bool kFolds = !std::is_void_v<Value>, kWidens = kFolds && sizeof(Word) == 2;
  let_next_kernel_begin();
  extern __shared__ __align__(16) unsigned char shared[];
  auto* words = reinterpret_cast<Word*>(shared);
  auto* rows = reinterpret_cast<uint16_t*>(words + Tile<Word>::kEntries);
  auto* counts = reinterpret_cast<uint32_t*>(rows + Tile<Word>::kEntries);  // of bins, and the rest
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  const RowLayout& layout = call.layout;
  const uint32_t slab = blockIdx.x / static_cast<uint32_t>(call.tiles);
  const uint32_t tile = blockIdx.x - slab * static_cast<uint32_t>(call.tiles);
  const int64_t first = int64_t{tile} * Tile<Word>::kEntries;
  const int count = static_cast<int>(min(int64_t{Tile<Word>::kEntries}, layout.entries - first));
  const int64_t slab_row = (call.first_slab + slab) * layout.entries + first;
  for (int bin = thread; bin <= call.bins; bin += kTileThreads) counts[bin] = 0;

  const uint32_t none = static_cast<uint32_t>(call.bins) << call.row_shift;
  const int64_t index_row =
      index_of_slab(layout, call.first_slab + slab) + first * layout.index_entry_stride;
  uint32_t entries[K];  // the rows that they name, then with their places above
  int bad = -1;         // an entry that is out of range
  const bool plain = call.adjacent && !call.rule.rewrites();
  if (plain && index.entry_bytes == sizeof(int64_t)) {
    find_rows(index.as<int64_t>() + index_row, count, layout.axis_size, none, entries, bad);
  } else if (plain && index.entry_bytes == sizeof(int32_t)) {
    find_rows(index.as<int32_t>() + index_row, count, layout.axis_size, none, entries, bad);
  } else {
    find_rows(index, index_row, call, count, none, reinterpret_cast<Four*>(shared), entries, bad);
  }
  if (bad >= 0) {
    const int64_t entry = index[index_row + bad * layout.index_entry_stride];
    record_bad_entry(errors, slab_row + bad,
                     call.rule.rewrites() ? call.rule.resolve(entry) : entry);
  }
  Folded<K> folded;
  bool fold = kFolds;
  if constexpr (kFolds) folded.find(entries, none);
  if constexpr (kWidens) {
    // Four fifths of the threads keep at most 3/8 of their entries, so all of them at most half.
    const bool few = 8 * __popc(folded.taken()) >= 5 * K;
    fold = 5 * __syncthreads_count(few) >= 4 * kTileThreads;
  } else {
    __syncthreads();
  }
  if (fold) folded.drop(entries, none);
  // Values are loaded meanwhile. Longer rows leave no registers for that.
  constexpr bool kRanksLast = sizeof(Word) <= 4;
  const auto rank = [&] {
    rank_entries<kFolds>(entries, call.row_shift, static_cast<uint32_t>(call.bins), counts);
  };
  if constexpr (!kRanksLast) rank();
  std::conditional_t<kWidens, Vector<uint32_t, 1>, Word> own[K];
  const Word* const tile_values = values + slab_row;
  const auto load = [&](auto adjacent) {
#pragma unroll
    for (int group = 0; group < K; group += 4) {
      const int number = group * kTileThreads + thread * 4;
      if constexpr (kWidens) {
        Value narrow[4];
        load_four_rows<adjacent.value>(reinterpret_cast<const Value*>(tile_values), number,
                                       count - 1, narrow);
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          own[group + k].values[0] = __float_as_uint(static_cast<float>(narrow[k]));
        }
      } else {
        load_four_rows<adjacent.value>(tile_values, number, count - 1, own + group);
      }
    }
  };
  if (call.adjacent) {
    load(std::true_type{});
  } else {
    load(std::false_type{});
  }
  if constexpr (kRanksLast) rank();
  if constexpr (kFolds) {
    if (fold) folded.add_up(own);
  }
  __syncthreads();

  if (thread < 32) {
    wait_for_kernel_before();  // which sets `units` to zero
    uint16_t* tile_bounds = bounds + int64_t{blockIdx.x} * (call.bins + 1);
    uint32_t* cells = units + call.first_cell(slab, tile);
    uint32_t before = 0;
    for (int i = 0; i <= call.bins; i += 32) {
      const int bin = i + lane;
      const uint32_t size = bin <= call.bins ? counts[bin] : 0;
      const uint32_t end = before + scan_warp(size);
      if (bin <= call.bins) {
        counts[bin] = end - size;
        tile_bounds[bin] = static_cast<uint16_t>((end - size) | (kWidens && fold ? kWidened : 0));
      }
      if (bin < call.bins && size > 0) atomicAdd(cells + bin, (size + kUnit - 1) / kUnit);
      before = __shfl_sync(kAllLanes, end, 31);
    }
  }
  __syncthreads();
#pragma unroll
  for (int k = 0; k < K; ++k) {
    const uint32_t row = entries[k] & ((1u << kRowBits) - 1);
    const uint32_t place = counts[row >> call.row_shift] + (entries[k] >> kRowBits);
    if (kFolds && row == none) continue;  // it has no place
    if constexpr (!kWidens) {
      words[place] = own[k];
    } else if (fold) {
      reinterpret_cast<Vector<uint32_t, 1>*>(words)[place] = own[k];
    } else {
      reinterpret_cast<Value*>(words)[place] =
          static_cast<Value>(__uint_as_float(own[k].values[0]));
    }
    rows[place] = static_cast<uint16_t>(row & ((1u << call.row_shift) - 1));
  }
  __syncthreads();

  // The padding of the last 16 bytes is never read.
  const int sorted = static_cast<int>(counts[call.bins]);
  const int64_t to = slab * call.slab_entries + first;
  const auto copy = [&](void* destination, const void* source, int bytes) {
#pragma unroll 2
    for (int at = thread * kVectorBytes; at < bytes; at += kTileThreads * kVectorBytes) {
      *reinterpret_cast<Four*>(static_cast<char*>(destination) + at) =
          *reinterpret_cast<const Four*>(static_cast<const char*>(source) + at);
    }
  };
  const int row_bytes = static_cast<int>(kWidens && fold ? sizeof(float) : sizeof(Word));
  copy(sorted_values + to, words, sorted * row_bytes);
  copy(sorted_rows + to, rows, sorted * static_cast<int>(sizeof(uint16_t)));
}

// ---- 2. list ------------------------------------------------------------------------------------

// A part of a cell.
struct alignas(16) Part {
  uint32_t cell;
  uint32_t number;   // among the parts
  uint32_t parts;    // of the cell; 0: there is no such part
  uint32_t partial;  // the table that its sums go to; kNone: the result
};

// The tables of a cell's parts.
struct Partials {
  uint32_t first;
  uint32_t count;
};

struct Counters {
  uint32_t large;  // parts,
  uint32_t small;  // and those of less than half of what a part may have
  uint32_t partials;
  uint32_t few;   // joins of few parts,
  uint32_t many;  // and others
};

constexpr uint32_t kFewParts = 8;

// Lists all parts: large ones from the list's beginning, which start first, and small ones from its
// end, so that little work is left at the end; it has room for `most_parts`. Also the cells whose
// bins have sums to join, the first of a bin's cells: those of few parts from the beginning, others
// from the end, that of `most_joins`. The lists' order is that in which threads arrive; nothing
// depends on it.
__global__ void list_parts_kernel(const uint32_t* units, uint32_t cells, uint32_t bins,
                                  uint32_t segments, uint32_t part_units, Part* __restrict__ list,
                                  uint32_t most_parts, uint32_t* __restrict__ joins,
                                  uint32_t most_joins, Partials* __restrict__ partials,
                                  Counters* __restrict__ counters) {
  let_next_kernel_begin();
  const uint32_t cell = blockIdx.x * blockDim.x + threadIdx.x;
  if (cell >= cells) return;
  wait_for_kernel_before();
  const uint32_t all = units[cell];
  const uint32_t parts = max((all + part_units - 1) / part_units, 1u);
  const bool whole = parts == 1 && segments == 1;
  const uint32_t first = whole ? kNone : atomicAdd(&counters->partials, parts);
  const bool small = 2 * all < part_units;
  const uint32_t at =
      small ? most_parts - 1 - atomicAdd(&counters->small, 1u) : atomicAdd(&counters->large, parts);
  partials[cell] = {first, whole ? 0 : parts};
  if (!whole && cell / bins % segments == 0) {
    if (parts * segments <= kFewParts) {
      joins[atomicAdd(&counters->few, 1u)] = cell;
    } else {
      joins[most_joins - 1 - atomicAdd(&counters->many, 1u)] = cell;
    }
  }
  for (uint32_t part = 0; part < parts; ++part) {
    list[at + part] = {cell, part, parts, whole ? kNone : first + part};
  }
}

}  // namespace torch_ops::fixed_point
