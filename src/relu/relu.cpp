// The contract of relu and leaky_relu: schemas, checks, allocation, binding. relu_autograd.cpp
// has their derivatives.
#include <ATen/Dispatch.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/empty_permuted.h>
#include <ATen/ops/leaky_relu.h>
#include <ATen/ops/relu.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/library.h>

#include "common/elementwise/bit_mask.h"
#include "common/elementwise/elementwise_layout.h"
#include "common/torch/call_kernels.h"
#include "common/torch/checks.h"
#include "common/torch/new_output.h"
#include "common/torch/python_call.h"
#include "relu/relu.h"

namespace torch_ops {
namespace {

using at::Tensor;

// ---- Calls of the kernel library: tensors of one shape, one dtype and any strides ---------------

// `mask` is undefined where none is to be written.
template <class On>
void launch(const Tensor& input, Slope slope, const Tensor& output, const Tensor& mask) {
  with_kernels<On>(output, [&](auto on) {
    AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, input.scalar_type(), "relu", [&] {
      kernels::relu(on, slope, make_walk(output, input),
                    mask.defined() ? mask.mutable_data_ptr<uint8_t>() : nullptr,
                    output_of<scalar_t>(output), input_of<scalar_t>(input));
    });
  });
}

template <class On>
void launch_backward(const Tensor& grad_output, const Tensor& output, Slope slope,
                     const Tensor& grad_input) {
  with_kernels<On>(grad_input, [&](auto on) {
    AT_DISPATCH_FLOATING_TYPES_AND2(
        at::kHalf, at::kBFloat16, output.scalar_type(), "relu_backward", [&] {
          kernels::relu_backward(on, slope, make_walk(grad_input, grad_output, output),
                                 output_of<scalar_t>(grad_input), input_of<scalar_t>(grad_output),
                                 input_of<scalar_t>(output));
        });
  });
}

template <class On>
void launch_mask_backward(const Tensor& grad_output, const Tensor& mask, Slope slope,
                          const Tensor& grad_input) {
  with_kernels<On>(grad_input, [&](auto on) {
    AT_DISPATCH_FLOATING_TYPES_AND2(
        at::kHalf, at::kBFloat16, grad_output.scalar_type(), "relu_mask_backward", [&] {
          kernels::relu_mask_backward(
              on, slope, make_walk(grad_input, grad_output), mask.const_data_ptr<uint8_t>(),
              output_of<scalar_t>(grad_input), input_of<scalar_t>(grad_output));
        });
  });
}

// ---- CPU, CUDA and Meta kernels: `On` says which ------------------------------------------------

Tensor empty_mask(const Tensor& result) {
  return new_output(result.options().dtype(at::kByte), [&](const auto& options) {
    return at::empty_symint({mask_bytes(result.sym_numel())}, options);
  });
}

// What is no float is left to torch: integers, and the errors for all else.
Tensor torchs(const Tensor& input) { return at::relu(input); }
Tensor torchs(const Tensor& input, double slope) { return at::leaky_relu(input, slope); }
Tensor& torchs_(Tensor& input) { return at::relu_(input); }
Tensor& torchs_(Tensor& input, double slope) { return at::leaky_relu_(input, slope); }

template <class On, class... SlopeArg>
Tensor forward(const Tensor& input, SlopeArg... slope, bool /*save_mask*/) {
  if (!is_kernel_float(input)) return torchs(input, slope...);
  Tensor output = new_output_like(input);
  launch<On>(input, slope_of(slope...), output, Tensor());
  return output;
}

template <class On, class... SlopeArg>
Tensor& forward_(Tensor& input, SlopeArg... slope, bool /*save_mask*/) {
  if (!is_kernel_float(input)) return torchs_(input, slope...);
  at::assert_no_internal_overlap(input);
  launch<On>(input, slope_of(slope...), input, Tensor());
  return input;
}

template <class On>
std::tuple<Tensor, Tensor> forward_mask(const Tensor& input, Slope slope) {
  CHECK_FLOATING("_relu_mask", input);
  Tensor output = new_output_like(input);
  Tensor mask = empty_mask(input);
  launch<On>(input, slope, output, mask);
  return {std::move(output), std::move(mask)};
}

template <class On>
Tensor forward_mask_(Tensor& input, Slope slope) {
  CHECK_FLOATING("_relu_mask_", input);
  at::assert_no_internal_overlap(input);
  Tensor mask = empty_mask(input);
  launch<On>(input, slope, input, mask);
  return mask;
}

template <class On, class... SlopeArg>
Tensor backward(const Tensor& grad_output, const Tensor& output, SlopeArg... slope) {
  CHECK_FLOATING("relu_backward", output);
  CHECK_SAME_TYPE("relu_backward", grad_output, output);
  CHECK_SAME_SHAPE("relu_backward", grad_output, output);
  CHECK_SAME_DEVICE("relu_backward", grad_output, output);
  Tensor grad_input = new_output_like(output);
  launch_backward<On>(grad_output, output, slope_of(slope...), grad_input);
  return grad_input;
}

template <class On>
Tensor mask_backward(const Tensor& grad_output, const Tensor& mask, at::IntArrayRef order,
                     Slope slope) {
  CHECK_FLOATING("_relu_mask_backward", grad_output);
  CHECK_SAME_DEVICE("_relu_mask_backward", grad_output, mask);
  TORCH_CHECK_VALUE(
      mask.scalar_type() == at::kByte && mask.is_contiguous() && mask.sym_storage_offset() % 4 == 0,
      "_relu_mask_backward: mask must be what _relu_mask returned.");
  TORCH_CHECK_VALUE(mask.sym_numel() == mask_bytes(grad_output.sym_numel()),
                    "_relu_mask_backward: grad_output has shape ", grad_output.sym_sizes(),
                    ", for which the mask has another length than ", mask.sym_numel(), ".");
  // The mask goes through the elements in the order of the output's memory, and so must this.
  const auto sizes = grad_output.sym_sizes();
  Tensor grad_input = new_output(grad_output.options(), [&](const auto& options) {
    return order.empty() ? at::empty_symint(sizes, options)
                         : at::empty_permuted_symint(sizes, order, options);
  });
  launch_mask_backward<On>(grad_output, mask, slope, grad_input);
  return grad_input;
}

// ---- The direct pair: outside autograd, on contiguous CUDA tensors ------------------------------

Tensor direct_forward(const Tensor& input) {
  CHECK_INPUT(input);
  return forward<OnCuda>(input, /*save_mask=*/false);
}

Tensor direct_backward(const Tensor& grad_output, const Tensor& output) {
  CHECK_INPUT(grad_output);
  CHECK_INPUT(output);
  return backward<OnCuda>(grad_output, output);
}

// ---- Registration -------------------------------------------------------------------------------

// Both public ops.
template <class On, class... SlopeArg>
void register_kernels(torch::Library& m) {
  const std::string name = kOpName<SlopeArg...>;
  m.impl(name.c_str(), forward<On, SlopeArg...>);
  m.impl((name + "_").c_str(), forward_<On, SlopeArg...>);
  m.impl((name + "_backward").c_str(), backward<On, SlopeArg...>);
}

template <class On>
void register_backend(torch::Library& m) {
  register_kernels<On>(m);
  register_kernels<On, double>(m);
  m.impl("_relu_mask", forward_mask<On>);
  m.impl("_relu_mask_", forward_mask_<On>);
  m.impl("_relu_mask_backward", mask_backward<On>);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(torch_ops, m) {
  const std::vector<at::Tag> tags{at::Tag::pt2_compliant_tag};
  // Jagged nested tensors hand their values to an op that has this tag.
  const std::vector<at::Tag> pointwise{at::Tag::pt2_compliant_tag, at::Tag::pointwise};
  m.def("relu(Tensor input, *, bool save_mask=True) -> Tensor", pointwise);
  m.def("relu_(Tensor(a!) input, *, bool save_mask=True) -> Tensor(a!)", pointwise);
  m.def("relu_backward(Tensor grad_output, Tensor output) -> Tensor", pointwise);
  m.def("leaky_relu(Tensor input, float negative_slope=0.01, *, bool save_mask=True) -> Tensor",
        pointwise);
  m.def(
      "leaky_relu_(Tensor(a!) input, float negative_slope=0.01, *, bool save_mask=True)"
      " -> Tensor(a!)",
      pointwise);
  m.def(
      "leaky_relu_backward(Tensor grad_output, Tensor output, float negative_slope)"
      " -> Tensor",
      pointwise);
  // What autograd calls where a mask is saved: leaky_relu, or relu without a slope.
  m.def("_relu_mask(Tensor input, float? negative_slope) -> (Tensor output, Tensor mask)", tags);
  m.def("_relu_mask_(Tensor(a!) input, float? negative_slope) -> Tensor", tags);
  m.def(
      "_relu_mask_backward(Tensor grad_output, Tensor mask, int[] order, float? negative_slope)"
      " -> Tensor",
      tags);
}

TORCH_LIBRARY_IMPL(torch_ops, CPU, m) { register_backend<OnCpu>(m); }
TORCH_LIBRARY_IMPL(torch_ops, CUDA, m) { register_backend<OnCuda>(m); }
TORCH_LIBRARY_IMPL(torch_ops, Meta, m) { register_backend<OnMeta>(m); }

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.doc() = "The direct kernels of relu, on contiguous CUDA tensors and outside autograd.";
  m.def("forward", &direct_forward, "max(input, 0), NaN kept", py::arg("input"));
  m.def("backward", &direct_backward, "grad_output where output is positive or NaN, else 0",
        py::arg("grad_output"), py::arg("output"));
  python_call::def(m, "call_relu", find_op<Tensor(const Tensor&, bool)>("relu"));
  python_call::def(m, "call_relu_", find_op<Tensor&(Tensor&, bool)>("relu_"));
  python_call::def(m, "call_leaky_relu",
                   find_op<Tensor(const Tensor&, double, bool)>("leaky_relu"));
  python_call::def(m, "call_leaky_relu_", find_op<Tensor&(Tensor&, double, bool)>("leaky_relu_"));
}

}  // namespace torch_ops
