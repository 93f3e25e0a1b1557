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

// How an argument of this C++ type is read: false if it cannot be. GIL held.
template <class T>
struct Argument;

// The tensors are held: the call runs without the GIL.
template <>
struct Argument<Tensor> {
  Tensor value;
  bool read(PyObject* given) {
    if (!THPVariable_CheckTypeExact(Py_TYPE(given))) return false;
    value = THPVariable_Unpack(given);
    return true;
  }
};

template <>
struct Argument<bool> {
  bool value;
  bool read(PyObject* given) {
    value = given == Py_True;
    return value || given == Py_False;
  }
};

template <>
struct Argument<int64_t> {
  int64_t value;
  bool read(PyObject* given) {
    if (!PyLong_CheckExact(given)) return false;
    int overflow = 0;
    value = PyLong_AsLongLongAndOverflow(given, &overflow);
    return overflow == 0;
  }
};

template <>
struct Argument<c10::SymInt> {
  c10::SymInt value;
  bool read(PyObject* given) {
    Argument<int64_t> number;
    if (!number.read(given)) return false;
    value = number.value;
    return true;
  }
};

template <>
struct Argument<std::string_view> {
  std::string_view value;
  bool read(PyObject* given) {
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
};

template <class T>
struct Argument<std::optional<T>> {
  std::optional<T> value;
  bool read(PyObject* given) {
    if (given == Py_None) return true;
    Argument<T> there;
    if (!there.read(given)) return false;
    value = std::move(there.value);
    return true;
  }
};

template <>
struct Argument<double> {
  double value;
  bool read(PyObject* given) {
    if (!PyFloat_CheckExact(given)) return false;
    value = PyFloat_AS_DOUBLE(given);
    return true;
  }
};

template <>
struct Argument<at::ScalarType> {
  at::ScalarType value;
  bool read(PyObject* given) {
    if (!THPDtype_Check(given)) return false;
    value = reinterpret_cast<THPDtype*>(given)->scalar_type;
    return true;
  }
};

template <>
struct Argument<at::Scalar> {
  at::Scalar value;
  bool read(PyObject* given) {
    Argument<int64_t> integer;
    Argument<double> real;
    if (integer.read(given)) {
      value = integer.value;
    } else if (real.read(given)) {
      value = real.value;
    } else {
      return false;
    }
    return true;
  }
};

template <>
struct Argument<c10::SymIntArrayRef> {
  c10::SymDimVector value;
  bool read(PyObject* given) {
    if (!PyTuple_Check(given)) return false;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(given); ++i) {
      Argument<c10::SymInt> size;
      if (!size.read(PyTuple_GET_ITEM(given, i))) return false;
      value.push_back(std::move(size.value));
    }
    return true;
  }
};

// Only None: nobody passes a list.
template <>
struct Argument<at::OptionalIntArrayRef> {
  at::OptionalIntArrayRef value;
  bool read(PyObject* given) { return given == Py_None; }
};

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

// As in the signature: a reference, or the value.
template <class Arg, class Value>
Arg pass(Value& value) {
  return static_cast<Arg>(value);
}

// In the form of METH_FASTCALL; `self` holds the handle.
template <class Return, class... Args>
PyObject* call(PyObject* self, PyObject* const* given, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  const auto& op = *static_cast<const c10::TypedOperatorHandle<Return(Args...)>*>(
      PyCapsule_GetPointer(self, /*name=*/nullptr));
  std::tuple<Argument<std::decay_t<Args>>...> arguments;
  return std::apply(
      [&](auto&... each) -> PyObject* {
        Py_ssize_t next = 0;
        if (!may_read(count, sizeof...(Args)) || !(each.read(given[next++]) && ...)) {
          return not_implemented();
        }
        return result_of([&]() -> Tensor { return op.call(pass<Args>(each.value)...); });
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
