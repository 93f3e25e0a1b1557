// scatter_add of a few thousand entries per slab in one kernel, on raw pointers; if the result is
// large and most of its rows have no entry, after a kernel that writes zeros. No torch.
//
// The time of a small call is that of its launches and of loads that wait for each other, so there
// is one launch, and three loads deep: the index, then the values, which are summed in registers
// and rounded once. A block owns some rows of a slab's result, adjacent or chunks of them scattered
// over all, or a strip of their columns. It reads the whole index of the slab and sorts by row, in
// shared memory, the entries that name its rows; entries of a row stay in order. Groups of
// lanes sum kRun entries of a row each. Several groups share a longer row, however many entries
// it has: their sums are added up kRun at a time too. So the bits of a row depend only on its
// entries, not on how the call was cut.
//
// If other kernels ran before, the code has to come from memory too, one cache line after the
// other: rare code is placed apart, and loops are not unrolled where possible.
#pragma once

#include <cstdint>

#include "common/cuda/kernel_overlap.cuh"
#include "common/cuda/vectorized.cuh"
#include "common/cuda/warp.cuh"
#include "common/indexing/index_error.cuh"
#include "common/indexing/index_mode.h"
#include "common/indexing/index_view.cuh"
#include "common/layout/row_layout.h"
#include "scatter/sum/small_cut.h"

namespace torch_ops::small {

// The row that an entry names by the rule. By a call: inlined, it would be a hundred instructions
// for each of a thread's entries.
static __device__ __noinline__ int64_t resolve_apart(IndexRule rule, int64_t entry) {
  return rule.resolve(entry);
}

// Where a block's parts are in shared memory.
template <class Sum>
struct Shared {
  Sum* partials;     // [runs, columns]: the sums of rows that several groups share
  uint32_t* before;  // [warps, rows]: entries that the warp has of a row; then, those before them
  uint32_t* found;   // [warps, piece]: a warp's entries that name rows of the block
  uint32_t* wanted;  // [warps, piece], if the cut is sparse: the rows of the slab that they
                     // name, or kNone once these have a place
  uint32_t* starts;  // [rows]: the row's first run, in the upper 16 bits, and its first entry
  uint32_t* names;   // [rows], if the cut is sparse: which rows of the slab they are, or kNone
  uint16_t* counts;  // [rows]: its entries
  uint16_t* order;   // [entries], row by row
  uint16_t* rows;    // [runs]: whose they are

  __device__ Shared(unsigned char* memory, const SmallCut& cut)
      : partials(reinterpret_cast<Sum*>(memory)),
        before(reinterpret_cast<uint32_t*>(partials + cut.most_runs() * cut.columns)),
        found(before + cut.warps() * cut.rows),
        wanted(found + cut.warps() * cut.piece),
        starts(wanted + (cut.sparse ? cut.warps() * cut.piece : 0)),
        names(starts + cut.rows),
        counts(reinterpret_cast<uint16_t*>(names + (cut.sparse ? cut.rows : 0))),
        order(counts + cut.rows),
        rows(order + cut.entries) {}
};

// An entry that a warp found: its row in the block, or kNoRow if that has no place there; its
// number among the warp's of that row; its own place in the warp's piece.
struct Found {
  static constexpr uint32_t kNoRow = 0x3ff;
  static_assert(SmallCut::kMostRows < kNoRow && SmallCut::kMostPiece < 1 << 11);

  static __device__ uint32_t pack(uint32_t row, uint32_t rank, uint32_t place) {
    return row << 22 | rank << 11 | place;
  }
  static __device__ uint32_t row(uint32_t item) { return item >> 22; }
  static __device__ uint32_t rank(uint32_t item) { return item >> 11 & 0x7ff; }
  static __device__ uint32_t place(uint32_t item) { return item & 0x7ff; }
};

// The position of a sparse cut's row in its block. A hash of A. Appleby (MurmurHash3's
// finalizer).
struct HashedRows {
  static constexpr uint32_t kNone = 0xffffffffu;

  static __device__ __forceinline__ uint32_t hash(uint32_t row) {
    row = (row ^ row >> 16) * 0x85ebca6bu;
    row = (row ^ row >> 13) * 0xc2b2ae35u;
    return row ^ row >> 16;
  }

  // The place among `names` that has this row, which takes the first free one from its hash on; or
  // Found::kNoRow where none is free.
  static __device__ __forceinline__ uint32_t find(uint32_t* names, uint32_t row) {
    constexpr uint32_t kRows = SmallCut::kMostRows;
    const uint32_t first = hash(row);
#pragma unroll 1
    for (uint32_t i = 0; i < kRows; ++i) {
      const uint32_t at = (first + i) % kRows;
      uint32_t name = *static_cast<volatile uint32_t*>(names + at);
      if (name == kNone) name = atomicCAS(names + at, kNone, row);
      if (name == kNone || name == row) return at;
    }
    return Found::kNoRow;
  }
};

// Writes zeros to the columns that a block has, of the rows of its share.
template <int V, class Value>
__device__ __forceinline__ void fill_share(const SmallCut& cut, Value* result, int64_t inner,
                                           int columns) {
  const auto thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  const ScatteredChunks& chunks = cut.chunks;
  const uint32_t begin = blockIdx.y * chunks.share_places;
  const uint32_t end = min(begin + chunks.share_places, chunks.places());
  const int lanes = columns / V, together = 32 / lanes;
  for (uint32_t place = begin + thread / 32; place < end; place += cut.warps()) {
    const uint32_t row = chunks.first_row(place);
    if (row >= chunks.axis_size) continue;
    const auto rows = static_cast<int>(min(chunks.chunk_rows(), chunks.axis_size - row));
    Value* to = result + row * inner;
    if (columns == inner) {
      // They are adjacent, but may begin anywhere.
      constexpr int kWide = kVectorSize<Value>;
      const auto unaligned = static_cast<int>(-reinterpret_cast<uintptr_t>(to) % kVectorBytes);
      const int count = rows * columns;
      const int head = min(unaligned / static_cast<int>(sizeof(Value)), count);
      const int wide = (count - head) / kWide, tail = head + wide * kWide;
      if (lane < head) to[lane] = Value(0);
      for (int i = lane; i < wide; i += 32) reinterpret_cast<uint4*>(to + head)[i] = uint4{};
      if (lane < count - tail) to[tail + lane] = Value(0);
    } else if (lane < together * lanes) {
      to += lane % lanes * V;
      for (int i = lane / lanes; i < rows; i += together) {
        store(to + i * inner, Vector<Value, V>{});
      }
    }
  }
}

// The next entries of a lane in a piece of which `left` are left, at positions that `position`
// gives. If one step is left, only the first is read.
template <int K, class Position>
__device__ __forceinline__ void load_steps(const IndexView& index, const Position& position,
                                           int left, int64_t (&named)[K]) {
  if (left == 32) {
    named[0] = index[position(0)];
    return;
  }
  int64_t positions[K];
#pragma unroll
  for (int k = 0; k < K; ++k) positions[k] = position(k);
  index.load(positions, named);
}

// Blocks: x slabs, y rows, or shares of them, z strips of columns. A lane has V columns. `sparse`:
// rows that no entry names are not written with the sums; they are zeros before, written by this
// kernel if the cut `fills`, otherwise once the previous kernel has ended.
template <bool sparse, int V, class Value, class Sum>
__global__ void __launch_bounds__(sparse ? SmallCut::kSparseThreads : SmallCut::kThreads,
                                  sparse ? 2 : 3)
    sum_kernel(const Value* __restrict__ values, IndexView index, Value* __restrict__ result,
               const __grid_constant__ RowLayout layout, IndexRule rule, SmallCut cut,
               const __grid_constant__ IndexErrorSite errors) {
  constexpr int kMostWarps = (sparse ? SmallCut::kSparseThreads : SmallCut::kThreads) / 32;
  constexpr int K = SmallCut::kScanned;
  constexpr int kRun = SmallCut::run_of(sizeof(Value));
  constexpr int kAhead = 8;  // loads in flight
  using Word = Vector<Value, V>;
  extern __shared__ __align__(16) unsigned char memory[];
  __shared__ uint32_t taken;      // entries and runs that rows have used so far
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

  uint32_t* before = shared.before + warp * cut.rows;
  uint32_t* found = shared.found + warp * cut.piece;
  uint32_t* wanted = shared.wanted + warp * cut.piece;

  // All values, while the index is read, to the L2 cache.
  {
    const int64_t bytes = gridDim.x * layout.entries * layout.inner * int64_t{sizeof(Value)};
    const int64_t block = (int64_t{blockIdx.z} * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    const int64_t at = (block * cut.threads + thread) * 128;
    if (at < bytes) {
      asm volatile("prefetch.global.L2 [%0];" ::"l"(reinterpret_cast<const char*>(values) + at));
    }
  }

  const auto begin_round = [&] {
#pragma unroll 1
    for (int i = lane; i < cut.rows; i += 32) before[i] = 0;
    if (thread == 0) taken = most_runs = 0;
    if (sparse && thread < cut.rows) shared.names[thread] = HashedRows::kNone;
  };
  begin_round();
  if (sparse && cut.fills) {
    const int64_t first = int64_t{blockIdx.z} * columns;
    fill_share<V>(cut, result + slab * layout.axis_size * layout.inner + first, layout.inner,
                  static_cast<int>(min(int64_t{columns}, layout.inner - first)));
  }

  // ---- A warp's piece of the index: the entries that the block has to add, in order.
  int listed = 0;
  {
    const int64_t batch = layout.outer == 1 ? slab : slab / layout.outer;
#pragma unroll 1
    for (int first = 0; first < cut.piece; first += 32 * K) {
      const int begin = warp * cut.piece + first + lane;
      const auto position = [&](int k) {
        return batch * layout.index_batch_stride +
               min(begin + 32 * k, entries - 1) * layout.index_entry_stride;
      };
      int64_t named[K];
      load_steps(index, position, cut.piece - first, named);
      unsigned bad = 0;  // a bit for each entry that names no row
#pragma unroll
      for (int k = 0; k < K; ++k) {
        if (first + 32 * k >= cut.piece) break;
        if (rule.rewrites()) named[k] = resolve_apart(rule, named[k]);
        const bool there = begin + 32 * k < entries;
        const bool is_row = in_range(named[k], layout.axis_size);
        bad |= there && !is_row ? 1u << k : 0;
        const auto row = static_cast<uint32_t>(named[k] - first_row);
        bool mine = there;
        if constexpr (sparse) {
          mine &= is_row && cut.chunks.has(blockIdx.y, row);
        } else {
          mine &= in_range(named[k] - first_row, rows);
        }
        const unsigned all = __ballot_sync(kAllLanes, mine);
        if (mine) {
          const int at = listed + count_before(all);
          if (sparse) wanted[at] = row;
          found[at] = Found::pack(sparse ? Found::kNoRow : row, 0, first + 32 * k + lane);
        }
        listed += __popc(all);
      }
      if (bad != 0 && blockIdx.y == 0 && blockIdx.z == 0) {
        const int k = __ffs(bad) - 1;  // one is enough
        int64_t entry = index[position(k)];
        if (rule.rewrites()) entry = resolve_apart(rule, entry);
        record_bad_entry(errors, slab * layout.entries + begin + 32 * k, entry);
      }
    }
  }

  // Once; but in a sparse cut the rows may exceed the available room, however unlikely that is.
  for (;;) {
    bool more = false;
    if (sparse) {
      __syncthreads();
    } else {
      __syncwarp();
    }
#pragma unroll 1
    for (int i = lane; i - lane < listed; i += 32) {
      uint32_t row = Found::kNoRow, place = 0;
      if (i < listed) {
        place = Found::place(found[i]);
        if constexpr (!sparse) {
          row = Found::row(found[i]);
        } else if (wanted[i] != HashedRows::kNone) {
          row = HashedRows::find(shared.names, wanted[i]);
          more |= row == Found::kNoRow;
          if (row != Found::kNoRow) wanted[i] = HashedRows::kNone;
        }
      }
      const unsigned peers = __match_any_sync(kAllLanes, row);
      const int leader = __ffs(peers) - 1;
      uint32_t rank = 0;
      if (lane == leader && row != Found::kNoRow) {
        rank = atomicAdd(before + row, static_cast<uint32_t>(__popc(peers)));
      }
      rank = __shfl_sync(kAllLanes, rank, leader) + count_before(peers);
      if (i < listed) found[i] = Found::pack(row, rank, place);
    }
    __syncthreads();

    // ---- A thread per row: how many entries it has, and where they go. Rows get their places in
    // any order.
    if (warp * 32 < cut.rows) {
      uint32_t sum = 0;
      if (thread < cut.rows) {
        uint32_t counts[kMostWarps];
#pragma unroll
        for (int w = 0; w < kMostWarps; ++w) {
          counts[w] = w < cut.warps() ? shared.before[w * cut.rows + thread] : 0;
        }
#pragma unroll
        for (int w = 0; w < kMostWarps; ++w) {
          if (w >= cut.warps()) break;
          shared.before[w * cut.rows + thread] = sum;
          sum += counts[w];
        }
      }
      // A row without entries has a run too: of zeros.
      const uint32_t runs = thread < rows ? max((sum + kRun - 1) / kRun, sparse ? 0 : 1) : 0;
      const uint32_t needs = runs << 16 | sum;
      const uint32_t up_to = scan_warp(needs);
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

#pragma unroll 1
    for (int i = lane; i < listed; i += 32) {
      const uint32_t item = found[i];
      const uint32_t row = Found::row(item);
      if (sparse && row == Found::kNoRow) continue;  // of another round
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
    const int group = thread / lanes, groups = cut.threads / lanes;
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
        wait_for_kernel_before();  // which may write the zeros
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
        const int of_run = min(of_row - done, kRun);
        Vector<Sum, V> sums{};
#pragma unroll 1
        for (int first = 0; first < of_run; first += kAhead) {
          Word words[kAhead];
#pragma unroll
          for (int k = 0; k < kAhead; ++k) {
            words[k] = Word{};
            if (first + k < of_run)
              words[k] = load_vector<V>(from + order[first + k] * layout.inner);
          }
#pragma unroll
          for (int k = 0; k < kAhead; ++k) {
#pragma unroll
            for (int v = 0; v < V; ++v) sums.values[v] += static_cast<Sum>(words[k].values[v]);
          }
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
    if (!sparse || !__syncthreads_or(more)) break;
    begin_round();
  }
  if constexpr (sparse) wait_for_kernel_before();  // a block may have had nothing to write
}

}  // namespace torch_ops::small
