// From the enums of the C library to C++ types.
#pragma once

#include <cstdint>

#include "c_api/arguments.h"
#include "common/host/float16.h"

namespace torch_ops {

// Calls use(value) with a value of the type that a floating dtype is stored in.
template <class Use>
void dispatch_floating(torch_ops_dtype dtype, Use&& use) {
  switch (dtype) {
    case TORCH_OPS_FLOAT16:
      return use(Float16());
    case TORCH_OPS_BFLOAT16:
      return use(BFloat16());
    case TORCH_OPS_FLOAT32:
      return use(float());
    default:
      return use(double());
  }
}

// Calls use(value, sum): what is summed, and in what on a device. Integers of one size add alike
// once widened; unsigned ones wrap without undefined behaviour.
template <class Use>
void dispatch_summed(torch_ops_dtype dtype, Use&& use) {
  switch (dtype) {
    case TORCH_OPS_FLOAT16:
      return use(Float16(), float());
    case TORCH_OPS_BFLOAT16:
      return use(BFloat16(), float());
    case TORCH_OPS_FLOAT32:
      return use(float(), float());
    case TORCH_OPS_FLOAT64:
      return use(double(), double());
    case TORCH_OPS_INT8:
    case TORCH_OPS_UINT8:
      return use(uint8_t(), uint32_t());
    case TORCH_OPS_INT16:
    case TORCH_OPS_UINT16:
      return use(uint16_t(), uint32_t());
    case TORCH_OPS_INT32:
    case TORCH_OPS_UINT32:
      return use(uint32_t(), uint32_t());
    default:
      return use(0ull, 0ull);
  }
}

// Calls use(entry) with a value of the index's type.
template <class Use>
auto dispatch_index(int64_t index_bytes, Use&& use) {
  return index_bytes == 4 ? use(int32_t()) : use(int64_t());
}

}  // namespace torch_ops
