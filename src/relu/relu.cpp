// The contract of relu and leaky_relu: registration and binding.
#include "relu/relu.h"

namespace torch_ops {
namespace {

using at::Tensor;

// ---- The direct pair: outside autograd, on contiguous CUDA tensors ------------------------------

Tensor forward(const Tensor& input) {
  CHECK_INPUT(input);
  return Activation<>::Forward::kernel<OnCuda>(input, /*save_mask=*/false);
}

Tensor backward(const Tensor& grad_output, const Tensor& output) {
  CHECK_INPUT(grad_output);
  CHECK_INPUT(output);
  return Activation<>::Backward::kernel<OnCuda>(grad_output, output);
}

}  // namespace

TORCH_OPS_REGISTER_ELEMENTWISE(Activation<>)
TORCH_OPS_REGISTER_ELEMENTWISE(Activation<double>)

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.doc() = "The direct kernels of relu, on contiguous CUDA tensors and outside autograd.";
  m.def("forward", &forward, "max(input, 0), NaN kept", py::arg("input"));
  m.def("backward", &backward, "grad_output where output is positive or NaN, else 0",
        py::arg("grad_output"), py::arg("output"));
  Activation<>::def_calls(m);
  Activation<double>::def_calls(m);
}

}  // namespace torch_ops
