// The sums and reductions of scatter_add, scatter and scatter_elements_add in the kernel library:
// *_cpu.cpp and *_cuda.cu of this folder. Arrays are contiguous unless a layout has their strides.
// Only the values of the index are checked. No torch.
//
// Value is float, double, Float16, BFloat16 or an unsigned integer of 1, 2, 4 or 8 bytes: signed
// ones add and multiply alike. Entries that name no row by the rule are dropped. If that is an
// error, a function for the CPU returns the position of the first such entry, and the result is
// undefined; one for CUDA records it.
#pragma once

#include <cstdint>
#include <type_traits>

#include "common/host/float16.h"
#include "common/host/host_program.h"
#include "common/indexing/index_array.h"
#include "common/indexing/index_error.h"
#include "common/indexing/index_mode.h"
#include "common/layout/element_layout.h"
#include "common/layout/row_layout.h"

namespace torch_ops {

using uint64 = unsigned long long;  // for which CUDA has atomics

// The type in which values are summed on CUDA: 16-bit floats in float, rounded once at the end;
// integers of one and two bytes in four, whose low bits are the same (and which have atomics).
template <class Value>
using SumOf = std::conditional_t<std::is_integral_v<Value>,
                                 std::conditional_t<(sizeof(Value) < 4), uint32_t, Value>,
                                 std::conditional_t<(sizeof(Value) < 4), float, Value>>;

// The result of gather_plan: an index's entries in the order of the rows that they name, entries
// of one row in their own order. Of 4 or 8 bytes each. Null: there is no plan.
struct PlanArrays {
  IndexArray rows{};   // that they name, counted over [batch, axis_size]
  IndexArray order{};  // the entries, counted over [batch, entries]
};

// Result is Value, or SumOf<Value> for sums that are not rounded.
template <class Value, class Result>
struct ReduceCall {
  const Value* values;
  IndexArray index;
  RowLayout layout;
  IndexRule rule;
  Result* result;
  PlanArrays plan{};

  int64_t values_count() const { return layout.slabs() * layout.entries * layout.inner; }
  int64_t result_count() const { return layout.slabs() * layout.axis_size * layout.inner; }
};

template <class Value>
struct AlongCall {
  const Value* values;
  IndexArray index;
  ElementLayout layout;
  IndexRule rule;
  SumOf<Value>* sums;
  int64_t sums_count;
};

// How values are joined to those of a result that is there already.
enum class IntoRule { kSum, kMean, kProduct, kLargest, kSmallest };

// Are means asked for, or else variances, and with which correction of the number of values?
struct MomentRule {
  bool is_mean;
  double correction;
};

namespace kernels {

// ---- Sums ---------------------------------------------------------------------------------------

// Writes the sums to the result: every element, rounded once. Result is Value, or float for the
// 16-bit floats. The same bits for any number of threads.
template <class Value, class Result>
TORCH_OPS_KERNELS_API int64_t scatter_add(OnCpu on, const ReduceCall<Value, Result>& call);
// `repeatable`: floats must have the same bits on every run, as with a plan.
template <class Value, class Result>
TORCH_OPS_KERNELS_API void scatter_add(OnCuda on, const ReduceCall<Value, Result>& call,
                                       bool repeatable, const IndexErrorSite& errors);

// Adds the values to the result. On the CPU each element is rounded once, and nothing is
// added if an entry is an error. On CUDA they are added in no fixed order.
template <class Value>
TORCH_OPS_KERNELS_API int64_t scatter_add_to(OnCpu on, const ReduceCall<Value, Value>& call);
template <class Value>
TORCH_OPS_KERNELS_API void scatter_add_to(OnCuda on, const ReduceCall<Value, SumOf<Value>>& call,
                                          const IndexErrorSite& errors);

// ---- Plans --------------------------------------------------------------------------------------

// The first entry of an index that is an error by the rule.
TORCH_OPS_KERNELS_API int64_t find_bad_entry(OnCpu on, const IndexArray& index,
                                             const RowLayout& layout, const IndexRule& rule);

// Writes a plan. Id is uint32_t or uint64_t.
template <class Id>
TORCH_OPS_KERNELS_API void sort_entries(OnCuda on, const IndexArray& index, const RowLayout& layout,
                                        Id* rows, Id* order, const IndexErrorSite& errors);

// ---- Other reductions; the same result on every run ---------------------------------------------

// Writes for each element of the result which entry of the index has its largest (or smallest)
// value, the first of several; layout.entries if there is none. NaN is larger (or smaller) than
// any number. Value may be a signed integer, but not an unsigned one of more than one byte.
template <class Value>
TORCH_OPS_KERNELS_API int64_t scatter_arg(OnCpu on, const ReduceCall<Value, int64_t>& call,
                                          bool largest);
template <class Value>
TORCH_OPS_KERNELS_API void scatter_arg(OnCuda on, const ReduceCall<Value, int64_t>& call,
                                       bool largest, const IndexErrorSite& errors);

// Writes these values themselves; 0 if there is none.
template <class Value>
TORCH_OPS_KERNELS_API int64_t scatter_best(OnCpu on, const ReduceCall<Value, Value>& call,
                                           bool largest);
template <class Value>
TORCH_OPS_KERNELS_API void scatter_best(OnCuda on, const ReduceCall<Value, Value>& call,
                                        bool largest, const IndexErrorSite& errors);

// Writes the products; 1 if there are none. Multiplied in a fixed order, 16-bit floats in float,
// and rounded once.
template <class Value>
TORCH_OPS_KERNELS_API int64_t scatter_prod(OnCpu on, const ReduceCall<Value, Value>& call);
template <class Value>
TORCH_OPS_KERNELS_API void scatter_prod(OnCuda on, const ReduceCall<Value, Value>& call,
                                        const IndexErrorSite& errors);

// Writes the means, 0 of no values, or the variances: the sum of squared distances from the mean,
// divided by the number of values less the correction, or by 0 if that is negative.
template <class Value>
TORCH_OPS_KERNELS_API void scatter_moment(OnCuda on,
                                          const ReduceCall<Value, ComputeType<Value>>& call,
                                          MomentRule rule, const IndexErrorSite& errors);

// Joins the values to the result, in order; without `include_self` the first of a row overwrites
// it. Sums and means are of floats alone; those of 16-bit floats, and their products, are rounded
// once. On CUDA for kLargest and kSmallest alone.
template <class Value>
TORCH_OPS_KERNELS_API int64_t scatter_into(OnCpu on, const ReduceCall<Value, Value>& call,
                                           IntoRule rule, bool include_self);
template <class Value>
TORCH_OPS_KERNELS_API void scatter_into(OnCuda on, const ReduceCall<Value, Value>& call,
                                        IntoRule rule, bool include_self,
                                        const IndexErrorSite& errors);

// ---- An entry for each element ------------------------------------------------------------------

// Writes the sums, not rounded. On the CPU the same bits for any number of threads, on CUDA in no
// fixed order.
template <class Value>
TORCH_OPS_KERNELS_API int64_t add_along(OnCpu on, const AlongCall<Value>& call);
template <class Value>
TORCH_OPS_KERNELS_API void add_along(OnCuda on, const AlongCall<Value>& call,
                                     const IndexErrorSite& errors);

// Writes the place in the result, counted over all of its elements, that each entry names;
// `nowhere` for one that is dropped, or is an error.
TORCH_OPS_KERNELS_API void find_places(OnCuda on, const IndexArray& index,
                                       const ElementLayout& layout, const IndexRule& rule,
                                       int64_t nowhere, int64_t* places,
                                       const IndexErrorSite& errors);

}  // namespace kernels
}  // namespace torch_ops

// The types of values that are summed; `INSTANTIATE` is a macro of one parameter.
#define TORCH_OPS_FOR_EACH_SUMMED(INSTANTIATE) \
  TORCH_OPS_FOR_EACH_FLOAT(INSTANTIATE)        \
  INSTANTIATE(uint8_t)                         \
  INSTANTIATE(uint16_t)                        \
  INSTANTIATE(uint32_t)                        \
  INSTANTIATE(::torch_ops::uint64)

// The types of values that have an order.
#define TORCH_OPS_FOR_EACH_ORDERED(INSTANTIATE) \
  TORCH_OPS_FOR_EACH_FLOAT(INSTANTIATE)         \
  INSTANTIATE(uint8_t)                          \
  INSTANTIATE(int8_t)                           \
  INSTANTIATE(int16_t)                          \
  INSTANTIATE(int32_t)                          \
  INSTANTIATE(int64_t)
