// The arithmetic of relu and its derivative, one value at a time. No torch.
#pragma once

#include "common/float16.h"

namespace torch_ops {

// NaN is not <= 0, so it stays NaN.
struct Relu {
  template <class T>
  TORCH_OPS_HOST_DEVICE T operator()(T x) const {
    return at_most_zero(x) ? T(0) : x;
  }
};

// The gradient passes where the output is positive, and where it is NaN.
struct ReluBackward {
  template <class T>
  TORCH_OPS_HOST_DEVICE T operator()(T grad_output, T output) const {
    return at_most_zero(output) ? T(0) : grad_output;
  }
};

}  // namespace torch_ops
