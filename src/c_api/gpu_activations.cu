// The activations on the device: the arithmetic of src/relu and src/sigmoid, in the kernels of
// src/common/elementwise.cuh.
#include "c_api/dispatch.h"
#include "c_api/gpu.h"
#include "c_api/gpu_runtime.cuh"
#include "common/elementwise_cuda.cuh"
#include "relu/relu_kernels.h"
#include "sigmoid/sigmoid_kernels.h"

namespace torch_ops::gpu {

void launch_activation(const ActivationCall& call) {
  dispatch_floating(call.dtype, [&](auto value) {
    using T = decltype(value);
    auto* output = static_cast<T*>(call.output);
    const auto* first = static_cast<const T*>(call.inputs[0]);
    const auto* second = static_cast<const T*>(call.inputs[1]);
    switch (call.activation) {
      case Activation::kRelu:
        return map_cuda(Relu(), StridedWalk<2>(call.size), nullptr, output, first);
      case Activation::kReluBackward:
        return map_cuda(Backward(Relu()), StridedWalk<3>(call.size), nullptr, output, first,
                        second);
      case Activation::kSigmoid:
        return map_cuda(Sigmoid(), StridedWalk<2>(call.size), nullptr, output, first);
      case Activation::kSigmoidBackward:
        return map_cuda(SigmoidBackward(), StridedWalk<3>(call.size), nullptr, output, first,
                        second);
    }
  });
}

void apply(const ActivationCall& call, torch_ops_stream stream, float* milliseconds) {
  const int64_t bytes = call.size * call.element_bytes;
  queue({{"the first input", call.inputs[0], bytes},
         {"the second input", call.inputs[1], call.inputs[1] == nullptr ? 0 : bytes},
         {"the output", call.output, bytes}},
        stream, milliseconds, [&](Reports) {
          if (call.size > 0) launch_activation(call);
        });
}

}  // namespace torch_ops::gpu
