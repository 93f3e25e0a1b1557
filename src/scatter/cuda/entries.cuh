// Common code of several ways for the entries of an index. No torch.
#pragma once

#include <cstdint>

#include "common/indexing/index_error.cuh"
#include "common/indexing/index_mode.h"

namespace torch_ops {

// An entry out of range that a lane met: the last one. It is recorded after the lane's atomics, so
// that the registers for it do not add to theirs.
struct BadEntry {
  int64_t row = -1;  // of [batch, outer, entries]
  int64_t entry;

  // `first`: the row of the call that row 0 is.
  __device__ __forceinline__ void record(const IndexErrorSite& errors, int64_t first = 0) const {
    if (row >= 0) record_bad_entry(errors, first + row, entry);
  }
};

// The rows that entries name if the rule says which. Before they are used, all at once: within
// the later loops, the rule would cost registers in every mode.
template <int N>
__device__ __forceinline__ void apply_rule(const IndexRule& rule, int64_t (&entries)[N]) {
  if (!rule.rewrites()) return;
#pragma unroll
  for (int k = 0; k < N; ++k) entries[k] = rule.resolve(entries[k]);
}

}  // namespace torch_ops
