// scatter_add of few entries beside many rows, on raw pointers. No torch.
//
// 16-bit floats are summed in float32, but a table of floats for all rows would be twice the
// result. There are no more rows with entries than entries, so a table with a row for each entry
// will do:
//   1. claim  each entry names itself to the row that it adds to; the first one is kept
//   2. find   each entry takes that first entry's number, its slot, in the place of its row
//   3. the entries are added into the table by their slots (scatter_atomic.cuh)
//   4. round  the sums are rounded into the rows of the result, which held zeros
#pragma once

#include <cstdint>

#include "common/index_error.cuh"
#include "common/index_mode.h"
#include "common/index_view.cuh"
#include "common/row_layout.h"
#include "common/vectorized.cuh"

namespace torch_ops::few {

constexpr int kThreads = 256;

// The entries of a call whose tables are one slice a batch. Entries are counted over
// [batch, entries], rows over [batch, axis_size]; both fit 31 bits.
struct Entries {
  IndexView index;
  RowLayout layout;
  IndexRule rule;

  __device__ int count() const { return static_cast<int>(layout.batch * layout.entries); }

  // The row that entry i adds to, or kNoRow. `entry` is what the index says.
  __device__ __forceinline__ int64_t row(int i, int64_t& entry) const {
    const int per_batch = static_cast<int>(layout.entries);
    const int batch = i / per_batch;
    entry = index[batch * layout.index_batch_stride +
                  (i - batch * per_batch) * layout.index_entry_stride];
    const int64_t row = rule.rewrites() ? rule.resolve(entry) : entry;
    return in_range(row, layout.axis_size) ? batch * layout.axis_size + row : kNoRow;
  }
};

// `owners`, a number for each row, holds zeros before and then `count - i` of the row's first
// entry.
__global__ void claim_kernel(Entries entries, uint32_t* __restrict__ owners,
                             const __grid_constant__ IndexErrorSite errors) {
  const int i = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (i >= entries.count()) return;
  int64_t entry;
  const int64_t row = entries.row(i, entry);
  if (row != kNoRow) {
    atomicMax(owners + row, static_cast<uint32_t>(entries.count() - i));
  } else {
    record_bad_entry(errors, i, entry);
  }
}

__global__ void find_slots_kernel(Entries entries, const uint32_t* __restrict__ owners,
                                  int32_t* __restrict__ slots) {
  const int i = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (i >= entries.count()) return;
  int64_t entry;
  const int64_t row = entries.row(i, entry);
  slots[i] = row != kNoRow ? entries.count() - static_cast<int>(owners[row]) : -1;
}

// A lane has V values of an entry's slot.
template <int V, class Value, class Sum>
__global__ void round_kernel(Entries entries, const int32_t* __restrict__ slots,
                             const Sum* __restrict__ table, Value* __restrict__ result) {
  const int64_t lanes = entries.layout.inner / V;
  const int64_t word = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const auto i = static_cast<int>(word / lanes);
  if (i >= entries.count() || slots[i] != i) return;
  int64_t entry;
  const int64_t row = entries.row(i, entry);
  const int64_t column = (word - i * lanes) * V;
  const Sum* from = table + i * entries.layout.inner + column;
  Vector<Value, V> rounded;
#pragma unroll
  for (int v = 0; v < V; ++v) rounded.values[v] = static_cast<Value>(from[v]);
  store(result + row * entries.layout.inner + column, rounded);
}

}  // namespace torch_ops::few
