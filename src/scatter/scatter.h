// Common code of the contracts of sums and of other reductions: dtypes, and calls of the kernel
// library.
#pragma once

#include <ATen/Dispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include "common/gather_family/call_indexed.h"
#include "common/gather_family/summable.h"
#include "common/torch/calls/checks.h"
#include "common/torch/calls/new_output.h"
#include "scatter/scatter_launch.h"

namespace torch_ops {

// A real dtype in the form for dispatch_summed: integers of one size add alike.
inline at::ScalarType as_dispatched(at::ScalarType dtype) {
  return dtype == at::kChar ? at::kByte : as_signed(dtype);
}

// The dtype of SumOf, in which a real dtype is summed on CUDA.
inline at::ScalarType sum_type(at::ScalarType dtype) {
  if (at::isReducedFloatingType(dtype)) return at::kFloat;
  return c10::elementSize(dtype) < 4 ? at::kInt : as_signed(dtype);
}

// Calls use(value) with a value of the kernels' type for a real dtype that can be summed.
template <class Use>
auto dispatch_summed(at::ScalarType dtype, Use&& use) {
  switch (as_dispatched(dtype)) {
    case at::kHalf:
      return use(Float16());
    case at::kBFloat16:
      return use(BFloat16());
    case at::kFloat:
      return use(float());
    case at::kDouble:
      return use(double());
    case at::kByte:
      return use(uint8_t());
    case at::kShort:
      return use(uint16_t());
    case at::kInt:
      return use(uint32_t());
    case at::kLong:
      return use(uint64());
    default:
      TORCH_INTERNAL_ASSERT(false, "unexpected dtype ", dtype_name(dtype));
  }
}

// The same for a dtype that check_ordered accepts.
template <class Use>
auto dispatch_ordered(at::ScalarType dtype, Use&& use) {
  return AT_DISPATCH_ALL_TYPES_AND2(at::kHalf, at::kBFloat16, dtype, "a reduction",
                                    [&] { return use(typename KernelTypeOf<scalar_t>::type()); });
}

// How a call with checked arguments treats its entries.
struct SumCall {
  indexing::Axes axes;
  IndexMode mode;
  const char* op;  // the name in which errors are raised
};

// The plan of an index, in tensors of one axis each, int32 or int64.
struct Plan {
  at::Tensor rows;
  at::Tensor order;
};

// A call on contiguous tensors. Complex numbers are two adjacent real ones: the innermost axis is
// twice as long in the layout.
struct RowsCall {
  at::Tensor values;
  const at::Tensor& index;
  RowLayout layout;
  IndexRule rule;
  const at::Tensor& result;
  PlanArrays plan{};

  template <class Value, class Result>
  ReduceCall<Value, Result> of() const {
    return {static_cast<const Value*>(values.const_data_ptr()),
            index_array(index),
            layout,
            rule,
            static_cast<Result*>(result.mutable_data_ptr()),
            plan};
  }
};

// Calls reduce(on, rows, errors...), which writes to `result`, a contiguous tensor.
template <class On, class Reduce>
void call_rows(const SumCall& call, const at::Tensor& values, const at::Tensor& index,
               const at::Tensor& result, const std::optional<Plan>& plan, Reduce&& reduce) {
  at::DimVector sizes(result.sizes());
  if (values.is_complex()) sizes.push_back(2);
  at::Tensor entries = index;
  const RowLayout layout = indexing::lay_out_contiguous(sizes, entries, call.axes);
  RowsCall rows{values.contiguous(), entries, layout, IndexRule(call.mode, layout.axis_size),
                result};
  Plan parts;  // which the arrays point to
  if (plan) {
    parts = {plan->rows.contiguous(), plan->order.contiguous()};
    rows.plan = {index_array(parts.rows), index_array(parts.order)};
  }
  call_indexed<On>(
      call.op, entries, layout, call.mode, result,
      [&](auto on, const auto&... errors) { return reduce(on, std::as_const(rows), errors...); });
}

// The same for a new result of `dtype`.
template <class On, class Reduce>
at::Tensor reduce_rows(const SumCall& call, const at::Tensor& values, const at::Tensor& index,
                       const c10::SymInt& dim_size, const std::optional<Plan>& plan,
                       at::ScalarType dtype, Reduce&& reduce) {
  const auto sizes = indexing::scatter_sizes(values, index, dim_size, call.axes);
  const auto options = values.options().dtype(dtype);
  if constexpr (std::is_same_v<On, OnMeta>) {
    return at::empty_symint(sizes, options);
  } else {
    at::Tensor result = new_output(C10_AS_INTARRAYREF_SLOW(sizes), options);
    call_rows<On>(call, values, index, result, plan, reduce);
    return result;
  }
}

}  // namespace torch_ops
