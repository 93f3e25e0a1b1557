// source[indices] when Python calls the ops directly: how indices and values are read, for reads
// and writes.
#pragma once

#include <ATen/EmptyTensor.h>
#include <ATen/TensorIndexing.h>
#include <ATen/functorch/DynamicLayer.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/utils/tensor_numpy.h>

#include <exception>
#include <optional>
#include <utility>

#include "common/gather_family/gather_ops.h"
#include "common/torch/calls/python_call.h"
#include "index/arrays.h"

namespace torch_ops::python_index {

using at::Tensor;
using python_call::read;

// An index array: a plain tensor, or a list of integers, which goes to the source's device.
inline bool read_array(PyObject* given, const Tensor& source, Tensor& array) {
  if (!PyList_CheckExact(given)) return read(given, array);
  const Py_ssize_t count = PyList_GET_SIZE(given);
  // Bypasses the dispatcher, where a transform of torch.func would take it for one of its own.
  array = at::detail::empty_cpu({count}, at::kLong);
  auto* const entries = array.mutable_data_ptr<int64_t>();
  for (Py_ssize_t n = 0; n < count; ++n) {
    if (!read(PyList_GET_ITEM(given, n), entries[n])) return false;
  }
  if (!source.is_cpu()) {
    pybind11::gil_scoped_release no_gil;  // the copy waits for the GPU
    array = array.to(source.device());
  }
  return true;
}

// Values to write: a plain tensor, or a number, of which a tensor is made on `device`.
inline bool read_values(PyObject* given, const Tensor& source, at::Device device, Tensor& values) {
  if (read(given, values)) return true;
  at::Scalar number;
  if (PyBool_Check(given)) {
    number = given == Py_True;
  } else if (!read(given, number)) {
    return false;
  }
  try {
    values = at::indexing::scalarToTensor(number, source.options(), device);
  } catch (const std::exception&) {  // the dtype cannot hold it
    return false;
  }
  return true;
}

// A Python or NumPy integer.
inline bool is_int(PyObject* given) {
  return PyLong_CheckExact(given) || torch::utils::is_numpy_int(given);
}

inline bool read_int(PyObject* given, int64_t& value) {
  const auto converted = pybind11::reinterpret_steal<pybind11::object>(PyNumber_Index(given));
  if (converted && read(converted.ptr(), value)) return true;
  PyErr_Clear();
  return false;
}

// Parsed indices: basic ones make a view of the source, and arrays are for the axes of that
// view. The rules are those of Parsed in torch_ops/ops/indexing/_indices.py, which handles the
// other cases.
class Parsed {
 public:
  // False if something is neither a plain tensor nor of one of Python's own types, and if
  // there is an error for which Python has the text. The GIL is held.
  bool read(const Tensor& source, PyObject* given) {
    if (source.unsafeGetTensorImpl()->has_symbolic_sizes_strides()) return false;
    const bool several = PyTuple_CheckExact(given);
    PyObject* const* const items = several ? PySequence_Fast_ITEMS(given) : &given;
    const Py_ssize_t count = several ? PyTuple_GET_SIZE(given) : 1;
    int64_t left = source.dim();  // axes of an ellipsis
    bool has_ellipsis = false;
    for (Py_ssize_t i = 0; i < count; ++i) {
      const int64_t axes = axes_of(items[i]);
      if (axes < 0 || (has_ellipsis && items[i] == Py_Ellipsis)) return false;
      has_ellipsis = has_ellipsis || items[i] == Py_Ellipsis;
      left -= axes;
    }
    if (left < 0) return false;
    for (Py_ssize_t i = 0; i < count; ++i) {
      if (!add(source, items[i], i, left)) return false;
    }
    while (!arrays_.empty() && !arrays_.get(arrays_.size() - 1)) arrays_.pop_back();
    return true;
  }

  // Is the view the source itself?
  bool is_plain() const { return steps_.empty(); }

  Tensor view(const Tensor& source) const {
    Tensor result = source;
    for (const Step& step : steps_) {
      switch (step.kind) {
        case Step::kSelect:
          result = result.select(step.axis, step.start);
          break;
        case Step::kSlice:
          result = result.slice(step.axis, step.start, step.stop, step.step);
          break;
        case Step::kNewAxis:
          result = result.unsqueeze(step.axis);
          break;
      }
    }
    return result;
  }

  const Indices& arrays() const { return arrays_; }

  // Whether the arrays' axes come first in the result: if they are separated, where an integer
  // counts as an array.
  bool front() const { return front_; }

  // The numbers by which messages name the axes of the view.
  ops::Axes axes() const { return is_plain() ? ops::Axes() : ops::Axes(names_); }

 private:
  struct Step {
    enum Kind { kSelect, kSlice, kNewAxis } kind;
    int64_t axis;  // of the result of the previous steps
    int64_t start = 0, stop = 0, step = 1;
  };

  static bool is_none_or_int(PyObject* given) {
    return given == Py_None || PyLong_CheckExact(given);
  }

  // How many axes of the source an item is for, except an ellipsis; below 0 if it cannot be read.
  static int64_t axes_of(PyObject* item) {
    if (item == Py_None || item == Py_Ellipsis || PyBool_Check(item)) return 0;
    if (PyLong_CheckExact(item) || PyList_CheckExact(item)) return 1;
    if (PySlice_Check(item)) {
      const auto* const slice = reinterpret_cast<PySliceObject*>(item);
      const bool fits = is_none_or_int(slice->start) && is_none_or_int(slice->stop) &&
                        is_none_or_int(slice->step);
      return fits ? 1 : -1;
    }
    if (!THPVariable_CheckTypeExact(Py_TYPE(item))) {
      return torch::utils::is_numpy_int(item) ? 1 : -1;
    }
    const Tensor& array = THPVariable_Unpack(item);
    if (array.scalar_type() != at::kBool) return 1;
    return array.dim() > 0 ? array.dim() : -1;  // a mask without axes is for a new one
  }

  bool add(const Tensor& source, PyObject* item, Py_ssize_t position, int64_t left) {
    const auto place = static_cast<int64_t>(names_.size());  // in the view
    if (item == Py_Ellipsis) {
      for (int64_t n = 0; n < left; ++n) add_axis();
      return true;
    }
    if (item == Py_None) {
      steps_.push_back({Step::kNewAxis, place});
      add_axis();
      --axis_;  // it has the number of the next one
      return true;
    }
    if (PySlice_Check(item)) {
      Py_ssize_t start, stop, step;
      if (PySlice_Unpack(item, &start, &stop, &step) < 0 || step < 0) {
        PyErr_Clear();
        return false;
      }
      if (start != 0 || step != 1 || stop < source.size(axis_)) {
        steps_.push_back({Step::kSlice, place, start, stop, step});
      }
      add_axis();
      return true;
    }
    front_ = front_ || (last_array_ >= 0 && last_array_ < position - 1);
    last_array_ = position;
    if (PyBool_Check(item)) {  // a mask without axes, for a new one: the entries where it is true
      steps_.push_back({Step::kNewAxis, place});
      names_.push_back(axis_);
      arrays_.push_back(at::zeros({item == Py_True}, source.options().dtype(at::kLong)));
      return true;
    }
    // An item that axes_of accepts: a tensor, a list or an integer.
    if (!THPVariable_CheckTypeExact(Py_TYPE(item)) && !PyList_CheckExact(item)) {
      int64_t number = 0;
      const int64_t size = source.size(axis_);
      if (!read_int(item, number) || number < -size || number >= size) return false;
      steps_.push_back({Step::kSelect, place, number});
      ++axis_;
      return true;
    }
    Tensor array;
    if (!read_array(item, source, array)) return false;
    const int64_t covered = array.scalar_type() == at::kBool ? array.dim() : 1;
    for (int64_t n = 0; n < covered; ++n) names_.push_back(axis_++);
    arrays_.push_back(std::move(array));
    return true;
  }

  // An axis of the view without an array.
  void add_axis() {
    names_.push_back(axis_++);
    arrays_.push_back(std::nullopt);
  }

  Indices arrays_;
  c10::SmallVector<Step, 4> steps_;
  c10::SmallVector<int64_t, 8> names_;
  int64_t axis_ = 0;  // of the source: the next one
  Py_ssize_t last_array_ = -1;
  bool front_ = false;
};

// Is an index one of those that make a view, and mean the same to NumPy and torch?
inline bool is_basic(PyObject* index) {
  if (THPVariable_CheckTypeExact(Py_TYPE(index))) return false;
  return PySlice_Check(index) || index == Py_None || index == Py_Ellipsis || is_int(index);
}

inline bool are_basic(PyObject* indices) {
  if (!PyTuple_CheckExact(indices)) return is_basic(indices);
  bool ellipsis = false;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(indices); ++i) {
    PyObject* const item = PyTuple_GET_ITEM(indices, i);
    if (!is_basic(item) || (ellipsis && item == Py_Ellipsis)) return false;
    ellipsis = ellipsis || item == Py_Ellipsis;
  }
  return true;
}

// index(source, indices), or NotImplemented.
inline PyObject* index(PyObject*, PyObject* const* given, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  static const auto op = find_op<Tensor(const Tensor&, const Indices&, bool, ops::Axes)>("index");
  Tensor source;
  if (!python_call::may_read(count, 2) || !read(given[0], source)) {
    return python_call::not_implemented();
  }
  PyObject* const picks = given[1];
  if (are_basic(picks)) {
    PyObject* const view = PyObject_GetItem(given[0], picks);
    if (view != nullptr ||
        !(PyErr_ExceptionMatches(PyExc_IndexError) || PyErr_ExceptionMatches(PyExc_ValueError) ||
          PyErr_ExceptionMatches(PyExc_TypeError))) {
      return view;
    }
    PyErr_Clear();  // Python raises it in our words
    return python_call::not_implemented();
  }
  Tensor array;
  if (source.dim() > 0 && read_array(picks, source, array) &&
      indexing::is_index_dtype(array.scalar_type()) && array.device() == source.device()) {
    return python_call::result_of([&] {
      return ops::gather().call(source, array, 0, /*batch_dims=*/0, "from_end", std::nullopt,
                                "index");
    });
  }
  Parsed parsed;
  if (!parsed.read(source, picks)) return python_call::not_implemented();
  return python_call::result_of(
      [&] { return op.call(parsed.view(source), parsed.arrays(), parsed.front(), parsed.axes()); });
  END_HANDLE_TH_ERRORS
}

enum class Writes { kPut, kPutInPlace, kAdd };

// index_put(source, indices, values, accumulate, deterministic), or index_put_ or index_add with
// the same arguments; or NotImplemented.
template <Writes kWrites>
PyObject* put(PyObject*, PyObject* const* given, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  static const auto op = find_op<Tensor(const Tensor&, const Indices&, const Tensor&, bool, bool,
                                        std::optional<bool>, ops::Axes, ops::Name)>("index_put");
  static const auto inplace_op =
      find_op<Tensor&(Tensor&, const Indices&, const Tensor&, bool, bool, std::optional<bool>,
                      ops::Axes, ops::Name)>("index_put_");
  constexpr bool kInplace = kWrites == Writes::kPutInPlace;
  constexpr std::string_view kName = kInplace                  ? "index_put_"
                                     : kWrites == Writes::kAdd ? "index_add"
                                                               : "index_put";
  Tensor source;
  bool accumulate = false;
  std::optional<bool> deterministic;
  Parsed parsed;
  Tensor values;
  if (!python_call::may_read(count, 5) || !read(given[0], source) || !read(given[3], accumulate) ||
      !read(given[4], deterministic) || !parsed.read(source, given[1])) {
    return python_call::not_implemented();
  }
  check_dense(kName.data(), "source", source);          // before views and values are made of it
  const bool copies = !kInplace && !parsed.is_plain();  // to write to a view of the copy
  // A number for a whole view, which no kernel reads from the device.
  const bool fills = kInplace && !accumulate && parsed.arrays().empty() &&
                     !THPVariable_CheckTypeExact(Py_TYPE(given[2]));
  // Under torch.vmap Python makes a copy for each sample.
  if ((copies && at::functorch::maybeCurrentDynamicLayer().has_value()) ||
      !read_values(given[2], source, fills ? at::kCPU : source.device(), values)) {
    return python_call::not_implemented();
  }
  return python_call::result_of([&]() -> Tensor {
    if (!kInplace && !copies) {
      return op.call(source, parsed.arrays(), values, accumulate, parsed.front(), deterministic,
                     parsed.axes(), kName);
    }
    // Of a view of it each place may be one.
    if (fills || (kInplace && !parsed.is_plain())) check_no_overlap("index_put_", "source", source);
    Tensor result = copies ? source.clone() : source;
    Tensor view = parsed.view(result);
    if (fills) {
      view.fill_(values);
      return result;
    }
    inplace_op.call(view, parsed.arrays(), values, accumulate, parsed.front(), deterministic,
                    parsed.axes(), kName);
    return result;
  });
  END_HANDLE_TH_ERRORS
}

}  // namespace torch_ops::python_index
