// How the indices of source[indices] are read where Python calls the ops directly.
#pragma once

#include <ATen/core/List.h>

#include "common/gather_ops.h"
#include "common/python_call.h"

namespace torch_ops {

using Indices = c10::List<std::optional<at::Tensor>>;

namespace python_call {

// An index array or a mask; or a tuple of these, side by side, and of slices that leave an axis
// whole.
template <>
struct Argument<Indices> {
  Indices value;

  bool read(PyObject* given) {
    if (!PyTuple_CheckExact(given)) return add(given);
    const Py_ssize_t count = PyTuple_GET_SIZE(given);
    value.reserve(count);
    bool any = false, behind = false;
    for (Py_ssize_t i = 0; i < count; ++i) {
      PyObject* const item = PyTuple_GET_ITEM(given, i);
      if (is_whole(item)) {
        value.push_back(std::nullopt);
        behind = any;
      } else if (behind || !add(item)) {
        return false;
      } else {
        any = true;
      }
    }
    return any;
  }

 private:
  static bool is_whole(PyObject* item) {
    if (!PySlice_Check(item)) return false;
    const auto* const slice = reinterpret_cast<PySliceObject*>(item);
    return slice->start == Py_None && slice->stop == Py_None && slice->step == Py_None;
  }

  bool add(PyObject* item) {
    Argument<at::Tensor> array;
    // A mask of no axes is for a new axis: that takes a view of the source.
    if (!array.read(item) || (array.value.scalar_type() == at::kBool && array.value.dim() == 0)) {
      return false;
    }
    value.push_back(std::move(array.value));
    return true;
  }
};

}  // namespace python_call

namespace python_index {

using at::Tensor;

// Is an index one of those that make a view, and mean the same to NumPy and torch?
inline bool is_basic(PyObject* index) {
  return PySlice_Check(index) || PyLong_CheckExact(index) || index == Py_None ||
         index == Py_Ellipsis;
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
  python_call::Argument<Tensor> source;
  if (!python_call::may_read(count, 2) || !source.read(given[0])) {
    return python_call::not_implemented();
  }
  PyObject* const picks = given[1];
  if (are_basic(picks)) {
    PyObject* const view = PyObject_GetItem(given[0], picks);
    if (view != nullptr || !PyErr_ExceptionMatches(PyExc_IndexError)) return view;
    PyErr_Clear();  // Python raises it in our words
    return python_call::not_implemented();
  }
  python_call::Argument<Tensor> array;
  if (array.read(picks) && array.value.scalar_type() != at::kBool) {
    return python_call::result_of([&] {
      return ops::gather().call(source.value, array.value, 0, /*batch_dims=*/0, "from_end",
                                std::nullopt);
    });
  }
  python_call::Argument<Indices> indices;
  if (!indices.read(picks)) return python_call::not_implemented();
  return python_call::result_of(
      [&] { return op.call(source.value, indices.value, /*front=*/false, /*axes=*/std::nullopt); });
  END_HANDLE_TH_ERRORS
}

}  // namespace python_index
}  // namespace torch_ops
