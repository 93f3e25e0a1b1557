// The launchers of scatter's reductions other than the sum: they check nothing but the index's
// values. All of them take contiguous values and give the same result on every run.
#pragma once

#include <ATen/core/Tensor.h>

#include "common/checks.h"
#include "common/index_mode.h"
#include "common/row_layout.h"

namespace torch_ops {

struct Plan;

// Writes to `positions`, int64 and contiguous, for each element of the result which entry of the
// index has its largest (or smallest) value, the first of several; layout.entries where there is
// none. NaN is larger (or smaller) than any number. With the index's `plan`, which may be null,
// nothing is left to sort on CUDA.
void scatter_arg_cpu(const at::Tensor& values, const at::Tensor& index, const RowLayout& layout,
                     const IndexRule& rule, bool largest, const Plan* plan,
                     const at::Tensor& positions);
TORCH_OPS_CUDA_LAUNCHER(void scatter_arg_cuda(const at::Tensor& values, const at::Tensor& index,
                                              const RowLayout& layout, const IndexRule& rule,
                                              bool largest, const Plan* plan,
                                              const at::Tensor& positions))

// Writes the largest (or smallest) values to `result`, contiguous, of the same dtype; 0 where there
// is none. NaN is as above.
void scatter_best_cpu(const at::Tensor& values, const at::Tensor& index, const RowLayout& layout,
                      const IndexRule& rule, bool largest, const at::Tensor& result);

// Writes the products of real values to `products`, contiguous, of the same dtype; 1 where there
// are none. Multiplied in a fixed order, 16-bit floats in float32, and rounded once. A plan is as
// above.
void scatter_prod_cpu(const at::Tensor& values, const at::Tensor& index, const RowLayout& layout,
                      const IndexRule& rule, const Plan* plan, const at::Tensor& products);
TORCH_OPS_CUDA_LAUNCHER(void scatter_prod_cuda(const at::Tensor& values, const at::Tensor& index,
                                               const RowLayout& layout, const IndexRule& rule,
                                               const Plan* plan, const at::Tensor& products))

// Adds values to `sums`, both contiguous. On the CPU they are of one dtype, any that
// scatter_add_cpu takes, each element is rounded once, and an entry that is an error raises
// IndexError before anything is added. On CUDA `sums` are of sum_type(values' dtype), and it is as
// for scatter_add_cuda.
void scatter_add_to_cpu(const char* op, const at::Tensor& values, const at::Tensor& index,
                        const RowLayout& layout, const IndexRule& rule, const at::Tensor& sums);
TORCH_OPS_CUDA_LAUNCHER(void scatter_add_to_cuda(const char* op, const at::Tensor& values,
                                                 const at::Tensor& index, const RowLayout& layout,
                                                 const IndexRule& rule, const at::Tensor& sums))

}  // namespace torch_ops

// Runs the code with `value_t`, a type for a dtype whose values have an order.
#define TORCH_OPS_DISPATCH_ORDERED(dtype, ...)                                 \
  AT_DISPATCH_ALL_TYPES_AND2(at::kHalf, at::kBFloat16, dtype, "scatter", [&] { \
    using value_t = scalar_t;                                                  \
    __VA_ARGS__();                                                             \
  })
