// Common code of the contracts of sums and of other reductions: dtypes, and calls of the kernel
// library.
#pragma once

#include <ATen/Dispatch.h>
#include <ATen/core/Tensor.h>

#include "common/gather_family/call_indexed.h"
#include "common/gather_family/summable.h"
#include "common/torch/calls/checks.h"
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

// The plan of an index, in tensors of one axis each, contiguous, int32 or int64.
struct Plan {
  at::Tensor rows;
  at::Tensor order;

  PlanArrays arrays() const { return {index_array(rows), index_array(order)}; }
};

// A call on contiguous tensors. `plan` may be null.
template <class Value, class Result>
ReduceCall<Value, Result> reduce_call(const at::Tensor& values, const at::Tensor& index,
                                      const RowLayout& layout, const IndexRule& rule,
                                      const at::Tensor& result, const Plan* plan = nullptr) {
  return {static_cast<const Value*>(values.const_data_ptr()),
          index_array(index),
          layout,
          rule,
          static_cast<Result*>(result.mutable_data_ptr()),
          plan != nullptr ? plan->arrays() : PlanArrays()};
}

}  // namespace torch_ops
