// The index arrays of a call of index, index_put, index_add or gather_nd; and how to combine more
// of them than the kernels accept.
#pragma once

#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/nonzero.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "common/gather_family/gather_ops.h"
#include "common/gather_family/indexing.h"
#include "common/torch/registration/layout_errors.h"
#include "index/points/points.h"

namespace torch_ops {

// As in source[indices]: for the leading axes, an index array, a mask or neither.
using Indices = c10::List<std::optional<at::Tensor>>;

// The index arrays of a call, and the axes of the source that they are for.
struct Arrays {
  std::vector<at::Tensor> coordinates;
  std::vector<int64_t> dims;
  std::vector<int64_t> axes;  // the numbers by which the user knows them
  bool front;

  // The same in the form for one gather.
  bool is_one() const { return coordinates.size() == 1; }
  bool are_side_by_side() const { return torch_ops::are_side_by_side(dims, front); }
  // More than the kernels accept.
  bool are_many() const { return coordinates.size() > kMaxCoordinates; }
};

// ---- What the indices of a call are -------------------------------------------------------------

// The number by which the user knows an axis of `source`, which is a view of the user's tensor.
inline int64_t axis_name(const ops::Axes& axes, int64_t axis) {
  return axes && axis < static_cast<int64_t>(axes->size()) ? (*axes)[axis] : axis;
}

// `axes`: those that the indices are for.
inline void check_axes(const char* op, const at::Tensor& source, int64_t axes) {
  TORCH_CHECK_INDEX(axes <= source.dim(), op, ": indices are for more axes (", axes,
                    ") than source with shape ", source.sym_sizes(), " has (", source.dim(), ").");
}

inline void check_mask(const char* op, const at::Tensor& source, const at::Tensor& mask,
                       int64_t axis, const ops::Axes& axes) {
  check_dense(op, "a mask", mask);
  TORCH_CHECK_VALUE(mask.dim() > 0, op, ": a mask must have an axis, but it is 0-dimensional.");
  check_one_device(op, "source", source, "mask", mask);
  check_axes(op, source, axis);
  TORCH_CHECK_INDEX(axis + mask.dim() <= source.dim(), op, ": a mask with shape ", mask.sym_sizes(),
                    " is for as many axes of source from axis ", axis_name(axes, axis),
                    " on, but source has ", source.dim() - axis, " from there on.");
  for (int64_t k = 0; k < mask.dim(); ++k) {
    TORCH_CHECK_INDEX(
        mask.sym_size(k).sym_eq(source.sym_size(axis + k)).expect_true(__FILE__, __LINE__), op,
        ": a mask must have the shape of the axes that it is for, but axis ", k, " of mask with ",
        "shape ", mask.sym_sizes(), " is not as long as axis ", axis_name(axes, axis + k),
        " of source, which has size ", source.sym_size(axis + k), ".");
  }
}

// An index array in the place of `axis`.
inline void check_array(const char* op, const at::Tensor& source, const at::Tensor& array,
                        int64_t axis, const ops::Axes& axes) {
  TORCH_CHECK_TYPE(
      indexing::is_index_dtype(array.scalar_type()), op,
      ": an index array must be uint8, int8, int16, int32 or int64, or a mask of bools, but ",
      "that of indices for axis ", axis_name(axes, axis), " is ", dtype_name(array.scalar_type()),
      ".");
  TORCH_CHECK(array.device() == source.device(), op,
              ": source and indices must be on one device, but source is on ", source.device(),
              " and the index array for axis ", axis_name(axes, axis), " is on ", array.device(),
              ".");
}

inline bool is_mask(const at::Tensor& index) { return index.scalar_type() == at::kBool; }

// The entries of a mask that are true, as one array of the mask's coordinates each. Their number
// must be known on the host.
inline Arrays find_arrays(const char* op, const at::Tensor& source, const Indices& indices,
                          bool front, const ops::Axes& axes) {
  Arrays arrays{{}, {}, {}, front};
  int64_t axis = 0;
  const auto add = [&](at::Tensor coordinate) {
    arrays.coordinates.push_back(std::move(coordinate));
    arrays.axes.push_back(axis_name(axes, axis));
    arrays.dims.push_back(axis++);
  };
  for (size_t i = 0; i < indices.size(); ++i) {
    const std::optional<at::Tensor> given = indices.get(i);
    if (!given.has_value() || !given->defined()) {
      ++axis;
      continue;
    }
    if (is_mask(*given)) {
      check_mask(op, source, *given, axis, axes);
      for (at::Tensor& coordinate : at::nonzero(*given).unbind(1)) add(std::move(coordinate));
    } else {
      check_array(op, source, *given, axis, axes);
      add(*given);
    }
  }
  check_axes(op, source, axis);
  return arrays;
}

// ---- More index arrays than the kernels accept --------------------------------------------------

inline std::vector<c10::SymInt> indexed_sizes(const at::Tensor& source, const Arrays& arrays) {
  std::vector<c10::SymInt> sizes;
  for (const int64_t dim : arrays.dims) sizes.push_back(source.sym_size(dim));
  return sizes;
}

// Joins the arrays, for adjacent axes, to one for these axes joined, if there are more than the
// kernels accept. Returns the table with the axes joined, which may be a copy.
inline at::Tensor fold(const at::Tensor& table, Arrays& arrays, std::string_view mode,
                       ops::Name name) {
  if (!arrays.are_many()) return table;
  const int64_t first = arrays.dims.front(), last = arrays.dims.back();
  arrays.coordinates = {points::number_points(arrays.coordinates, indexed_sizes(table, arrays),
                                              mode, ops::Axes(arrays.axes), name)};
  arrays.dims.resize(1);
  arrays.axes.resize(1);
  return table.flatten(first, last);
}

// A call of more arrays, on a table whose indexed axes are in front of the others and joined; and
// the ways back.
struct Folded {
  Arrays few;
  at::Tensor table;

  Folded(const at::Tensor& source, const Arrays& arrays, std::string_view mode, ops::Name name)
      : few{arrays.coordinates, span(0, static_cast<int64_t>(arrays.dims.size())), arrays.axes,
            false},
        dims(arrays.dims),
        place(arrays.are_side_by_side() ? arrays.dims[0] : 0) {
    for (const at::Tensor& each : arrays.coordinates) points = std::max(points, each.dim());
    const at::Tensor arranged = source.movedim(dims, few.dims);
    sizes = arranged.sym_sizes().vec();
    table = fold(arranged, few, mode, name);
  }

  // The rows in the form of the source's call: the points' axes from the front to their place.
  at::Tensor rows_back(const at::Tensor& rows) const {
    return rows.movedim(span(0, points), span(place, points));
  }
  at::Tensor rows_to_front(const at::Tensor& rows) const {
    return rows.movedim(span(place, points), span(0, points));
  }

  at::Tensor table_back(const at::Tensor& written) const {
    const auto count = static_cast<int64_t>(dims.size());
    return written.view_symint(sizes).movedim(span(0, count), dims);
  }

 private:
  std::vector<c10::SymInt> sizes;  // of the table before its axes were joined
  std::vector<int64_t> dims;       // of the source, which are joined
  int64_t place;                   // of the points' axes in the rows
  int64_t points = 0;              // how many these are
};

}  // namespace torch_ops
