#include "jit/raw/arguments.h"

#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/csrc/utils/tensor_numpy.h>

#include <complex>
#include <cstring>

#include "common/torch/calls/checks.h"

namespace torch_ops::jit {
namespace py = pybind11;
namespace {

// What the dtype of a scalar of NumPy's says: b(ool), i(nt), u(nsigned), f(loat), c(omplex), or V
// of a record. Else 0.
char numpy_kind(PyObject* value) {
  if (!torch::utils::is_numpy_available()) return 0;
  static PyObject* scalar = nullptr;  // under the GIL
  if (scalar == nullptr)
    scalar = py::object(py::module_::import("numpy").attr("generic")).release().ptr();
  if (!py::isinstance(value, scalar)) return 0;
  return py::handle(value).attr("dtype").attr("kind").cast<char>();
}

bool is_numpy_record(PyObject* value) { return numpy_kind(value) == 'V'; }

// The same of NumPy's numbers alone, with i of unsigned ones too; 0 of what is none.
char numpy_number_kind(PyObject* value) {
  const char kind = numpy_kind(value);
  if (kind == 'u') return 'i';
  return kind == 'b' || kind == 'i' || kind == 'f' || kind == 'c' ? kind : 0;
}

char number_kind(PyObject* value) {
  if (PyBool_Check(value)) return 'b';
  if (PyLong_Check(value)) return 'i';
  if (PyFloat_Check(value)) return 'f';
  if (PyComplex_Check(value)) return 'c';
  return numpy_number_kind(value);
}

std::string type_name(PyObject* value) { return Py_TYPE(value)->tp_name; }

// What was given, for a message: "the int 5", "a torch.float64 tensor of shape [3] on cpu".
std::string describe(PyObject* value) {
  if (value == Py_None) return "None";
  if (THPVariable_Check(value)) {
    const at::Tensor& tensor = THPVariable_Unpack(value);
    return c10::str("a ", dtype_name(tensor.scalar_type()), " tensor of shape ", tensor.sizes(),
                    " on ", tensor.device());
  }
  if (number_kind(value) != 0) {
    return c10::str("the ", type_name(value), " ", std::string(py::str(py::handle(value))));
  }
  return c10::str("a ", type_name(value));
}

bool is_c_void_p(PyObject* value) { return std::strcmp(Py_TYPE(value)->tp_name, "c_void_p") == 0; }

bool has_array_interface(PyObject* value) {
  return PyObject_HasAttrString(value, "__dlpack__") != 0 ||
         PyObject_HasAttrString(value, "__cuda_array_interface__") != 0;
}

}  // namespace

std::string RawArguments::place(size_t index) const {
  return c10::str(callee_.name, ": argument ", index, " (", callee_.params[index].text, ") ");
}

template <class T>
void RawArguments::store(size_t index, T value) {
  static_assert(sizeof(T) <= sizeof(Slot));
  std::memcpy(slots_[index].bytes, &value, sizeof(T));
}

void RawArguments::add_tensor(size_t index, const at::Tensor& tensor) {
  const Param& param = callee_.params[index];
  if (tensor.layout() != at::kStrided) {
    refuse_value(index, "must be a dense tensor, but its layout is ", tensor.layout(), ".");
  }
  const at::ScalarType dtype = tensor.scalar_type();
  if (param.dtypes != 0 && (param.dtypes >> static_cast<int>(dtype) & 1) == 0) {
    refuse_type(index, "must be a tensor of ", param.wanted, ", but it is ", dtype_name(dtype),
                ". Convert it with .to(), or change the parameter's type.");
  }
  if (!strided_ && !tensor.is_contiguous()) {
    refuse_value(index, "must be contiguous, but it has shape ", tensor.sizes(), " and strides ",
                 tensor.strides(),
                 ". Pass .contiguous(), or strided=True if the kernel takes the strides into "
                 "account.");
  }
  if (tensor.is_conj() || tensor.is_neg()) {
    refuse_value(index,
                 "is a view whose conjugation or negation has not been carried out. Pass "
                 ".resolve_conj().resolve_neg().");
  }
  if (!tensor.is_cuda()) {
    TORCH_CHECK(false, callee_.name, ": argument ", index, " (", param.text,
                ") must be on a CUDA device, but it is on ", tensor.device(),
                ". Raw kernels run on CUDA GPUs alone; move it with .cuda().");
  }
  if (!device_) {
    device_ = tensor.device();
    device_from_ = index;
  } else if (*device_ != tensor.device()) {
    TORCH_CHECK(false, callee_.name, ": all tensors must be on one device, but argument ",
                device_from_, " is on ", *device_, " and argument ", index, " is on ",
                tensor.device(), ".");
  }
  // Storage that is shared until somebody writes stays shared by those who read.
  const void* address = param.writes ? tensor.mutable_data_ptr() : tensor.const_data_ptr();
  if (reinterpret_cast<uintptr_t>(address) % static_cast<uintptr_t>(param.alignment) != 0) {
    refuse_value(index, "must begin at a multiple of ", param.alignment,
                 " bytes in memory, and does not (it is a slice). Pass .clone().");
  }
  store(index, address);
  if (param.writes) written_.push_back(tensor.unsafeGetTensorImpl());
}

void RawArguments::add_pointer(size_t index, PyObject* value, py::handle stream) {
  const Param& param = callee_.params[index];
  if (THPVariable_Check(value)) {
    add_tensor(index, THPVariable_Unpack(value));
  } else if (value == Py_None) {
    store<void*>(index, nullptr);
  } else if (number_kind(value) != 0) {
    refuse_type(index, "is a pointer: pass a tensor or None, not ", describe(value),
                ". (An address is passed as a ctypes.c_void_p, which nobody checks.)");
  } else if (is_c_void_p(value)) {
    const py::object address = py::reinterpret_borrow<py::object>(value).attr("value");
    store(index, address.is_none() ? uintptr_t{0} : address.cast<uintptr_t>());
  } else if (has_array_interface(value)) {
    adopted_.push_back(callee_.adopt(py::handle(value), index, param.text, param.writes, stream)
                           .cast<at::Tensor>());
    add_tensor(index, adopted_.back());
  } else {
    refuse_type(index,
                "is a pointer: pass a tensor, None, or an array with __dlpack__ or "
                "__cuda_array_interface__, not ",
                describe(value), ".");
  }
}

void RawArguments::add_integer(size_t index, PyObject* value) {
  const Param& param = callee_.params[index];
  const char kind = number_kind(value);
  if (kind != 'i' && kind != 'b') {
    refuse_type(index, "must be an integer, but it is ", describe(value), ".");
  }
  py::object number = py::reinterpret_steal<py::object>(
      kind == 'b' ? PyLong_FromLong(PyObject_IsTrue(value)) : PyNumber_Index(value));
  if (!number) throw py::error_already_set();
  const int bits = static_cast<int>(param.size) * 8;
  const bool is_signed = param.kind == ParamKind::kInt;
  int overflow = 0;
  const long long small = PyLong_AsLongLongAndOverflow(number.ptr(), &overflow);
  uint64_t stored = static_cast<uint64_t>(small);
  bool fits = overflow == 0;
  if (overflow > 0 && !is_signed && bits == 64) {
    stored = PyLong_AsUnsignedLongLong(number.ptr());
    fits = PyErr_Occurred() == nullptr;
    if (!fits) PyErr_Clear();
  } else if (fits) {
    const long long lowest = param.kind == ParamKind::kUnsigned ? 0 : -1LL << (bits - 1);
    const bool above =
        is_signed ? bits < 64 && small >= 1LL << (bits - 1) : bits < 64 && small >= 1LL << bits;
    fits = small >= lowest && !above;
  }
  if (!fits) {
    refuse_value(index, "does not hold ", std::string(py::str(number)), ".");
  }
  store(index, stored);  // little-endian: the low bytes come first
}

double RawArguments::as_double(size_t index, PyObject* value) const {
  const char kind = number_kind(value);
  if (kind == 0 || kind == 'c') {
    refuse_type(index, "must be a number, but it is ", describe(value), ".");
  }
  const py::object number = py::reinterpret_steal<py::object>(
      kind == 'b' ? PyFloat_FromDouble(PyObject_IsTrue(value)) : PyNumber_Float(value));
  if (!number) throw py::error_already_set();
  return PyFloat_AS_DOUBLE(number.ptr());
}

void RawArguments::add_bytes(size_t index, PyObject* value) {
  const Param& param = callee_.params[index];
  const bool is_record = is_numpy_record(value);
  if (!PyBytes_Check(value) && !is_record) {
    refuse_type(index, "is passed by value: give its bytes (struct.pack) or a NumPy record, not ",
                describe(value), ".");
  }
  py::object bytes =
      is_record ? py::handle(value).attr("tobytes")() : py::reinterpret_borrow<py::object>(value);
  const auto size = PyBytes_GET_SIZE(bytes.ptr());
  if (param.size != 0 && size != param.size) {
    refuse_value(index, "takes ", param.size, " bytes, but ", size, " are given.");
  }
  pointers_[index] = PyBytes_AS_STRING(bytes.ptr());
  if (is_record) kept_.push_back(std::move(bytes));
}

void RawArguments::add_unknown(size_t index, PyObject* value, py::handle stream) {
  const Param& param = callee_.params[index];
  if (numpy_number_kind(value) != 0) {
    const py::object bytes = py::handle(value).attr("tobytes")();
    kept_.push_back(bytes);
    if (param.size != 0 && PyBytes_GET_SIZE(bytes.ptr()) != param.size) {
      refuse_type(index, "takes ", param.size, " bytes, but ", describe(value), " has ",
                  PyBytes_GET_SIZE(bytes.ptr()), ".");
    }
    pointers_[index] = PyBytes_AS_STRING(bytes.ptr());
  } else if (PyBytes_Check(value) || is_numpy_record(value)) {
    add_bytes(index, value);
  } else if (number_kind(value) != 0) {
    refuse_type(index,
                "has no type in the compiled code: pass a NumPy scalar, which has one "
                "(numpy.int32(5)), instead of ",
                describe(value), ".");
  } else if (param.size != 0 && param.size != sizeof(void*)) {
    refuse_type(index, "takes ", param.size, " bytes, which is not a pointer, but ",
                describe(value), " is given.");
  } else {
    add_pointer(index, value, stream);
  }
}

void RawArguments::add_scalar(size_t index, PyObject* value) {
  const Param& param = callee_.params[index];
  switch (param.kind) {
    case ParamKind::kBool:
      if (number_kind(value) != 'b') {
        refuse_type(index, "must be a bool, but it is ", describe(value), ".");
      }
      store(index, PyObject_IsTrue(value) == 1);
      break;
    case ParamKind::kInt:
    case ParamKind::kUnsigned:
    case ParamKind::kBits:
      add_integer(index, value);
      break;
    case ParamKind::kFloat:
      if (param.size == sizeof(float)) {
        store(index, static_cast<float>(as_double(index, value)));
      } else {
        store(index, as_double(index, value));
      }
      break;
    case ParamKind::kHalf:
      store(index, c10::Half(static_cast<float>(as_double(index, value))).x);
      break;
    case ParamKind::kBFloat16:
      store(index, c10::BFloat16(static_cast<float>(as_double(index, value))).x);
      break;
    case ParamKind::kComplex: {
      if (number_kind(value) == 0) {
        refuse_type(index, "must be a complex number, but it is ", describe(value), ".");
      }
      const Py_complex number = PyComplex_AsCComplex(value);
      if (PyErr_Occurred() != nullptr) throw py::error_already_set();
      if (param.size == sizeof(std::complex<float>)) {
        store(index, std::complex<float>(static_cast<float>(number.real),
                                         static_cast<float>(number.imag)));
      } else {
        store(index, std::complex<double>(number.real, number.imag));
      }
      break;
    }
    default:
      add_bytes(index, value);
  }
}

RawArguments::RawArguments(const Callee& callee, PyObject* args, bool strided, py::handle stream)
    : callee_(callee), strided_(strided) {
  TORCH_CHECK_TYPE(PyTuple_Check(args) || PyList_Check(args), callee.name,
                   ": args must be a tuple or a list of the kernel's arguments, but it is ",
                   describe(args), ".");
  if (PyList_Check(args)) {
    // Another thread may change a list while this one is inside the launch.
    kept_.push_back(py::reinterpret_steal<py::object>(PyList_AsTuple(args)));
    args = kept_.back().ptr();
  }
  const auto given = static_cast<size_t>(PyTuple_GET_SIZE(args));
  if (given != callee.params.size()) {
    std::string all;
    for (const Param& param : callee.params) all += (all.empty() ? "" : ", ") + param.text;
    TORCH_CHECK_TYPE(false, callee.name, ": the number of arguments must be ", callee.params.size(),
                     " (", all, "), but it is ", given, ".");
  }
  slots_.resize(given);
  pointers_.resize(given);
  for (size_t i = 0; i < given; ++i) pointers_[i] = slots_[i].bytes;
  for (size_t i = 0; i < given; ++i) {
    PyObject* const value = PyTuple_GET_ITEM(args, static_cast<Py_ssize_t>(i));
    if (callee.params[i].kind == ParamKind::kPointer) {
      add_pointer(i, value, stream);
    } else if (callee.params[i].kind == ParamKind::kUnknown) {
      add_unknown(i, value, stream);
    } else if (THPVariable_Check(value)) {
      refuse_type(i, "is not a pointer, but ", describe(value),
                  " is given. A tensor's value is passed as .item().");
    } else {
      add_scalar(i, value);
    }
  }
}

void RawArguments::bump_versions() const {
  for (c10::TensorImpl* tensor : written_) {
    if (!tensor->is_inference()) tensor->bump_version();
  }
}

}  // namespace torch_ops::jit
