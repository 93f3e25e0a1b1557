// Calls of registered ops from Python that cost no more than torch's own functions. torch.ops puts
// a call's arguments on a stack of IValues, by names and defaults of the schema; here each is
// converted to the C++ type in the op's signature, and the op is called by its typed handle. Both
// enter the dispatcher at the same place, with the same arguments.
//
//   PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { python_call::def(m, "call", ops::foo()); }
//
// Its docstring is the op's name, by which test_direct_calls.py finds the arguments for it.
// The function takes all of the op's arguments, by position. It returns NotImplemented if it
// cannot read one (a subclass of Tensor, a SymInt, a type that the op does not accept), and under a
// mode that must see the functions of torch: then torch.ops is to be called. torch.compile
// cannot trace such functions, so Python asks is_dynamo_compiling() first.
#pragma once

#include <ATen/PythonTorchFunctionTLS.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

#include "common/torch/calls/checks.h"
#include "common/torch/calls/op.h"

namespace torch_ops::python_call {

using at::Tensor;

// Read an argument of the C++ type of `value`: false if it cannot be. GIL held.

// The tensors are held: the call runs without the GIL.
inline bool read(PyObject* given, Tensor& value) {
  if (!THPVariable_CheckTypeExact(Py_TYPE(given))) return false;
  value = THPVariable_Unpack(given);
  return true;
}

inline bool read(PyObject* given, bool& value) {
  value = given == Py_True;
  return value || given == Py_False;
}

inline bool read(PyObject* given, int64_t& value) {
  if (!PyLong_CheckExact(given)) return false;
  int overflow = 0;
  value = PyLong_AsLongLongAndOverflow(given, &overflow);
  return overflow == 0;
}

inline bool read(PyObject* given, c10::SymInt& value) {
  int64_t number = 0;
  if (!read(given, number)) return false;
  value = number;
  return true;
}

inline bool read(PyObject* given, std::string_view& value) {
  if (!PyUnicode_CheckExact(given)) return false;
  Py_ssize_t size = 0;
  const char* text = PyUnicode_AsUTF8AndSize(given, &size);  // the string keeps it
  if (text == nullptr) {
    PyErr_Clear();
    return false;
  }
  value = {text, static_cast<size_t>(size)};
  return true;
}

inline bool read(PyObject* given, double& value) {
  if (!PyFloat_CheckExact(given)) return false;
  value = PyFloat_AS_DOUBLE(given);
  return true;
}

inline bool read(PyObject* given, at::ScalarType& value) {
  if (!THPDtype_Check(given)) return false;
  value = reinterpret_cast<THPDtype*>(given)->scalar_type;
  return true;
}

inline bool read(PyObject* given, at::Scalar& value) {
  int64_t integer = 0;
  double real = 0;
  if (read(given, integer)) {
    value = integer;
  } else if (read(given, real)) {
    value = real;
  } else {
    return false;
  }
  return true;
}

inline bool read(PyObject* given, c10::SymDimVector& value) {
  if (!PyTuple_Check(given)) return false;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(given); ++i) {
    if (!read(PyTuple_GET_ITEM(given, i), value.emplace_back())) return false;
  }
  return true;
}

// Only None: nobody passes a list.
inline bool read(PyObject* given, at::OptionalIntArrayRef&) { return given == Py_None; }

template <class T>
bool read(PyObject* given, std::optional<T>& value) {
  return given == Py_None || read(given, value.emplace());
}

// What holds an argument of this type.
template <class Arg, class Value = std::decay_t<Arg>>
using Held =
    std::conditional_t<std::is_same_v<Value, c10::SymIntArrayRef>, c10::SymDimVector, Value>;

inline PyObject* not_implemented() { return Py_NewRef(Py_NotImplemented); }

// May arguments be read at all?
inline bool may_read(Py_ssize_t given, Py_ssize_t wanted) {
  TORCH_CHECK_TYPE(given == wanted, "a direct call takes all arguments: their number must be ",
                   wanted, ", but it is ", given, ".");
  return !at::impl::torch_function_mode_enabled();
}

// Calls without the GIL.
template <class Call>
PyObject* result_of(Call&& call) {
  Tensor result;
  {
    pybind11::gil_scoped_release no_gil;
    result = call();
  }
  return THPVariable_Wrap(std::move(result));
}

// In the form of METH_FASTCALL; `self` holds the handle.
template <class Return, class... Args>
PyObject* call(PyObject* self, PyObject* const* given, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  const auto& op = *static_cast<const c10::TypedOperatorHandle<Return(Args...)>*>(
      PyCapsule_GetPointer(self, /*name=*/nullptr));
  std::tuple<Held<Args>...> arguments;
  return std::apply(
      [&](auto&... each) -> PyObject* {
        Py_ssize_t next = 0;
        if (!may_read(count, sizeof...(Args)) || !(read(given[next++], each) && ...)) {
          return not_implemented();
        }
        return result_of([&]() -> Tensor { return op.call(static_cast<Args>(each)...); });
      },
      arguments);
  END_HANDLE_TH_ERRORS
}

using Function = PyObject* (*)(PyObject* self, PyObject* const* given, Py_ssize_t count);

// Adds a function to a module, which calls `op`. Its description, and the texts there, live as long
// as the process.
inline void def_function(pybind11::module_& m, const std::string& name, const std::string& op,
                         Function function, pybind11::handle self = {}) {
  const auto keep = [](const std::string& text) { return (new std::string(text))->c_str(); };
  auto* const method =
      new PyMethodDef{keep(name), reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(function)),
                      METH_FASTCALL, keep(op)};
  PyObject* const made = PyCFunction_New(method, self.ptr());
  if (made == nullptr) throw pybind11::error_already_set();
  m.add_object(name.c_str(), pybind11::reinterpret_steal<pybind11::object>(made));
}

template <class Return, class... Args>
void def(pybind11::module_& m, const std::string& name,
         const c10::TypedOperatorHandle<Return(Args...)>& op) {
  using Op = c10::TypedOperatorHandle<Return(Args...)>;
  def_function(m, name, toString(op.operator_name()), call<Return, Args...>,
               pybind11::capsule(new Op(op)));
}

}  // namespace torch_ops::python_call
