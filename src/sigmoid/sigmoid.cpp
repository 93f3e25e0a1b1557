// The contract of sigmoid: the parts of its op, and its binding.
#include <ATen/ops/sigmoid.h>

#include "common/elementwise/elementwise_op.h"
#include "sigmoid/sigmoid_launch.h"

namespace torch_ops {
namespace {

using at::Tensor;

struct SigmoidOp final : ElementwiseOp<SigmoidOp> {
  TORCH_OPS_SCHEMAS("sigmoid", "output")
  static constexpr const char* kNode = "Sigmoid";
  static constexpr bool kSavesOutput = true;
  TORCH_OPS_LAUNCHED_BY(kernels::sigmoid)

  // grad_input = g y (1 - y) for the output y.
  static Tensor slope(const Tensor& grad_output, const Tensor& output) {
    return grad_output * (1 - 2 * output);
  }

  // Integers, complex numbers, quantized tensors and the errors for all others are torch's.
  static Tensor other(const Tensor& input) { return at::sigmoid(input); }
  static Tensor& other_(Tensor& input) { return at::sigmoid_(input); }
};

// ---- The direct pair: outside autograd, on contiguous CUDA tensors ------------------------------

Tensor forward(const Tensor& input) {
  CHECK_INPUT(input);
  return SigmoidOp::Forward::kernel<OnCuda>(input);
}

Tensor backward(const Tensor& grad_output, const Tensor& output) {
  CHECK_INPUT(grad_output);
  CHECK_INPUT(output);
  return SigmoidOp::Backward::kernel<OnCuda>(grad_output, output);
}

}  // namespace

TORCH_OPS_REGISTER_ELEMENTWISE(SigmoidOp)

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.doc() = "The direct kernels of sigmoid, on contiguous CUDA tensors and outside autograd.";
  m.def("forward", &forward, "1 / (1 + exp(-input))", py::arg("input"));
  m.def("backward", &backward, "grad_output * output * (1 - output)", py::arg("grad_output"),
        py::arg("output"));
  SigmoidOp::def_calls(m);
}

}  // namespace torch_ops
