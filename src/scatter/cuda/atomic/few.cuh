// scatter_add of few entries to many rows, on raw pointers. No torch.
//
// 16-bit floats are summed in float32, but a table of floats for all rows would be twice the
// result. There are no more rows with entries than entries, so a table with a row for each entry
// suffices; and if few rows are named, most are named once, which leaves nothing to sum.
//   1. claim  each entry claims the row that it adds to; the first one owns it. A shared row is
//             summed in the owner's row of the table; the first entry that shares it sets that
//             to zero
//   2. find   each entry finds its owner's number, its slot, or that it has its row alone
//   3. entries that share a row are added into the table by their slots (atomic.cuh,
//   streamed.cuh)
//   4. write  the others are copied, and the sums rounded, into the rows of the result, which are
//             zeros
#pragma once

#include <cstdint>

#include "common/cuda/vectorized.cuh"
#include "common/indexing/index_error.cuh"
#include "common/indexing/index_mode.h"
#include "common/indexing/index_view.cuh"
#include "common/indexing/row_layout.h"

namespace torch_ops::few {

constexpr int kThreads = 256;

// The entries of a call whose tables are one slice per batch. Entries are counted over
// [batch, entries], rows over [batch, axis_size]; both fit 31 bits.
struct Entries {
  IndexView index;
  RowLayout layout;
  IndexRule rule;

  __device__ int count() const { return static_cast<int>(layout.batch * layout.entries); }

  // The row that entry i adds to, or kNoRow. `named`: of its batch, as the rule resolves the entry.
  __device__ __forceinline__ int64_t row(int i, int64_t& named) const {
    const int per_batch = static_cast<int>(layout.entries);
    const int batch = i / per_batch;
    named = index[batch * layout.index_batch_stride +
                  (i - batch * per_batch) * layout.index_entry_stride];
    if (rule.rewrites()) named = rule.resolve(named);
    return in_range(named, layout.axis_size) ? batch * layout.axis_size + named : kNoRow;
  }
};

// For each row, `owners` is 0 before, and then 1 + the number of the entry that owns it, with
// this bit if others name it too.
constexpr uint32_t kShared = uint32_t{1} << 31;

// What an entry adds to if that is not a row of the table.
constexpr int32_t kNowhere = -1;  // no row at all
constexpr int32_t kAlone = -2;    // it is the only one of its row

template <class Sum>
__global__ void claim_kernel(Entries entries, uint32_t* __restrict__ owners,
                             Sum* __restrict__ table,
                             const __grid_constant__ IndexErrorSite errors) {
  constexpr unsigned kAll = 0xFFFFFFFF;
  const int i = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  const auto lane = static_cast<int>(threadIdx.x % 32);
  int64_t row = kNoRow;
  if (i < entries.count()) {
    int64_t named;
    row = entries.row(i, named);
    if (row == kNoRow) record_bad_entry(errors, i, named);
  }
  // One lane acts for all that name its row: the atomics of a row with most of the entries would
  // wait for each other.
  const unsigned peers = __match_any_sync(kAll, static_cast<int>(row));
  uint32_t owner = 0;
  bool first_to_share = false;
  if (row != kNoRow && lane == __ffs(peers) - 1) {
    owner = atomicCAS(owners + row, uint32_t{0}, static_cast<uint32_t>(i) + 1);
    const bool owns = owner == 0;
    if (owns) owner = static_cast<uint32_t>(i) + 1;
    const bool shares = !owns || __popc(peers) > 1;
    if (shares && (owner & kShared) == 0) {
      first_to_share = (atomicOr(owners + row, kShared) & kShared) == 0;
    }
  }
  const int64_t inner = entries.layout.inner;
  for (unsigned left = __ballot_sync(kAll, first_to_share); left != 0; left &= left - 1) {
    const auto slot = static_cast<int64_t>(__shfl_sync(kAll, owner, __ffs(left) - 1)) - 1;
    for (int64_t column = lane; column < inner; column += 32) table[slot * inner + column] = 0;
  }
}

__global__ void find_slots_kernel(Entries entries, const uint32_t* __restrict__ owners,
                                  int32_t* __restrict__ slots) {
  const int i = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (i >= entries.count()) return;
  int64_t named;
  const int64_t row = entries.row(i, named);
  int32_t slot = kNowhere;
  if (row != kNoRow) {
    const uint32_t owner = owners[row];
    slot = (owner & kShared) != 0 ? static_cast<int32_t>(owner & ~kShared) - 1 : kAlone;
  }
  slots[i] = slot;
}

// A lane has V values of an entry. Of those that share a row, the one that owns the slot writes it.
template <int V, class Value, class Sum>
__global__ void write_kernel(Entries entries, const int32_t* __restrict__ slots,
                             const Value* __restrict__ values, const Sum* __restrict__ table,
                             Value* __restrict__ result) {
  const int64_t lanes = entries.layout.inner / V;
  const int64_t word = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const auto i = static_cast<int>(word / lanes);
  if (i >= entries.count()) return;
  const int32_t slot = slots[i];
  if (slot != i && slot != kAlone) return;
  int64_t named;
  const int64_t row = entries.row(i, named);
  const int64_t column = (word - i * lanes) * V;
  const int64_t from = i * entries.layout.inner + column;
  Vector<Value, V> sums;
  if (slot == kAlone) {
    sums = *reinterpret_cast<const Vector<Value, V>*>(values + from);
#pragma unroll
    for (int v = 0; v < V; ++v) {  // a sum of -0.0 is 0.0
      sums.values[v] = static_cast<Value>(static_cast<Sum>(sums.values[v]) + Sum(0));
    }
  } else {
#pragma unroll
    for (int v = 0; v < V; ++v) sums.values[v] = static_cast<Value>(table[from + v]);
  }
  store(result + row * entries.layout.inner + column, sums);
}

}  // namespace torch_ops::few
