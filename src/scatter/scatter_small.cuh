// scatter_add of a few thousand entries a slab in one kernel, on raw pointers; where most rows have
// no entry, behind one that writes zeros. No torch.
//
// A small call takes the time of its launches and of loads that wait for each other, so there is
// one launch, and three loads deep: the index, then the values, which are summed in registers and
// rounded once. A block owns some rows of a slab's result, side by side or picked by a hash, or a
// strip of their columns. It reads
// the whole index of the slab and sorts by row, in shared memory, the entries that name its rows;
// entries of a row stay in their order. Groups of lanes sum kRun entries of a row each. A row of
// more is several groups' work, however many entries it has: their sums are added up kRun at a time
// too. So the bits of a row follow from its entries alone, not from how the call was cut.
#pragma once

#include <cstdint>

#include "common/index_error.cuh"
#include "common/index_mode.h"
#include "common/index_view.cuh"
#include "common/kernel_overlap.cuh"
#include "common/row_layout.h"
#include "common/vectorized.cuh"
#include "scatter/scatter_small.h"

namespace torch_ops::small {

constexpr unsigned kAllLanes = 0xffffffffu;

// Where a block's parts stand in shared memory.
template <class Sum>
struct Shared {
  Sum* partials;     // [runs, columns]: the sums of rows that are several groups' work
  uint32_t* before;  // [warps, rows]: entries that the warp has of a row; then, those before them
  uint32_t* found;   // [warps, piece]: a warp's entries that name rows of the block
  uint32_t* starts;  // [rows]: the row's first run, in the upper 16 bits, and its first entry
  uint32_t* names;   // [rows], where the cut is sparse: which rows of the slab they are, or kNone
  uint16_t* counts;  // [rows]: its entries
  uint16_t* order;   // [entries], row by row
  uint16_t* rows;    // [runs]: whose they are

  __device__ Shared(unsigned char* memory, const SmallCut& cut)
      : partials(reinterpret_cast<Sum*>(memory)),
        before(reinterpret_cast<uint32_t*>(partials + cut.most_runs() * cut.columns)),
        found(before + cut.warps() * cut.rows),
        starts(found + cut.warps() * cut.piece),
        names(starts + cut.rows),
        counts(reinterpret_cast<uint16_t*>(names + (cut.sparse ? cut.rows : 0))),
        order(counts + cut.rows),
        rows(order + cut.entries) {}
};

// An entry that a warp found: its row in the block; its number among the warp's of that row; its
// place in the warp's piece.
struct Found {
  static constexpr uint32_t kNone = 0xffffffffu;
  static_assert(SmallCut::kMostRows <= 1 << 15 && SmallCut::kScanned * 32 <= 1 << 8);

  static __device__ uint32_t pack(uint32_t row, uint32_t rank, uint32_t place) {
    return row << 16 | rank << 8 | place;
  }
  static __device__ uint32_t row(uint32_t item) { return item >> 16; }
  static __device__ uint32_t rank(uint32_t item) { return item >> 8 & 0xff; }
  static __device__ uint32_t place(uint32_t item) { return item & 0xff; }
};

template <int V, class Value>
__device__ __forceinline__ Vector<Value, V> load(const Value* from) {
  if constexpr (V == 1) {
    return {load_in_order(from)};
  } else {
    return load_in_order(reinterpret_cast<const Vector<Value, V>*>(from));
  }
}

// The rows of a sparse cut's blocks: the share that a row belongs to, and where in the block it
// stands. A hash of A. Appleby (MurmurHash3's finalizer).
struct HashedRows {
  static constexpr uint32_t kNone = 0xffffffffu;

  static __device__ __forceinline__ uint32_t hash(uint32_t row) {
    row = (row ^ row >> 16) * 0x85ebca6bu;
    row = (row ^ row >> 13) * 0xc2b2ae35u;
    return row ^ row >> 16;
  }
  static __device__ __forceinline__ uint32_t share(uint32_t hash, uint32_t shares) {
    return __umulhi(hash, shares);
  }

  // The place among `names` that has this row, which takes the first free one from its hash on; or
  // kNone where none is free.
  static __device__ __forceinline__ uint32_t find(uint32_t* names, uint32_t row) {
    constexpr uint32_t kRows = SmallCut::kMostRows;
    const uint32_t first = hash(row);
    for (uint32_t i = 0; i < kRows; ++i) {
      const uint32_t at = (first + i) % kRows;
      uint32_t name = *static_cast<volatile uint32_t*>(names + at);
      if (name == kNone) name = atomicCAS(names + at, kNone, row);
      if (name == kNone || name == row) return at;
    }
    return kNone;
  }
};

// Blocks: x slabs, y rows, or shares of them, z strips of columns. A lane has V columns. `sparse`:
// `result` holds zeros, once the kernel before this one has ended, and rows that no entry names
// stay so.
template <bool sparse, int V, class Value, class Sum>
__global__ void __launch_bounds__(sparse ? SmallCut::kSparseThreads : SmallCut::kThreads,
                                  sparse ? 2 : 3)
    sum_kernel(const Value* __restrict__ values, IndexView index, Value* __restrict__ result,
               const __grid_constant__ RowLayout layout, IndexRule rule, SmallCut cut,
               const __grid_constant__ IndexErrorSite errors) {
  constexpr int kThreads = sparse ? SmallCut::kSparseThreads : SmallCut::kThreads;
  constexpr int kWarps = kThreads / 32;
  constexpr int K = SmallCut::kScanned;
  constexpr int kRun = sizeof(Value) == 2 ? 2 * SmallCut::kRun : SmallCut::kRun;
  using Word = Vector<Value, V>;
  extern __shared__ __align__(16) unsigned char memory[];
  __shared__ uint32_t taken;      // entries and runs that rows have taken so far
  __shared__ uint32_t most_runs;  // of a row
  const int columns = cut.columns, lanes = columns / V;
  const Shared<Sum> shared(memory, cut);
  const auto thread = static_cast<int>(threadIdx.x);
  const int warp = thread / 32, lane = thread % 32;
  const auto entries = static_cast<int>(layout.entries);
  const int64_t slab = blockIdx.x;
  const int64_t first_row = sparse ? 0 : int64_t{blockIdx.y} * cut.rows;
  const auto rows =
      sparse ? cut.rows : static_cast<int>(min(int64_t{cut.rows}, layout.axis_size - first_row));

  // All values, while the index is read, to the L2 cache.
  {
    const int64_t bytes = gridDim.x * layout.entries * layout.inner * int64_t{sizeof(Value)};
    const int64_t block = (int64_t{blockIdx.z} * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    const int64_t at = (block * kThreads + thread) * 128;
    if (at < bytes) {
      asm volatile("prefetch.global.L2 [%0];" ::"l"(reinterpret_cast<const char*>(values) + at));
    }
  }

  // ---- A warp's piece of the index.
  const int begin = warp * cut.piece + lane;
  uint32_t wanted[K];  // the rows that entries name, counted from the block's first
  unsigned left = 0;   // a bit for each entry that the block has to add
  {
    const int64_t batch = layout.outer == 1 ? slab : slab / layout.outer;
    int64_t positions[K], named[K];
#pragma unroll
    for (int k = 0; k < K; ++k) {
      positions[k] = batch * layout.index_batch_stride +
                     min(begin + 32 * k, entries - 1) * layout.index_entry_stride;
    }
    index.load(positions, named);
#pragma unroll
    for (int k = 0; k < K; ++k) {
      const int i = begin + 32 * k;
      if (rule.rewrites()) named[k] = rule.resolve(named[k]);
      bool mine = 32 * k < cut.piece && i < entries;
      if (blockIdx.y == 0 && blockIdx.z == 0 && mine && !in_range(named[k], layout.axis_size)) {
        record_bad_entry(errors, slab * layout.entries + i, named[k]);
      }
      wanted[k] = static_cast<uint32_t>(named[k] - first_row);
      if constexpr (sparse) {
        mine = mine && in_range(named[k], layout.axis_size) &&
               HashedRows::share(HashedRows::hash(wanted[k]), gridDim.y) == blockIdx.y;
      } else {
        mine = mine && in_range(named[k] - first_row, rows);
      }
      left |= mine ? 1u << k : 0;
    }
  }
  uint32_t* before = shared.before + warp * cut.rows;
  uint32_t* found = shared.found + warp * cut.piece;

  // Once; but of a sparse cut the rows may exceed what there is room for, however unlikely that is.
  for (bool more = true; more; more = sparse && __syncthreads_or(left != 0)) {
    for (int i = lane; i < cut.rows; i += 32) before[i] = 0;
    if (thread == 0) taken = most_runs = 0;
    if constexpr (sparse) {
      if (thread < cut.rows) shared.names[thread] = HashedRows::kNone;
      __syncthreads();
    }
    int count = 0;  // that were found
#pragma unroll
    for (int k = 0; k < K; ++k) {
      if (32 * k >= cut.piece) break;
      bool in = (left >> k & 1) != 0;
      uint32_t row = 0;
      if (in) {
        row = sparse ? HashedRows::find(shared.names, wanted[k]) : wanted[k];
        in = !sparse || row != HashedRows::kNone;
      }
      const unsigned all = __ballot_sync(kAllLanes, in);
      if (in) {
        found[count + __popc(all & ((1u << lane) - 1))] = Found::pack(row, 0, 32 * k + lane);
        left &= ~(1u << k);
      }
      count += __popc(all);
    }
    __syncwarp();
    for (int i = lane; i - lane < count; i += 32) {
      const uint32_t item = i < count ? found[i] : Found::kNone;
      const uint32_t row = Found::row(item);
      const unsigned peers = __match_any_sync(kAllLanes, row);
      const int leader = __ffs(peers) - 1;
      uint32_t rank = 0;
      if (lane == leader && i < count) {
        rank = atomicAdd(before + row, static_cast<uint32_t>(__popc(peers)));
      }
      rank = __shfl_sync(kAllLanes, rank, leader) + __popc(peers & ((1u << lane) - 1));
      if (i < count) found[i] = Found::pack(row, rank, Found::place(item));
    }
    __syncthreads();

    // ---- A thread a row: how many entries it has, and where they go. Rows take their places in
    // any order.
    if (warp * 32 < cut.rows) {
      uint32_t sum = 0;
      if (thread < cut.rows) {
        uint32_t counts[kWarps];
#pragma unroll
        for (int w = 0; w < kWarps; ++w) counts[w] = shared.before[w * cut.rows + thread];
#pragma unroll
        for (int w = 0; w < kWarps; ++w) {
          shared.before[w * cut.rows + thread] = sum;
          sum += counts[w];
        }
      }
      // A row without entries has a run too: of zeros.
      const uint32_t runs = thread < rows ? max((sum + kRun - 1) / kRun, sparse ? 0 : 1) : 0;
      const uint32_t needs = runs << 16 | sum;
      uint32_t up_to = needs;
#pragma unroll
      for (int step = 1; step < 32; step *= 2) {
        const uint32_t other = __shfl_up_sync(kAllLanes, up_to, step);
        if (lane >= step) up_to += other;
      }
      uint32_t start = 0;
      if (lane == 31) start = atomicAdd(&taken, up_to);
      start = __shfl_sync(kAllLanes, start, 31) + up_to - needs;
      if (thread < rows) {
        shared.starts[thread] = start;
        shared.counts[thread] = static_cast<uint16_t>(sum);
        if (runs > 0) shared.rows[start >> 16] = static_cast<uint16_t>(thread);
        if (runs > 1) atomicMax(&most_runs, runs);
      }
    }
    __syncthreads();

    for (int i = lane; i < count; i += 32) {
      const uint32_t item = found[i];
      const uint32_t row = Found::row(item);
      const uint32_t rank = Found::rank(item) + before[row];
      const uint32_t start = shared.starts[row];
      shared.order[(start & 0xffff) + rank] =
          static_cast<uint16_t>(warp * cut.piece + Found::place(item));
      if (rank > 0 && rank % kRun == 0) {
        shared.rows[(start >> 16) + rank / kRun] = static_cast<uint16_t>(row);
      }
    }
    __syncthreads();

    // ---- Groups of lanes sum runs.
    const int group = thread / lanes, groups = kThreads / lanes;
    const int own_column = (thread - group * lanes) * V;
    const int64_t column = int64_t{blockIdx.z} * columns + own_column;
    const bool live = group < groups && column < layout.inner;
    const auto all_runs = static_cast<int>(taken >> 16);
    const auto deepest = static_cast<int>(most_runs);
    const Value* from = values + slab * layout.entries * layout.inner + column;
    Value* to = result + (slab * layout.axis_size + first_row) * layout.inner + column;
    Sum* partials = shared.partials + own_column;
    const auto write = [&](int row, const Vector<Sum, V>& sums) {
      Word word;
#pragma unroll
      for (int v = 0; v < V; ++v) word.values[v] = static_cast<Value>(sums.values[v]);
      if constexpr (sparse) {
        wait_for_kernel_before();  // which writes the zeros
        store(to + shared.names[row] * layout.inner, word);
      } else {
        store(to + row * layout.inner, word);
      }
    };
    if (live) {
      for (int run = group; run < all_runs; run += groups) {
        const int row = shared.rows[run];
        const uint32_t start = shared.starts[row];
        const int of_row = shared.counts[row];
        const int done = (run - static_cast<int>(start >> 16)) * kRun;
        const uint16_t* order = shared.order + (start & 0xffff) + done;
        Word words[kRun];
#pragma unroll
        for (int k = 0; k < kRun; ++k) {
          words[k] = Word{};
          if (k < of_row - done) words[k] = load<V>(from + order[k] * layout.inner);
        }
        Vector<Sum, V> sums{};
#pragma unroll
        for (int k = 0; k < kRun; ++k) {
#pragma unroll
          for (int v = 0; v < V; ++v) sums.values[v] += static_cast<Sum>(words[k].values[v]);
        }
        if (of_row <= kRun) {
          write(row, sums);
        } else {
          *reinterpret_cast<Vector<Sum, V>*>(partials + run * columns) = sums;
        }
      }
    }

    // ---- Rows of several runs, kJoined of them at a time.
    constexpr int kJoined = 8;
    for (int step = 1; step < deepest; step *= kJoined) {
      __syncthreads();
      if (!live) continue;
      for (int run = group; run < all_runs; run += groups) {
        const int row = shared.rows[run];
        const int runs = (shared.counts[row] + kRun - 1) / kRun;
        const int i = run - static_cast<int>(shared.starts[row] >> 16);
        if (runs <= step || (i & (step * kJoined - 1)) != 0) continue;
        Vector<Sum, V> sums{};
#pragma unroll
        for (int k = 0; k < kJoined; ++k) {
          if (i + k * step >= runs) break;
          const auto part =
              *reinterpret_cast<const Vector<Sum, V>*>(partials + (run + k * step) * columns);
#pragma unroll
          for (int v = 0; v < V; ++v) sums.values[v] += part.values[v];
        }
        if (step * kJoined >= runs) {
          write(row, sums);
        } else {
          *reinterpret_cast<Vector<Sum, V>*>(partials + run * columns) = sums;
        }
      }
    }
  }
  if constexpr (sparse) wait_for_kernel_before();  // a block may have had nothing to write
}

}  // namespace torch_ops::small
