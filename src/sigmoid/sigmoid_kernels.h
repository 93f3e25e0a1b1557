// The arithmetic of sigmoid and its derivative, one value at a time. No torch.
#pragma once

#include <cmath>

#include "common/host_device.h"
#include "sigmoid/exp.h"

namespace torch_ops {

// 1 / (1 + exp(-x)), from exp(-|x|) so that nothing overflows and the lower tail keeps its digits.
struct Sigmoid : ComputesInFloat {
  template <class T>
  TORCH_OPS_HOST_DEVICE T operator()(T value) const {
    using Compute = ComputeType<T>;
    const Compute x = static_cast<Compute>(value);
#ifdef __CUDA_ARCH__
    const Compute e = std::exp(x < 0 ? x : -x);
#else
    const Compute e = exp_of_nonpositive(x < 0 ? x : -x);
#endif
    const Compute one = 1;
    return static_cast<T>((x < 0 ? e : one) / (one + e));
  }
};

// grad_output * y * (1 - y) for the output y.
struct SigmoidBackward : ComputesInFloat {
  template <class T>
  TORCH_OPS_HOST_DEVICE T operator()(T grad_output, T output) const {
    using Compute = ComputeType<T>;
    const Compute y = static_cast<Compute>(output);
    return static_cast<T>(static_cast<Compute>(grad_output) * (Compute(1) - y) * y);
  }
};

}  // namespace torch_ops
