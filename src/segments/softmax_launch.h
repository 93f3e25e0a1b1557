// The steps of a softmax over segments: those that work on single values and, on CUDA, totals of
// rows in one pass (segments.cu). Nothing is checked. No torch.
#pragma once

#include <type_traits>

#include "common/host/float16.h"
#include "common/host/host_device.h"
#include "common/host/host_program.h"
#include "common/indexing/index_array.h"
#include "common/layout/row_layout.h"
#include "scatter/scatter_launch.h"

namespace torch_ops {

// What is computed of a and b, which lie at an entry, and p and q, at the row that it names. The p
// of the first three is the largest value of the row, and taken for 0 where that is -infinity;
// where it is +infinity, kExp takes it for 0, and the next two give NaN.
enum class SoftmaxStep {
  kExp,             // exp(a - p)
  kSoftmax,         // exp(a - p) / q
  kLogSoftmax,      // a - p - q
  kSoftmaxBack,     // a * (b - p)
  kLogSoftmaxBack,  // b - exp(a) * p
  kLogSumExpBack,   // p * exp(a - q)
};

template <SoftmaxStep kStep, class Value>
struct SoftmaxCall {
  using Number = ComputeType<Value>;
  using Out = std::conditional_t<kStep == SoftmaxStep::kExp, Number, Value>;

  const Value* a;
  const Value* b;
  const Number* p;
  const Number* q;
  IndexArray index;
  RowLayout layout;
  Out* out;  // as a and b; 0 where the entry names no row
};

// Of the values of a row: the largest, and the sum of exp(value - largest), where an infinite
// largest value is taken for 0; both 0 of a row without values.
template <class Number>
struct alignas(2 * sizeof(Number)) ExpSum {
  Number largest;
  Number sum;
};

// Totals of rows whose entries are in order: those of a plan or, if there are none, of the segments
// that `index` has the offsets of (segments_launch.h).
template <class Value, class Result>
struct RowTotals {
  const Value* values;  // [batch, outer, entries, inner]
  IndexArray index;
  RowLayout layout;
  PlanArrays plan;
  Result* result;  // [batch, outer, axis_size, inner]
};

namespace kernels {

// In one pass; the same bits on every run.
template <class Value>
TORCH_OPS_KERNELS_API void exp_sums(OnCuda on,
                                    const RowTotals<Value, ExpSum<ComputeType<Value>>>& call);
// The sums of the products with the values of `others`.
template <class Value>
TORCH_OPS_KERNELS_API void product_sums(OnCuda on, const RowTotals<Value, ComputeType<Value>>& call,
                                        const Value* others);

template <SoftmaxStep kStep, class Value>
TORCH_OPS_KERNELS_API void softmax_step(OnCpu on, const SoftmaxCall<kStep, Value>& call);
template <SoftmaxStep kStep, class Value>
TORCH_OPS_KERNELS_API void softmax_step(OnCuda on, const SoftmaxCall<kStep, Value>& call);

}  // namespace kernels
}  // namespace torch_ops

// INSTANTIATE_STEP(step, Value), which whoever includes this defines
#define TORCH_OPS_SOFTMAX_STEPS(T)     \
  INSTANTIATE_STEP(kExp, T)            \
  INSTANTIATE_STEP(kSoftmax, T)        \
  INSTANTIATE_STEP(kLogSoftmax, T)     \
  INSTANTIATE_STEP(kSoftmaxBack, T)    \
  INSTANTIATE_STEP(kLogSoftmaxBack, T) \
  INSTANTIATE_STEP(kLogSumExpBack, T)
