#include "jit/call/python_arguments.h"

#include <ATen/PythonTorchFunctionTLS.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>

namespace torch_ops::jit {
namespace py = pybind11;

namespace {

// Of torch; None for Undefined.
py::tuple dtypes_of(at::ArrayRef<ScalarType> types) {
  py::tuple dtypes(types.size());
  for (size_t k = 0; k < types.size(); ++k) {
    PyObject* const dtype = types[k] == ScalarType::Undefined
                                ? Py_None
                                : reinterpret_cast<PyObject*>(torch::getTHPDtype(types[k]));
    dtypes[k] = py::reinterpret_borrow<py::object>(dtype);
  }
  return dtypes;
}

// Of a class of its own, except nested ones, which kernels refuse.
bool is_subclass(PyObject* value) {
  return !THPVariable_CheckTypeExact(Py_TYPE(value)) && THPVariable_Check(value) &&
         !THPVariable_Unpack(value).is_nested();
}

// A mode sees calls with a tensor, of which the registered op can be called.
bool would_be_seen(PyObject* value) {
  return is_subclass(value) ||
         (THPVariable_Check(value) && at::impl::torch_function_mode_enabled());
}

}  // namespace

bool is_watched(const py::tuple& args) {
  for (size_t k = 0; k < args.size(); ++k) {
    if (would_be_seen(PyTuple_GET_ITEM(args.ptr(), k))) return true;
  }
  return false;
}

bool is_watched(const py::tuple& args, const py::dict& by_name) {
  if (is_watched(args)) return true;
  PyObject *key = nullptr, *value = nullptr;
  for (Py_ssize_t at = 0; PyDict_Next(by_name.ptr(), &at, &key, &value) != 0;) {
    if (would_be_seen(value)) return true;
  }
  return false;
}

Argument argument_of(const Signature& kernel, const std::string& name, PyObject* value) {
  const auto refuse = [&] {
    TORCH_CHECK_TYPE(false, kernel.name, ": ", name, " must be a tensor or a number, but it is ",
                     Py_TYPE(value)->tp_name, ".");
  };
  if (THPVariable_Check(value)) return {&THPVariable_Unpack(value), 0};
  if (PyBool_Check(value)) return {nullptr, Scalar(value == Py_True)};
  if (PyFloat_Check(value)) return {nullptr, Scalar(PyFloat_AS_DOUBLE(value))};
  if (PyIndex_Check(value)) {
    const auto index = py::reinterpret_steal<py::object>(PyNumber_Index(value));
    if (!index) {  // an array of NumPy's, say: the method is there, and raises
      PyErr_Clear();
      refuse();
    }
    int overflow = 0;
    const long long number = PyLong_AsLongLongAndOverflow(index.ptr(), &overflow);
    if (overflow == 0) return {nullptr, Scalar(static_cast<int64_t>(number))};
    const unsigned long long large = PyLong_AsUnsignedLongLong(index.ptr());
    if (PyErr_Occurred()) {
      PyErr_Clear();
      TORCH_CHECK_VALUE(false, kernel.name, ": ", name,
                        " must be from -2^63 to 2^64 - 1 where it is an int, but it is ",
                        py::repr(index).cast<std::string>(), ".");
    }
    return {nullptr, Scalar(static_cast<uint64_t>(large))};
  }
  if (PyComplex_Check(value)) {
    const Py_complex number = PyComplex_AsCComplex(value);
    return {nullptr, Scalar(c10::complex<double>(number.real, number.imag))};
  }
  const bool is_number = PyObject_HasAttrString(value, "__float__") == 1 &&
                         PyObject_HasAttrString(value, "__len__") == 0;
  // A scalar of NumPy tells what it is: complex64 has a __float__ too, which drops a part.
  if (is_number && PyObject_HasAttrString(value, "item") == 1) {
    const py::object item = py::reinterpret_borrow<py::object>(value).attr("item")();
    if (PyBool_Check(item.ptr()) || PyFloat_Check(item.ptr()) || PyComplex_Check(item.ptr())) {
      return argument_of(kernel, name, item.ptr());
    }
  }
  if (is_number) {
    const double number = PyFloat_AsDouble(value);
    if (number == -1 && PyErr_Occurred()) throw py::error_already_set();
    return {nullptr, Scalar(number)};
  }
  refuse();
  return {};
}

HeldArguments::HeldArguments(const Signature& kernel, const py::tuple& args, bool resolved) {
  tensors.reserve(kernel.in.size());
  for (size_t k = 0; k < kernel.in.size(); ++k) {
    Argument argument = argument_of(kernel, kernel.in[k].name, PyTuple_GET_ITEM(args.ptr(), k));
    if (argument.tensor) {
      const Tensor& tensor = *argument.tensor;
      tensors.push_back(resolved ? tensor.resolve_conj().resolve_neg() : tensor);
      argument.tensor = &tensors.back();
    }
    arguments.push_back(argument);
  }
}

std::vector<int64_t> ints_of(const Signature& kernel, const char* name, const py::object& value) {
  try {
    if (PyIndex_Check(value.ptr())) return {value.cast<int64_t>()};
    return value.cast<std::vector<int64_t>>();
  } catch (const py::cast_error&) {
    TORCH_CHECK_VALUE(!PyLong_Check(value.ptr()), kernel.name, ": ", name,
                      " must fit in 64 bits, but it is ", py::repr(value).cast<std::string>(), ".");
    TORCH_CHECK_TYPE(false, kernel.name, ": ", name, " must be None, an int or several, but it is ",
                     py::repr(value).cast<std::string>(), ".");
  }
}

namespace {

Parameter parameter_of(const py::tuple& facts, const std::vector<std::string>& placeholders) {
  Parameter parameter;
  parameter.name = facts[0].cast<std::string>();
  if (py::isinstance<py::str>(facts[1])) {
    const auto at =
        std::find(placeholders.begin(), placeholders.end(), facts[1].cast<std::string>());
    parameter.placeholder = at - placeholders.begin();
  } else {
    parameter.fixed = reinterpret_cast<THPDtype*>(facts[1].ptr())->scalar_type;
  }
  parameter.raw = facts[2].cast<bool>();
  parameter.wide = facts[3].cast<bool>();
  parameter.like = facts[4].cast<int64_t>();
  return parameter;
}

}  // namespace

void read_signature(Signature& kernel, const py::kwargs& facts) {
  kernel.name = facts["name"].cast<std::string>();
  kernel.op_name = facts["op_name"].cast<std::string>();
  kernel.placeholders = facts["placeholders"].cast<std::vector<std::string>>();
  kernel.divides = facts["divides"].cast<bool>();
  const auto read = [&](std::vector<Parameter>& parameters, const char* key) {
    for (const py::handle each : facts[key]) {
      parameters.push_back(parameter_of(each.cast<py::tuple>(), kernel.placeholders));
    }
  };
  read(kernel.in, "inputs");
  read(kernel.out, "outputs");
}

py::object as_result(const std::vector<Tensor>& tensors) {
  if (tensors.size() == 1) {
    return py::reinterpret_steal<py::object>(THPVariable_Wrap(tensors[0]));
  }
  py::tuple result(tensors.size());
  for (size_t k = 0; k < tensors.size(); ++k) {
    result[k] = py::reinterpret_steal<py::object>(THPVariable_Wrap(tensors[k]));
  }
  return result;
}

py::tuple output_dtypes(const Signature& kernel, const std::vector<Tensor>& tensors,
                        const py::list& numbers, const std::vector<int64_t>& positions) {
  std::vector<Scalar> scalars;
  for (const py::handle number : numbers) {
    scalars.push_back(argument_of(kernel, "number", number.ptr()).number);
  }
  const Arguments arguments = join_arguments(kernel, {tensors, scalars, positions});
  return dtypes_of(resolve_types(kernel, arguments, {}).out);
}

py::tuple facts_of(c10::Device device, const Layout& layout) {
  std::optional<int> number;
  if (device.is_cuda()) number = device.index();
  const auto& ranks = layout.raw_ranks;
  py::tuple raw(ranks.size());  // each with whether its memory is contiguous
  for (size_t k = 0; k < ranks.size(); ++k) {
    raw[k] = py::make_tuple(ranks[k] < 0 ? -1 - ranks[k] : ranks[k], ranks[k] >= 0);
  }
  return py::make_tuple(number, dtypes_of(layout.stored), dtypes_of(layout.computed), raw);
}

}  // namespace torch_ops::jit
