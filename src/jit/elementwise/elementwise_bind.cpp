// An elementwise kernel as a Python object whose call is one call into C++.
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include "jit/call/python_arguments.h"
#include "jit/call/registered.h"
#include "jit/elementwise/elementwise.h"
#include "jit/jit.h"

namespace torch_ops::jit {
namespace py = pybind11;
namespace {

std::string joined_names(const std::vector<Parameter>& parameters) {
  std::string names;
  for (const Parameter& parameter : parameters) {
    names += (names.empty() ? "" : ", ") + parameter.name;
  }
  return names;
}

// Outputs as they were given: after the inputs, or in out=.
std::vector<Tensor> given_outputs(const Elementwise& kernel, const py::tuple& args,
                                  const py::object& out) {
  const size_t inputs = kernel.in.size(), outputs = kernel.out.size();
  TORCH_CHECK_TYPE(args.size() == inputs || args.size() == inputs + outputs, kernel.name,
                   ": the number of arguments must be ", inputs, " (", joined_names(kernel.in),
                   "), or ", inputs + outputs, " with the outputs (", joined_names(kernel.out),
                   ") after them, but it is ", args.size(), ".");
  std::vector<Tensor> outs;
  const auto add = [&](const py::handle& value) {
    TORCH_CHECK_TYPE(THPVariable_Check(value.ptr()), kernel.name, ": output ",
                     kernel.out[outs.size()].name, " must be a tensor, but it is ",
                     Py_TYPE(value.ptr())->tp_name, ".");
    outs.push_back(THPVariable_Unpack(value.ptr()));
  };
  if (args.size() > inputs) {
    TORCH_CHECK_TYPE(out.is_none(), kernel.name,
                     ": outputs are given twice, after the inputs and in out=.");
    for (size_t k = inputs; k < args.size(); ++k) add(args[k]);
  } else if (py::isinstance<py::tuple>(out) || py::isinstance<py::list>(out)) {
    const auto several = py::reinterpret_borrow<py::sequence>(out);
    TORCH_CHECK_TYPE(several.size() == outputs, kernel.name,
                     ": the number of tensors in out= must be ", outputs, " (",
                     joined_names(kernel.out), "), but it is ", several.size(), ".");
    for (const py::handle& value : several) add(value);
  } else if (!out.is_none()) {
    TORCH_CHECK_TYPE(outputs == 1, kernel.name, ": out= must be a tuple of ", outputs, " tensors (",
                     joined_names(kernel.out), ").");
    add(out);
  }
  return outs;
}

py::object call(Elementwise& kernel, const py::tuple& args, const py::object& size,
                const py::object& out) {
  std::vector<Tensor> outs;
  if (args.size() != kernel.in.size() || !out.is_none()) {
    outs = given_outputs(kernel, args, out);
  } else if (is_watched(args)) {
    return not_implemented();
  }
  const HeldArguments held(kernel, args, /*resolved=*/!outs.empty());
  const Arguments& arguments = held.arguments;
  std::optional<std::vector<int64_t>> sizes;
  if (!size.is_none()) {
    sizes = ints_of(kernel, "size", size);
    for (const int64_t length : *sizes) {
      TORCH_CHECK_VALUE(length >= 0, kernel.name, ": size must not be negative, but it is ",
                        at::IntArrayRef(*sizes), ".");
    }
  }
  const auto plain = [&] {
    std::optional<at::IntArrayRef> shape;
    if (sizes) shape = *sizes;
    return run(kernel, arguments, outs, shape);
  };
  const auto by_op = [&] {
    at::OptionalSymIntArrayRef shape;
    if (sizes) shape = c10::fromIntArrayRefSlow(*sizes);
    return call_op(kernel, split_arguments(arguments), shape);
  };
  return as_result(call_from_python(kernel, arguments, outs, {}, plain, by_op));
}

}  // namespace

void bind_elementwise(py::module_& m) {
  py::class_<Elementwise, Signature, std::shared_ptr<Elementwise>>(m, "Elementwise")
      .def(py::init([](const py::kwargs& facts) {
        auto kernel = make_kernel<Elementwise>(facts, [&](Elementwise& made) {
          made.uses_index = facts["uses_index"].cast<bool>();
          made.uses_size = facts["uses_size"].cast<bool>();
          made.reads_outputs = facts["reads_outputs"].cast<bool>();
          made.has_loop_parts = facts["has_loop_parts"].cast<bool>();
          made.saves = facts["saves"].cast<std::vector<bool>>();
          made.compile = facts["compile"];
          made.derive = facts["derive"];
          made.sum = facts["sum"];
        });
        register_elementwise(kernel);
        return kernel;
      }))
      .def("call", &call, py::arg("args"), py::arg("size"), py::arg("out"));
}

}  // namespace torch_ops::jit
