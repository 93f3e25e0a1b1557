// scatter_add of few entries to many rows, on raw pointers. No torch.
//
// 16-bit floats are summed in float32, but a table of floats for all rows would be twice the
// result. There are no more rows with entries than entries, so a table with a row for each entry
// suffices; and if few rows are named, most are named once, which leaves nothing to sum.
//   1. claim  the first entry of a row owns it: its number is in the result, in a word of the row.
//             Another adds to the owner's row of the table; the first such entry sets that to zero
//   2. add    these entries are added to the table (atomic.cuh, streamed.cuh)
//   3. write  each owner writes its row: its values alone, or with the sums of the others
// Single values have a word for two of them, a pair, which is owned and written as a whole.
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

namespace torch_ops::few {

constexpr int kThreads = 256;
constexpr int kUnroll = 4;  // words of a lane

// The entries of a call whose tables are one slice per batch. Entries are counted over
// [batch, entries], rows over [batch, axis_size]; both fit 31 bits.
struct Entries {
  IndexView index;
  RowLayout layout;
  IndexRule rule;

  __device__ int count() const { return static_cast<int>(layout.batch * layout.entries); }
  __device__ bool in_pairs() const { return layout.inner == 1; }
};

// What is known of each entry.
struct Claims {
  int32_t* rows;   // that it names
  int32_t* slots;  // kAlone before; then one of these, or the row of the table that it adds to

  static constexpr int32_t kAlone = -1;    // it owns its row, or its pair, and no others name that
  static constexpr int32_t kShared = -2;   // it owns it, and others do
  static constexpr int32_t kNowhere = -3;  // it names no row
};

// `result` is zeros, and begins at a multiple of a word. `last` has the owner of the last value
// of a number of single values that is odd: 0.
template <class Value>
__global__ void claim_kernel(Entries entries, Claims claims, Value* result, uint32_t* last,
                             float* __restrict__ table,
                             const __grid_constant__ IndexErrorSite errors) {
  const int64_t inner = entries.layout.inner;
  const int i = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  const auto lane = static_cast<int>(threadIdx.x % 32);
  int32_t row = -1;
  if (i < entries.count()) {
    const int per_batch = static_cast<int>(entries.layout.entries);
    const int batch = i / per_batch;
    int64_t named = entries.index[batch * entries.layout.index_batch_stride +
                                  (i - batch * per_batch) * entries.layout.index_entry_stride];
    if (entries.rule.rewrites()) named = entries.rule.resolve(named);
    if (in_range(named, entries.layout.axis_size)) {
      row = static_cast<int32_t>(batch * entries.layout.axis_size + named);
    } else {
      record_bad_entry(errors, i, named);
    }
  }
  // One lane acts for all that name its row: the atomics of a row with most of the entries would
  // wait for each other.
  const int32_t owned = entries.in_pairs() ? row >> 1 : row;
  const unsigned peers = __match_any_sync(kAllLanes, owned);
  const int acting = __ffs(peers) - 1;
  wait_for_kernel_before();
  uint32_t owner = 0;  // 1 + its number
  if (row >= 0 && lane == acting) {
    // Of two values, or of a row: a word that lies within it.
    const int64_t at = entries.in_pairs() ? row & ~1 : (row * inner + 1) & ~int64_t{1};
    const bool is_last = at + 1 == entries.layout.batch * entries.layout.axis_size * inner;
    owner = atomicCAS(is_last ? last : reinterpret_cast<uint32_t*>(result + at), 0u, i + 1u);
  }
  const bool owns = row >= 0 && lane == acting && owner == 0;
  if (owns) owner = i + 1u;
  owner = __shfl_sync(kAllLanes, owner, acting);
  const auto slot = static_cast<int32_t>(owner) - 1;
  bool first_to_share = false;
  if (row >= 0 && lane == acting && (!owns || __popc(peers) > 1)) {
    first_to_share = *static_cast<volatile int32_t*>(claims.slots + slot) == Claims::kAlone &&
                     atomicExch(claims.slots + slot, Claims::kShared) == Claims::kAlone;
  }
  if (i < entries.count()) {
    claims.rows[i] = row;
    if (row < 0) claims.slots[i] = Claims::kNowhere;
    if (row >= 0 && !owns) claims.slots[i] = entries.in_pairs() ? 2 * slot + (row & 1) : slot;
  }
  const int64_t width = entries.in_pairs() ? 2 : inner;
  for (unsigned left = __ballot_sync(kAllLanes, first_to_share); left != 0; left &= left - 1) {
    const int64_t zeroed = __shfl_sync(kAllLanes, slot, __ffs(left) - 1);
    for (int64_t column = lane; column < width; column += 32) table[zeroed * width + column] = 0;
  }
}

// Single values: a lane writes the pair that its entry owns.
template <class Value>
__global__ void write_pairs_kernel(Claims claims, int count, const Value* __restrict__ values,
                                   const float* table, Value* result, int64_t result_count) {
  const int i = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  const int32_t slot = i < count ? claims.slots[i] : Claims::kNowhere;
  const bool owns = slot == Claims::kAlone || slot == Claims::kShared;
  const int32_t row = owns ? claims.rows[i] : 0;
  float sums[2] = {};  // 0 and -0 are 0
  if (owns) sums[row & 1] += static_cast<float>(values[i]);
  wait_for_kernel_before();
  if (!owns) return;
  Vector<Value, 2> pair;
#pragma unroll
  for (int v = 0; v < 2; ++v) {
    if (slot == Claims::kShared) sums[v] += table[2 * int64_t{i} + v];
    pair.values[v] = static_cast<Value>(sums[v]);
  }
  const int64_t at = row & ~1;
  if (at + 1 == result_count) {
    result[at] = pair.values[0];
  } else {
    store(result + at, pair);
  }
}

// Longer rows. A lane has words of V values, a block's threads apart; grid counts these words of
// the entries' rows.
template <int V, class Value>
__global__ void __launch_bounds__(kThreads)
    write_kernel(Claims claims, const Value* __restrict__ values, const float* table, Value* result,
                 const __grid_constant__ RowGrid grid) {
  const int64_t inner = int64_t{grid.words} * V;
  for (int64_t number = blockIdx.y; number < grid.chunks; number += gridDim.y) {
    const RowGrid::Chunk chunk = grid.chunk(number);
    const uint32_t first = blockIdx.x * (kThreads * kUnroll) + threadIdx.x;
    int64_t from[kUnroll], to[kUnroll];
    int32_t slots[kUnroll], rows[kUnroll];
    Vector<Value, V> words[kUnroll];
#pragma unroll
    for (int k = 0; k < kUnroll; ++k) {
      // Beyond the end the last word is looked at again, and not written.
      const uint32_t word = first + k * kThreads;
      const RowGrid::Place at = grid.place(chunk, min(word, chunk.words - 1));
      slots[k] = claims.slots[at.entry];
      rows[k] = claims.rows[at.entry];
      if (word >= chunk.words) slots[k] = Claims::kNowhere;
      to[k] = int64_t{at.column} * V;
      from[k] = at.entry * inner + to[k];
    }
#pragma unroll
    for (int k = 0; k < kUnroll; ++k) {
      const bool owns = slots[k] == Claims::kAlone || slots[k] == Claims::kShared;
      if (owns) words[k] = *reinterpret_cast<const Vector<Value, V>*>(values + from[k]);
    }
    wait_for_kernel_before();
#pragma unroll
    for (int k = 0; k < kUnroll; ++k) {
      const bool shares = slots[k] == Claims::kShared;
      if (slots[k] != Claims::kAlone && !shares) continue;
#pragma unroll
      for (int v = 0; v < V; ++v) {  // a sum of -0 is 0
        const float others = shares ? table[from[k] + v] : 0.0f;
        words[k].values[v] = static_cast<Value>(static_cast<float>(words[k].values[v]) + others);
      }
      store(result + rows[k] * inner + to[k], words[k]);
    }
  }
}

}  // namespace torch_ops::few
