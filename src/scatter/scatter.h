// The launchers of scatter_add: they check nothing but the index's values.
#pragma once

#include <ATen/core/Tensor.h>

#include "common/checks.h"
#include "common/device_limits.h"
#include "common/index_mode.h"
#include "common/row_layout.h"
#include "common/summable.h"
#include "scatter/scatter_small.h"

namespace torch_ops {

// What the choice among the ways below depends on.
TORCH_OPS_CUDA_LAUNCHER(DeviceLimits device_limits_cuda(at::Device device))

// Zeros on CUDA: of 16 bits in three quarters of the time that torch's kernel takes
// (docs/gather.md). `leave_shared`: the next kernel, which may begin beside this one, needs much
// shared memory.
TORCH_OPS_CUDA_LAUNCHER(at::Tensor zeros_cuda(at::IntArrayRef sizes,
                                              const at::TensorOptions& options,
                                              bool leave_shared = false))

// Sums of floats, contiguous, which scatter_add_cuda() has just made, rounded to 16 bits.
TORCH_OPS_CUDA_LAUNCHER(at::Tensor round_cuda(const at::Tensor& sums, at::ScalarType dtype))

// Writes the sums of `values` to `result`, both contiguous and of one dtype, one that
// TORCH_OPS_DISPATCH_VALUES knows: every element, rounded once; or of 16-bit floats to one of
// float32. The same bits for any number of threads. An entry that names no row by the rule is
// dropped; where that is an error, raises IndexError, and the result is nonsense.
void scatter_add_cpu(const char* op, const at::Tensor& values, const at::Tensor& index,
                     const RowLayout& layout, const IndexRule& rule, const at::Tensor& result);

// Adds `values`, contiguous, to `sums`, contiguous, whose dtype is sum_type(values' dtype), and
// which zeros_cuda() has just made: nothing may have been launched since, and the kernel may begin
// before they are all zero. An
// entry that names no row by the rule is dropped; where that is an error, gives an IndexError at
// the next call, or at this one in sync mode (common/index_errors.h).
TORCH_OPS_CUDA_LAUNCHER(void scatter_add_cuda(const char* op, const at::Tensor& values,
                                              const at::Tensor& index, const RowLayout& layout,
                                              const IndexRule& rule, const at::Tensor& sums))

// The same for few entries beside many rows (`has_few_entries`), with a table of floats for the
// rows that have entries alone: `result`, contiguous, of the 16-bit dtype of the values, holds
// zeros.
TORCH_OPS_CUDA_LAUNCHER(void scatter_add_few_cuda(const char* op, const at::Tensor& values,
                                                  const at::Tensor& index, const RowLayout& layout,
                                                  const IndexRule& rule, const at::Tensor& result))

// What gather_plan makes of an index: its entries in the order of the rows that they name, entries
// of one row in their own order. One axis each, contiguous, int32 or int64.
struct Plan {
  at::Tensor rows;   // that they name, counted over [batch, axis_size]
  at::Tensor order;  // the entries, counted over [batch, entries]
};

// Fills a plan's tensors. Raises IndexError where an entry of the index is out of range; on CUDA
// too, where it waits for its kernels.
void sort_entries_cpu(const at::Tensor& index, const RowLayout& layout, const Plan& plan);
TORCH_OPS_CUDA_LAUNCHER(void sort_entries_cuda(const at::Tensor& index, const RowLayout& layout,
                                               const Plan& plan))

// Writes the sums of floating `values` to `result`, both contiguous and of dtypes as above: every
// element, rounded once, the same on every run. An entry out of range is treated as above. With
// the index's `plan`, which may be null, nothing is left to sort.
TORCH_OPS_CUDA_LAUNCHER(void scatter_add_sorted_cuda(const char* op, const at::Tensor& values,
                                                     const at::Tensor& index,
                                                     const RowLayout& layout, const IndexRule& rule,
                                                     const Plan* plan, const at::Tensor& result))

// The same as scatter_add_sorted_cuda without a plan, where choose_binning() says
// that it pays.
TORCH_OPS_CUDA_LAUNCHER(void scatter_add_binned_cuda(const char* op, const at::Tensor& values,
                                                     const at::Tensor& index,
                                                     const RowLayout& layout, const IndexRule& rule,
                                                     const at::Tensor& result))

// The same as scatter_add_sorted_cuda without a plan, by a cut that fits; for `values` of any dtype
// that TORCH_OPS_DISPATCH_VALUES knows. With a sparse cut, of 16-bit floats, and to a `result` that
// zeros_cuda() has just made.
TORCH_OPS_CUDA_LAUNCHER(void scatter_add_small_cuda(const char* op, const at::Tensor& values,
                                                    const at::Tensor& index,
                                                    const RowLayout& layout, const IndexRule& rule,
                                                    const SmallCut& cut, const at::Tensor& result))

// A real dtype as TORCH_OPS_DISPATCH_VALUES knows it: integers of one size add alike.
inline at::ScalarType as_dispatched(at::ScalarType dtype) {
  switch (dtype) {
    case at::kChar:
      return at::kByte;
    case at::kUInt16:
      return at::kShort;
    case at::kUInt32:
      return at::kInt;
    case at::kUInt64:
      return at::kLong;
    default:
      return dtype;
  }
}

// In what a real dtype is summed on CUDA: 16-bit floats in float32, rounded once at the end; 8- and
// 16-bit integers in int32, whose low bits are the same (and for which the GPU has atomics).
inline at::ScalarType sum_type(at::ScalarType dtype) {
  switch (dtype) {
    case at::kHalf:
    case at::kBFloat16:
      return at::kFloat;
    case at::kByte:
    case at::kChar:
    case at::kShort:
    case at::kUInt16:
      return at::kInt;
    case at::kUInt32:
      return at::kInt;
    case at::kUInt64:
      return at::kLong;
    default:
      return dtype;
  }
}

}  // namespace torch_ops

// Runs the code with `value_t`, a type for the values' dtype, and `sum_t`, one for the sums'.
// Signed and unsigned integers of one size add alike once widened, and unsigned ones wrap without
// undefined behaviour.
#define TORCH_OPS_SCATTER_CASE(dtype, value, sum, ...) \
  case dtype: {                                        \
    using value_t = value;                             \
    using sum_t [[maybe_unused]] = sum;                \
    __VA_ARGS__();                                     \
    break;                                             \
  }
#define TORCH_OPS_DISPATCH_VALUES(dtype, ...)                                              \
  switch (dtype) {                                                                         \
    TORCH_OPS_SCATTER_CASE(at::kHalf, c10::Half, float, __VA_ARGS__)                       \
    TORCH_OPS_SCATTER_CASE(at::kBFloat16, c10::BFloat16, float, __VA_ARGS__)               \
    TORCH_OPS_SCATTER_CASE(at::kFloat, float, float, __VA_ARGS__)                          \
    TORCH_OPS_SCATTER_CASE(at::kDouble, double, double, __VA_ARGS__)                       \
    TORCH_OPS_SCATTER_CASE(at::kByte, uint8_t, uint32_t, __VA_ARGS__)                      \
    TORCH_OPS_SCATTER_CASE(at::kShort, uint16_t, uint32_t, __VA_ARGS__)                    \
    TORCH_OPS_SCATTER_CASE(at::kInt, uint32_t, uint32_t, __VA_ARGS__)                      \
    TORCH_OPS_SCATTER_CASE(at::kLong, unsigned long long, unsigned long long, __VA_ARGS__) \
    default:                                                                               \
      TORCH_INTERNAL_ASSERT(false, "unexpected dtype ", ::torch_ops::dtype_name(dtype));   \
  }
