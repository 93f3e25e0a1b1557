// A reduction as a Python object. It has no derivative: a node says so in the backward pass.
#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/autograd/VariableTypeUtils.h>
#include <torch/csrc/autograd/functions/basic_ops.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include "jit/jit.h"
#include "jit/python_arguments.h"
#include "jit/reduction.h"

namespace torch_ops::jit {
namespace py = pybind11;
namespace {

void refuse_gradient(const Reduction& kernel, const Arguments& arguments, const Tensor& result) {
  std::vector<Tensor> inputs;
  for (const Argument& argument : arguments) {
    if (argument.tensor) inputs.push_back(*argument.tensor);
  }
  if (!torch::autograd::compute_requires_grad(at::TensorList(inputs)) ||
      !torch::autograd::isDifferentiableType(result.scalar_type())) {
    return;
  }
  const std::shared_ptr<torch::autograd::Node> node(
      new torch::autograd::Error(
          "ReductionKernel \"" + kernel.name +
              "\" has no gradient. Detach its inputs, or write the reduction with torch's ops.",
          torch::autograd::collect_next_edges(at::TensorList(inputs))),
      torch::autograd::deleteNode);
  torch::autograd::set_history(result, node);
}

std::vector<int64_t> axes_of(const Reduction& kernel, const py::object& dim) {
  try {
    if (PyIndex_Check(dim.ptr())) return {dim.cast<int64_t>()};
    return dim.cast<std::vector<int64_t>>();
  } catch (const py::cast_error&) {
    TORCH_CHECK_TYPE(false, kernel.name, ": dim must be None, an int or several, but it is ",
                     py::repr(dim).cast<std::string>(), ".");
  }
}

py::object call(Reduction& kernel, const py::tuple& args, const py::object& dim, bool keepdim,
                const py::object& out) {
  TORCH_CHECK_TYPE(args.size() == kernel.in.size(), kernel.name, " takes ", kernel.in.size(),
                   " arguments, but got ", args.size(), ".");
  Arguments arguments;
  for (size_t k = 0; k < kernel.in.size(); ++k) {
    arguments.push_back(argument_of(kernel, kernel.in[k].name, PyTuple_GET_ITEM(args.ptr(), k)));
  }
  Tensor given;
  if (!out.is_none()) {
    TORCH_CHECK_TYPE(THPVariable_Check(out.ptr()), kernel.name,
                     ": out must be a tensor, but it is ", Py_TYPE(out.ptr())->tp_name, ".");
    given = THPVariable_Unpack(out.ptr());
  }
  std::optional<std::vector<int64_t>> dims;
  if (!dim.is_none()) dims = axes_of(kernel, dim);
  std::optional<at::IntArrayRef> axes;
  if (dims) axes = *dims;
  Tensor result;
  {
    const at::AutoDispatchBelowADInplaceOrView below;
    result = reduce(kernel, arguments, axes, keepdim, given);
  }
  if (given.defined() && !given.is_inference()) given.unsafeGetTensorImpl()->bump_version();
  if (!given.defined()) refuse_gradient(kernel, arguments, result);
  return as_result({result});
}

}  // namespace

void bind_reduction(py::module_& m) {
  py::class_<Reduction, std::shared_ptr<Reduction>>(m, "Reduction")
      .def(py::init([](const std::string& name, const std::vector<py::tuple>& in,
                       const std::vector<py::tuple>& out,
                       const std::vector<std::string>& placeholders, bool has_identity,
                       py::object compile) {
             auto kernel = std::make_shared<Reduction>();
             kernel->name = name;
             kernel->placeholders = placeholders;
             read_parameters(*kernel, in, out);
             kernel->has_identity = has_identity;
             kernel->compile = std::move(compile);
             return kernel;
           }),
           py::arg("name"), py::arg("inputs"), py::arg("outputs"), py::arg("placeholders"),
           py::arg("has_identity"), py::arg("compile"))
      .def(
          "output_dtypes",
          [](const Reduction& kernel, const py::sequence& values) {
            Arguments arguments;
            for (size_t k = 0; k < kernel.in.size(); ++k) {
              const py::object value = values[k];
              arguments.push_back(argument_of(kernel, kernel.in[k].name, value.ptr()));
            }
            return output_dtypes(kernel, arguments);
          },
          "The dtypes of the output, in a list", py::arg("arguments"))
      .def("call", &call, py::arg("args"), py::arg("dim"), py::arg("keepdim"), py::arg("out"));
}

}  // namespace torch_ops::jit
