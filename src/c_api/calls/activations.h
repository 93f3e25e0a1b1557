// A call of an activation, in the form for the kernels of src/relu and src/sigmoid.
#pragma once

#include "c_api/frame/arguments.h"
#include "c_api/frame/dispatch.h"
#include "relu/relu_launch.h"
#include "sigmoid/sigmoid_launch.h"

namespace torch_ops {

template <class On>
void apply(On on, const ActivationCall& call) {
  dispatch_floating(call.dtype, [&](auto value) {
    using T = decltype(value);
    auto* output = static_cast<T*>(call.output);
    const auto* first = static_cast<const T*>(call.inputs[0]);
    const auto* second = static_cast<const T*>(call.inputs[1]);
    const StridedWalk<2> forward(call.size);
    const StridedWalk<3> backward(call.size);
    switch (call.activation) {
      case Activation::kRelu:
        return kernels::relu(on, call.slope, forward, nullptr, output, first);
      case Activation::kReluBackward:
        return kernels::relu_backward(on, call.slope, backward, output, first, second);
      case Activation::kSigmoid:
        return kernels::sigmoid(on, forward, output, first);
      case Activation::kSigmoidBackward:
        return kernels::sigmoid_backward(on, backward, output, first, second);
    }
  });
}

}  // namespace torch_ops
