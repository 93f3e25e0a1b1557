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
  const auto plain = [&] { return reduce(kernel, arguments, axes, keepdim, outs); };
  const auto by_op = [&] { return call_op(kernel, split_arguments(arguments), axes, keepdim); };
  return as_result({call_from_python(kernel, arguments, outs, {}, plain, by_op)});
}

}  // namespace

void bind_reduction(py::module_& m) {
  py::class_<Reduction, Signature, std::shared_ptr<Reduction>>(m, "Reduction")
      .def(py::init([](const py::kwargs& facts) {
        auto kernel = make_kernel<Reduction>(facts, [&](Reduction& made) {
          made.has_identity = facts["has_identity"].cast<bool>();
          made.uses_size = facts["uses_size"].cast<bool>();
          made.compile = facts["compile"];
        });
        if (!kernel->op_name.empty()) register_reduction(kernel);
        return kernel;
      }))
      .def(
          "reduced_axes",
          [](const Reduction& kernel, int64_t rank,
             const std::optional<std::vector<int64_t>>& dims) {
            return reduced_axes(kernel, rank, dims ? at::OptionalIntArrayRef(*dims) : std::nullopt);
          },
          "Which axes a call reduces", py::arg("rank"), py::arg("dims"))
      .def("call", &call, py::arg("args"), py::arg("dim"), py::arg("keepdim"), py::arg("out"));
}

}  // namespace torch_ops::jit
