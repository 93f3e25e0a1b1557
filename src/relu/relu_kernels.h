// The arithmetic of relu and leaky_relu and their derivatives, one value at a time. No torch.
//
// Either activation passes a value on if it `keeps` it, and otherwise gives off(value). The
// gradient likewise: grad_output if the value was kept, else off(grad_output).
#pragma once

#include <optional>

#include "common/host/float16.h"

namespace torch_ops {

struct Relu {
  // NaN is not <= 0, so it stays NaN, and its gradient is passed on.
  template <class T>
  TORCH_OPS_HOST_DEVICE bool keeps(T x) const {
    return !at_most_zero(x);
  }

  template <class T>
  TORCH_OPS_HOST_DEVICE T off(T) const {
    return T(0);
  }

  // -0.0 becomes 0.0 on a GPU and stays on a CPU, as in torch.
  template <class T>
  TORCH_OPS_HOST_DEVICE T operator()(T x) const {
#ifdef __CUDA_ARCH__
    return keeps(x) ? x : T(0);
#else
    return is_negative(x) ? T(0) : x;
#endif
  }
};

// Computes in float, while Relu only picks.
template <class Slope>
struct LeakyRelu : ComputesInFloat {
  Slope slope;

  explicit LeakyRelu(double slope) : slope(static_cast<Slope>(slope)) {}

  // NaN is not > 0: it is multiplied by the slope, and so is its gradient.
  template <class T>
  TORCH_OPS_HOST_DEVICE bool keeps(T x) const {
    return is_positive(x);
  }

  template <class T>
  TORCH_OPS_HOST_DEVICE T off(T x) const {
    return static_cast<T>(static_cast<Slope>(x) * slope);
  }

  template <class T>
  TORCH_OPS_HOST_DEVICE T operator()(T x) const {
    return keeps(x) ? x : off(x);
  }
};

// Calls use(activation) with LeakyRelu if there is a slope, else with Relu; for values of type
// T.
template <class T, class Use>
void with_activation(std::optional<double> slope, Use use) {
  if (slope) {
    use(LeakyRelu<ComputeType<T>>(*slope));
  } else {
    use(Relu());
  }
}

// The gradient from the output, or from any tensor that the activation keeps at the same places; or
// from the mask, which has whether the value was kept.
template <class Activation>
struct Backward : Activation {
  explicit Backward(Activation activation) : Activation(activation) {}

  template <class T>
  TORCH_OPS_HOST_DEVICE T operator()(T grad_output, T output) const {
    return this->keeps(output) ? grad_output : this->off(grad_output);
  }
  template <class T>
  TORCH_OPS_HOST_DEVICE T operator()(bool kept, T grad_output) const {
    return kept ? grad_output : this->off(grad_output);
  }
};

}  // namespace torch_ops
