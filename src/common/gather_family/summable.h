// Which dtypes can be summed by an index, and which can be compared.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include "common/torch/calls/checks.h"

namespace torch_ops {

inline void check_summable(const char* op, const at::Tensor& values) {
  const at::ScalarType dtype = values.scalar_type();
  TORCH_CHECK_TYPE(
      at::isIntegralType(dtype, /*includeBool=*/false) || is_kernel_float(values) ||
          at::isComplexType(dtype),
      op,
      ": values must be of an integer type, float16, bfloat16, float32, float64 or a complex type, "
      "but it is ",
      dtype_name(dtype), ".");
}

// For the mean.
inline void check_averaged(const char* op, const at::Tensor& values) {
  check_summable(op, values);
  TORCH_CHECK_TYPE(!at::isBarebonesUnsignedType(values.scalar_type()), op,
                   ": values must not be uint16, uint32 or uint64 for a mean, but it is ",
                   dtype_name(values.scalar_type()), ".");
}

// What values are summed in.
inline at::ScalarType unrounded(at::ScalarType values) {
  return at::isReducedFloatingType(values) ? at::kFloat
         : values == at::kComplexHalf      ? at::kComplexFloat
                                           : values;
}

// For the largest value and the product.
inline void check_ordered(const char* op, const at::Tensor& values) {
  const at::ScalarType dtype = values.scalar_type();
  TORCH_CHECK_TYPE(
      is_kernel_float(values) ||
          (at::isIntegralType(dtype, /*includeBool=*/false) && !at::isBarebonesUnsignedType(dtype)),
      op,
      ": values must be uint8, int8, int16, int32, int64, float16, bfloat16, float32 or float64 "
      "for this reduction, but it is ",
      dtype_name(dtype), ".");
}

// The signed integers of the same size, for those that torch's add, where and masked_fill do not
// accept; both add alike.
inline at::ScalarType as_signed(at::ScalarType dtype) {
  return dtype == at::kUInt16   ? at::kShort
         : dtype == at::kUInt32 ? at::kInt
         : dtype == at::kUInt64 ? at::kLong
                                : dtype;
}

inline at::Tensor as_bits(const at::Tensor& tensor) {
  const at::ScalarType dtype = as_signed(tensor.scalar_type());
  return dtype == tensor.scalar_type() ? tensor : tensor.view(dtype);
}

inline at::Tensor from_bits(const at::Tensor& bits, at::ScalarType dtype) {
  return bits.scalar_type() == dtype ? bits : bits.view(dtype);
}

inline at::Tensor sum_of(const at::Tensor& a, const at::Tensor& b) {
  return from_bits(as_bits(a).add(as_bits(b)), a.scalar_type());
}

}  // namespace torch_ops
