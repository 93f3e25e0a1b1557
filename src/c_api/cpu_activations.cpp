// The activations on the CPU: the arithmetic of src/relu and src/sigmoid, in the loops of
// src/common/elementwise.h, over the threads of thread_pool.cpp.
#include "c_api/cpu.h"
#include "c_api/dispatch.h"
#include "common/elementwise_cpu.h"
#include "relu/relu_kernels.h"
#include "sigmoid/sigmoid_float32.h"
#include "sigmoid/sigmoid_kernels.h"

namespace torch_ops::cpu {
namespace {

template <class T, class Op, class... Inputs>
void map(Op op, const ActivationCall& call, const Inputs*... inputs) {
  const Simd simd = cpu_simd();
  parallel_for(call.size, kElementsPerTask, [&](int64_t begin, int64_t end) {
    map_range(simd, op, begin, end, static_cast<T*>(call.output), inputs...);
  });
}

}  // namespace

void apply(const ActivationCall& call) {
  dispatch_floating(call.dtype, [&](auto value) {
    using T = decltype(value);
    const auto* first = static_cast<const T*>(call.inputs[0]);
    const auto* second = static_cast<const T*>(call.inputs[1]);
    switch (call.activation) {
      case Activation::kRelu:
        return map<T>(Relu(), call, first);
      case Activation::kReluBackward:
        return map<T>(Backward(Relu()), call, first, second);
      case Activation::kSigmoid:
        return map<T>(CpuSigmoid<T>(), call, first);
      case Activation::kSigmoidBackward:
        return map<T>(SigmoidBackward(), call, first, second);
    }
  });
}

}  // namespace torch_ops::cpu
