// Which dtypes can be summed by an index.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include "common/torch/checks.h"

namespace torch_ops {

inline void check_summable(const char* op, const at::Tensor& values) {
  const at::ScalarType dtype = values.scalar_type();
  TORCH_CHECK_TYPE(
      at::isIntegralType(dtype, /*includeBool=*/false) || dtype == at::kHalf ||
          dtype == at::kBFloat16 || dtype == at::kFloat || dtype == at::kDouble ||
          at::isComplexType(dtype),
      op,
      ": values must be of an integer type, float16, bfloat16, float32, float64 or a complex type, "
      "but it is ",
      dtype_name(dtype), ".");
}

}  // namespace torch_ops
