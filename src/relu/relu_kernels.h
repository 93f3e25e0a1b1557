// The arithmetic of relu and its derivative, one value at a time. No torch.
#pragma once

#include "common/host_device.h"

namespace torch_ops {

// NaN is not <= 0, so it stays NaN.
struct Relu {
  template <class T>
  TORCH_OPS_HOST_DEVICE T operator()(T x) const {
    return static_cast<ComputeType<T>>(x) <= 0 ? T(0) : x;
  }
};

// The gradient passes where the output is positive, and where it is NaN.
struct ReluBackward {
  template <class T>
  TORCH_OPS_HOST_DEVICE T operator()(T grad_output, T output) const {
    return static_cast<ComputeType<T>>(output) <= 0 ? T(0) : grad_output;
  }
};

}  // namespace torch_ops
