// From the enums of the C library to C++ types.
#pragma once

#include <cstdint>
#include <type_traits>

#include "c_api/frame/arguments.h"
#include "common/host/float16.h"

namespace torch_ops {

// Calls use(value) with a value of the type that a dtype is stored in.
template <class Use>
void dispatch_dtype(torch_ops_dtype dtype, Use&& use) {
  switch (dtype) {
    case TORCH_OPS_FLOAT16:
      return use(Float16());
    case TORCH_OPS_BFLOAT16:
      return use(BFloat16());
    case TORCH_OPS_FLOAT32:
      return use(float());
    case TORCH_OPS_FLOAT64:
      return use(double());
    case TORCH_OPS_INT8:
      return use(int8_t());
    case TORCH_OPS_UINT8:
      return use(uint8_t());
    case TORCH_OPS_INT16:
      return use(int16_t());
    case TORCH_OPS_UINT16:
      return use(uint16_t());
    case TORCH_OPS_INT32:
      return use(int32_t());
    case TORCH_OPS_UINT32:
      return use(uint32_t());
    case TORCH_OPS_INT64:
      return use(int64_t());
    default:
      return use(0ull);
  }
}

// The same for floating dtypes only.
template <class Use>
void dispatch_floating(torch_ops_dtype dtype, Use&& use) {
  dispatch_dtype(dtype, [&](auto value) {
    if constexpr (!std::is_integral_v<decltype(value)>) use(value);
  });
}

// The type in which kernels sum and multiply: integers of the same size as unsigned ones, which
// wrap without undefined behaviour.
template <class Value>
auto summed_as(Value value) {
  if constexpr (std::is_same_v<Value, int64_t>) {
    return 0ull;
  } else if constexpr (std::is_integral_v<Value>) {
    return std::make_unsigned_t<Value>();
  } else {
    return value;
  }
}

// Calls use(value) with a value of the type that the kernels sum.
template <class Use>
void dispatch_summed(torch_ops_dtype dtype, Use&& use) {
  dispatch_dtype(dtype, [&](auto value) { use(summed_as(value)); });
}

}  // namespace torch_ops
