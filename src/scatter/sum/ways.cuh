// The ways of a sum on CUDA (choose.h), as run.cu launches them on the current stream: each writes
// its whole result, except atomics, which add. Values and result are not empty. No torch.
#pragma once

#include <algorithm>
#include <type_traits>

#include "common/cuda/launch.cuh"
#include "common/cuda/vectorized.cuh"
#include "common/indexing/index_view.cuh"
#include "scatter/scatter_launch.h"
#include "scatter/sum/choose.h"

namespace torch_ops {

// Zeros. For 16 bits in three quarters of the time of torch's kernel (docs/internals/log.md). The
// next kernel may begin during this one. `leave_shared`: it needs much shared memory.
void zero(void* memory, int64_t bytes, bool leave_shared = false);

// Launches a kernel that may begin early (launch.cuh), or one that may not.
template <class... Parameters, class... Arguments>
void launch(bool early, void (*kernel)(Parameters...), dim3 grid, int threads, int64_t shared_bytes,
            const Arguments&... arguments) {
  if (early) {
    launch_early(kernel, grid, dim3(threads), shared_bytes, arguments...);
  } else {
    TORCH_OPS_LAUNCH(kernel, grid, threads, shared_bytes, arguments...);
  }
}

// SumWay::kSmall; by a sparse cut, of floats alone, kSparse.
template <class Value>
void sum_small(const ReduceCall<Value, Value>& call, const SmallCut& cut,
               const IndexErrorSite& errors);

// SumWay::kFixedPoint. Value is a float of 2 or 4 bytes.
template <class Value>
void sum_fixed(const ReduceCall<Value, Value>& call, const FixedCut& cut,
               const IndexErrorSite& errors);

// SumWay::kPrivatized. `in_place`: adds to the values in the result.
template <class Value, class Result>
void sum_privatized(const ReduceCall<Value, Result>& call, const PrivatizedCut& cut, bool in_place,
                    const IndexErrorSite& errors);

// SumWay::kSorted. Value is a float.
template <class Value, class Result>
void sum_sorted(const ReduceCall<Value, Result>& call, const IndexErrorSite& errors);

// SumWay::kFew. Value is a 16-bit float.
template <class Value>
void sum_few(const ReduceCall<Value, Value>& call, const IndexErrorSite& errors);

// The ways by atomics, which add to the values in the result. `fresh`: zero() has just made it,
// nothing was launched since, and the kernel may begin before it has ended. `first_row`: which row
// of values is the first one, for errors.
template <class Value>
void add_by_atomics(const ReduceCall<Value, SumOf<Value>>& call, const SumPlan& plan, bool fresh,
                    int64_t first_row, const IndexErrorSite& errors);

// A call in the form for choose().
template <class Value, class Result>
SumProblem describe(const ReduceCall<Value, Result>& call, bool repeatable, bool in_place) {
  using Sum = SumOf<Value>;
  const RowLayout& layout = call.layout;
  const bool flat = layout.index_entry_stride == 1 &&
                    (layout.batch == 1 || layout.index_batch_stride == layout.entries);
  const bool adjacent = flat && layout.entries % 4 == 0 &&
                        IndexView{call.index}.is_aligned_for_load4() &&
                        is_aligned(call.values, 4 * sizeof(Value));
  // A table of our own is aligned.
  const int64_t vector = std::min<int64_t>(layout.inner, kTileVector);
  const bool vectors =
      std::is_same_v<Sum, float> && is_aligned(call.values, vector * sizeof(Value)) &&
      (!std::is_same_v<Sum, Result> || is_aligned(call.result, vector * sizeof(Sum)));
  return {layout,
          sizeof(Value),
          sizeof(Sum),
          sizeof(Result),
          !std::is_integral_v<Value>,
          repeatable && !std::is_integral_v<Value>,
          in_place,
          call.plan.rows.data != nullptr,
          adjacent,
          vectors,
          is_aligned(call.result, 4)};
}

}  // namespace torch_ops
