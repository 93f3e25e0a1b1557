// What the steps of a softmax over segments compute of single values, on both kinds of device. No
// torch.
#pragma once

#include <limits>

#include "common/elementwise/vector_math.h"
#include "common/host/host_device.h"
#include "segments/softmax_launch.h"

namespace torch_ops {

// Which of the arguments a step reads beside a and p.
constexpr bool reads_b(SoftmaxStep step) {
  return step == SoftmaxStep::kSoftmaxBack || step == SoftmaxStep::kLogSoftmaxBack;
}
constexpr bool reads_q(SoftmaxStep step) {
  return step == SoftmaxStep::kSoftmax || step == SoftmaxStep::kLogSoftmax ||
         step == SoftmaxStep::kLogSumExpBack;
}

// Of an infinite largest value 0, from which nothing differs by NaN.
template <class Number>
TORCH_OPS_HOST_DEVICE Number finite(Number largest) {
  constexpr Number kInfinity = std::numeric_limits<Number>::infinity();
  return largest == kInfinity || largest == -kInfinity ? Number(0) : largest;
}

// What is taken from the values of a softmax: NaN if the largest is +infinity, as in torch.
template <class Number>
TORCH_OPS_HOST_DEVICE Number softmax_shift(Number largest) {
  using Limits = std::numeric_limits<Number>;
  return largest == Limits::infinity() ? Limits::quiet_NaN() : finite(largest);
}

template <SoftmaxStep kStep>
struct SoftmaxFormula {
  template <class Number>
  TORCH_OPS_HOST_DEVICE Number operator()(Number a, Number b, Number p, Number q) const {
    switch (kStep) {
      case SoftmaxStep::kExp:
        return math::exp(a - finite(p));
      case SoftmaxStep::kSoftmax:
        return math::exp(a - softmax_shift(p)) / q;
      case SoftmaxStep::kLogSoftmax:
        return a - softmax_shift(p) - q;
      case SoftmaxStep::kSoftmaxBack:
        return a * (b - p);
      case SoftmaxStep::kLogSoftmaxBack:
        return b - math::exp(a) * p;
      default:  // kLogSumExpBack
        return p * math::exp(a - q);
    }
  }
};

}  // namespace torch_ops
