// A reduction as a Python object.
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include "jit/call/python_arguments.h"
#include "jit/call/registered.h"
#include "jit/jit.h"
#include "jit/reduction/reduction.h"

namespace torch_ops::jit {
namespace py = pybind11;
namespace {

py::object call(Reduction& kernel, const py::tuple& args, const py::object& dim,
                const py::object& keep, const py::object& out) {
  TORCH_CHECK_TYPE(args.size() == kernel.in.size(), kernel.name,
                   ": the number of arguments must be ", kernel.in.size(), ", but it is ",
                   args.size(), ".");
  if (out.is_none() && is_watched(args)) return not_implemented();
  const bool keepdim = bool_of(kernel.name, "keepdim", keep);
  const HeldArguments held(kernel, args, /*resolved=*/!out.is_none());
  const Arguments& arguments = held.arguments;
  c10::SmallVector<Tensor, 1> outs;
  if (!out.is_none()) {
    TORCH_CHECK_TYPE(THPVariable_Check(out.ptr()), kernel.name,
                     ": out must be a tensor, but it is ", Py_TYPE(out.ptr())->tp_name, ".");
    outs.push_back(THPVariable_Unpack(out.ptr()));
  }
  std::optional<std::vector<int64_t>> dims;
  if (!dim.is_none()) dims = ints_of(kernel, "dim", dim);
  at::OptionalIntArrayRef axes;
  if (dims) axes = *dims;
  const auto plain = [&] {
    return reduce(kernel, arguments, axes, keepdim, outs.empty() ? Tensor() : outs[0]);
  };
  const auto by_op = [&] { return call_op(kernel, split_arguments(arguments), axes, keepdim); };
  return as_result({call_from_python(kernel, arguments, outs, {}, plain, by_op)});
}

}  // namespace

void bind_reduction(py::module_& m) {
  py::class_<Reduction, std::shared_ptr<Reduction>>(m, "Reduction")
      .def(py::init([](const std::string& name, const std::string& op_name,
                       const std::vector<py::tuple>& in, const std::vector<py::tuple>& out,
                       const std::vector<std::string>& placeholders, bool has_identity,
                       bool uses_size, py::object compile) {
             if (auto known = find_kernel<Reduction>(op_name)) return known;
             auto kernel = std::make_shared<Reduction>();
             read_signature(*kernel, name, op_name, placeholders, in, out);
             kernel->has_identity = has_identity;
             kernel->uses_size = uses_size;
             kernel->compile = std::move(compile);
             if (!op_name.empty()) register_reduction(kernel);
             return kernel;
           }),
           py::arg("name"), py::arg("op_name"), py::arg("inputs"), py::arg("outputs"),
           py::arg("placeholders"), py::arg("has_identity"), py::arg("uses_size"),
           py::arg("compile"))
      .def(
          "output_dtypes",
          [](const Reduction& kernel, const std::vector<Tensor>& tensors, const py::list& numbers,
             const std::vector<int64_t>& positions) {
            return output_dtypes(kernel, tensors, numbers, positions);
          },
          "The dtypes of the output, in a list, for tensors in the order of their parameters",
          py::arg("tensors"), py::arg("numbers"), py::arg("positions"))
      .def(
          "reduced_axes",
          [](const Reduction& kernel, int64_t rank,
             const std::optional<std::vector<int64_t>>& dims) {
            return reduced_axes(kernel, rank, dims ? at::OptionalIntArrayRef(*dims) : std::nullopt);
          },
          "Which axes a call reduces", py::arg("rank"), py::arg("dims"))
      .def_readonly("op_name", &Reduction::op_name)
      .def("call", &call, py::arg("args"), py::arg("dim"), py::arg("keepdim"), py::arg("out"));
}

}  // namespace torch_ops::jit
