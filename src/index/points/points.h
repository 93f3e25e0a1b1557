// The checks of gathers and writes at points, the resulting shapes, and the layout
// of a call. Sizes are symbolic, so the Meta kernels check and compute by the same lines.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/strides.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <string_view>
#include <vector>

#include "common/gather_family/gather_ops.h"
#include "common/gather_family/index_mode_args.h"
#include "common/gather_family/indexing.h"
#include "common/torch/registration/layout_errors.h"
#include "index/points/points_call.h"

namespace torch_ops {

// The axes [first, first + count).
inline std::vector<int64_t> span(int64_t first, int64_t count) {
  std::vector<int64_t> axes(count);
  std::iota(axes.begin(), axes.end(), first);
  return axes;
}

// Are the index arrays for adjacent axes, so that the points' axes take the place of these in the
// rows, unless they are to be in front?
inline bool are_side_by_side(at::IntArrayRef dims, bool front) {
  return !front && dims.back() - dims[0] + 1 == static_cast<int64_t>(dims.size());
}

}  // namespace torch_ops

namespace torch_ops::points {

using at::Tensor;

// The mode in which the same entries are read again, for a derivative: an error was raised already.
inline std::string_view quiet(int64_t mode) {
  switch (static_cast<IndexMode>(mode)) {
    case IndexMode::kRaise:
      return "unchecked";
    case IndexMode::kFromEnd:
      return "fill";
    default:
      return indexing::mode_name(mode);
  }
}

inline void check_values(const char* op, const Tensor& source, const Tensor& values) {
  check_dense(op, "source", source);
  check_dense(op, "values", values);
  check_same_type(op, "source", source, "values", values);
  check_one_device(op, "source", source, "values", values);
}

// The index arrays of a call, broadcast against each other: their first `batch_dims` axes are the
// table's, the others are the points'.
//
//   rows [batch, outer, points, inner]   if the indexed axes of the table are adjacent
//   rows [batch, points, others]         if they are not, or `front`
struct Points {
  c10::SmallVector<int64_t, 4> dims;  // the indexed axes of the table, in rising order
  int64_t batch_dims;
  bool side_by_side;
  c10::SymDimVector sizes;  // of the broadcast index arrays

  // The position of the points' axes in the rows.
  int64_t place() const { return side_by_side ? dims[0] : batch_dims; }

  // The table's axes before the points in the rows, without the batch; and those after them.
  c10::SmallVector<int64_t, 4> outer_axes() const {
    c10::SmallVector<int64_t, 4> axes;
    for (int64_t axis = batch_dims; axis < place(); ++axis) axes.push_back(axis);
    return axes;
  }
  c10::SmallVector<int64_t, 4> inner_axes(int64_t rank) const {
    c10::SmallVector<int64_t, 4> axes;
    for (int64_t axis = place(); axis < rank; ++axis) {
      if (std::find(dims.begin(), dims.end(), axis) == dims.end()) axes.push_back(axis);
    }
    return axes;
  }
};

// Makes `sizes` those of tensors of these and `other` sizes, broadcast. False: they do not fit.
inline bool broadcast_into(c10::SymDimVector& sizes, c10::SymIntArrayRef other) {
  if (other.size() > sizes.size()) {
    sizes.insert(sizes.begin(), other.begin(), other.begin() + (other.size() - sizes.size()));
  }
  const size_t shift = sizes.size() - other.size();
  for (size_t axis = 0; axis < other.size(); ++axis) {
    c10::SymInt& size = sizes[shift + axis];
    // An unknown size (of a mask's entries) is assumed not to be 1.
    if (TORCH_GUARD_OR_FALSE(other[axis].sym_eq(1))) continue;
    if (TORCH_GUARD_OR_FALSE(size.sym_eq(1))) {
      size = other[axis];
    } else if (!size.sym_eq(other[axis]).expect_true(__FILE__, __LINE__)) {
      return false;
    }
  }
  return true;
}

inline c10::SymDimVector broadcast_sizes(const char* op, at::TensorList coordinates) {
  c10::SymDimVector sizes;
  for (const Tensor& coordinate : coordinates) {
    if (broadcast_into(sizes, coordinate.sym_sizes())) continue;
    std::vector<c10::SymIntArrayRef> shapes;
    for (const Tensor& each : coordinates) shapes.push_back(each.sym_sizes());
    TORCH_CHECK_INDEX(false, op, ": the index arrays must have shapes that fit each other, but ",
                      "they are ", c10::Join(", ", shapes), ".");
  }
  return sizes;
}

inline void check_coordinates(const char* op, at::TensorList coordinates) {
  TORCH_CHECK_VALUE(!coordinates.empty(), op, ": there must be an index array.");
  for (const Tensor& coordinate : coordinates) {
    indexing::check_index_dtype(op, coordinate);
    TORCH_CHECK(coordinate.device() == coordinates[0].device(), op,
                ": all index arrays must be on one device, but there are ", coordinates[0].device(),
                " and ", coordinate.device(), ".");
  }
}

inline Points check_points(const char* op, const Tensor& source, at::TensorList coordinates,
                           at::IntArrayRef dims, int64_t batch_dims, bool front) {
  check_coordinates(op, coordinates);
  check_one_device(op, "source", source, "index", coordinates[0]);
  TORCH_CHECK_VALUE(dims.size() == coordinates.size(), op,
                    ": there must be one axis for each index array, but there are ", dims.size(),
                    " for ", coordinates.size(), ".");
  TORCH_CHECK_VALUE(batch_dims >= 0, op, ": batch_dims must not be negative, but it is ",
                    batch_dims, ".");
  Points points{{dims.begin(), dims.end()}, batch_dims, are_side_by_side(dims, front), {}};
  for (size_t j = 0; j < dims.size(); ++j) {
    const int64_t least = j == 0 ? batch_dims : dims[j - 1] + 1;
    TORCH_CHECK_INDEX(dims[j] >= least && dims[j] < source.dim(), op,
                      ": the indexed axes must be between ", batch_dims, " and ", source.dim() - 1,
                      " for source with shape ", source.sym_sizes(),
                      ", in rising order, but they are ", dims, ".");
  }
  points.sizes = broadcast_sizes(op, coordinates);
  TORCH_CHECK_VALUE(static_cast<int64_t>(points.sizes.size()) >= batch_dims, op,
                    ": index must have the batch axes (batch_dims=", batch_dims,
                    "), but its shape is ", points.sizes, ".");
  const auto batch = source.sym_sizes().slice(0, batch_dims);
  c10::SymDimVector padded(batch.begin(), batch.end());
  padded.resize(points.sizes.size(), c10::SymInt(1));
  TORCH_CHECK_VALUE(broadcast_into(points.sizes, padded), op,
                    ": source and index must have the same batch axes: source has shape ",
                    source.sym_sizes(), ", index ", points.sizes, ", and batch_dims is ",
                    batch_dims, ".");
  return points;
}

inline c10::SymDimVector rows_sizes(c10::SymIntArrayRef source, const Points& points) {
  c10::SymDimVector sizes(source.begin(), source.begin() + points.place());
  sizes.append(points.sizes.begin() + points.batch_dims, points.sizes.end());
  for (const int64_t axis : points.inner_axes(static_cast<int64_t>(source.size()))) {
    sizes.push_back(source[axis]);
  }
  return sizes;
}

// The number by which messages name the axis of coordinate j.
inline int64_t axis_name(const ops::Axes& axes, size_t j, int64_t own) {
  return axes ? axes->at(j) : own;
}

// For each call of the kernels: as many arrays as they accept, since compositions reduce larger
// numbers; and numbers for all of their axes.
inline void check_axes(const char* op, const ops::Axes& axes, size_t count) {
  TORCH_CHECK_VALUE(count <= kMaxCoordinates, op, ": there may be 1 to ", kMaxCoordinates,
                    " index arrays, but there are ", count, ".");
  TORCH_CHECK_VALUE(!axes || axes->size() == count, op,
                    ": the length of axes must be the number of index arrays, ", count,
                    ", but it is ", axes ? axes->size() : 0, ".");
}

// Raises the errors of entries that no row of a call is for, because another array or an axis in
// front of the arrays has size 0: the kernels do not read them.
inline void check_unread(at::TensorList coordinates, c10::SymIntArrayRef sizes, IndexMode mode,
                         const ops::Axes& axes, ops::Name name) {
  if (!IndexRule(mode, 1).raises()) return;
  for (size_t j = 0; j < coordinates.size(); ++j) {
    if (coordinates[j].numel() == 0) continue;
    const int64_t axis = axis_name(axes, j, static_cast<int64_t>(j));
    ops::ravel_multi_index().call(coordinates.slice(j, 1), sizes.slice(j, 1),
                                  indexing::mode_name(static_cast<int64_t>(mode)), axis, name);
  }
}

// The errors that kernels do not find. An index into an axis of size 0 has no row to name.
inline void check_entries(const char* op, const Tensor& source, at::TensorList coordinates,
                          const Points& points, IndexMode mode, const ops::Axes& axes) {
  if (mode == IndexMode::kFill) return;
  const bool no_points =
      std::find(points.sizes.begin(), points.sizes.end(), 0) != points.sizes.end();
  for (size_t j = 0; j < points.dims.size() && !no_points; ++j) {
    TORCH_CHECK_INDEX(source.size(points.dims[j]) > 0, op, ": index has entries, but axis ",
                      axis_name(axes, j, points.dims[j]),
                      " of source has size 0: no entry is allowed.");
  }
  bool unread = no_points;
  for (const int64_t axis : points.outer_axes()) unread = unread || source.size(axis) == 0;
  if (!unread) return;
  std::vector<c10::SymInt> sizes;
  for (const int64_t dim : points.dims) sizes.push_back(source.sym_size(dim));
  check_unread(coordinates, sizes, mode, axes ? axes : ops::Axes(points.dims), op);
}

// ---- The layout ---------------------------------------------------------------------------------

// The strides of each coordinate over an axis of the rows.
struct RowAxis {
  PointsAxis axis;
  std::array<int64_t, kMaxCoordinates> strides;
};

using RowAxes = c10::SmallVector<RowAxis, kMaxPointAxes>;

inline bool joins(const PointsAxis& left, const PointsAxis& right) {
  return left.table_stride == right.table_stride * right.size &&
         left.rows_stride == right.rows_stride * right.size;
}

// Appends an axis, joined with the last one if one stride walks both. One of size 0 absorbs all
// others: nothing is walked.
inline void append(RowAxes& axes, RowAxis next) {
  if (next.axis.size == 1) return;
  if (!axes.empty() && axes.back().axis.size == 0) return;
  if (next.axis.size == 0) axes.clear();
  if (!axes.empty() && joins(axes.back().axis, next.axis)) {
    RowAxis& last = axes.back();
    bool all = true;
    for (size_t j = 0; j < next.strides.size(); ++j) {
      all = all && last.strides[j] == next.strides[j] * next.axis.size;
    }
    if (all) {
      next.axis.size *= last.axis.size;
      last = next;
      return;
    }
  }
  axes.push_back(next);
}

// The axes of the rows and of a row, joined; false if they are too many.
inline bool lay_out_axes(const RowAxes& rows, const RowAxes& inner, PointsLayout& layout) {
  const auto most = static_cast<size_t>(kMaxPointAxes);
  if (rows.size() > most || inner.size() > most) return false;
  layout.rows = layout.inner = 1;
  layout.row_axes = layout.inner_axes = 0;
  for (const RowAxis& each : rows) {
    for (int j = 0; j < layout.coordinates; ++j) {
      layout.coordinate[j].strides[layout.row_axes] = each.strides[j];
    }
    layout.row_axis[layout.row_axes++] = each.axis;
    layout.rows *= each.axis.size;
  }
  for (const RowAxis& each : inner) {
    layout.inner_axis[layout.inner_axes++] = each.axis;
    layout.inner *= each.axis.size;
  }
  if (rows.empty()) layout.row_axis[layout.row_axes++] = {1, 0, 0};
  if (inner.empty()) layout.inner_axis[layout.inner_axes++] = {1, 1, 1};
  return true;
}

// The stride of a tensor, broadcast to `rank` axes, along one of them.
inline int64_t broadcast_stride(const Tensor& tensor, int64_t rank, int64_t axis) {
  const int64_t own = axis - (rank - tensor.dim());
  return own < 0 || tensor.size(own) == 1 ? 0 : tensor.stride(own);
}

// The layout of a call on a table of these sizes and strides; false if it has too many axes.
inline bool try_lay_out(at::IntArrayRef table_sizes, at::IntArrayRef table_strides,
                        const std::vector<Tensor>& coordinates, const Tensor& rows,
                        const Points& points, IndexMode mode, const ops::Axes& axes,
                        PointsLayout& layout) {
  const auto count = coordinates.size();
  const auto index_rank = static_cast<int64_t>(points.sizes.size());
  layout.coordinates = static_cast<int32_t>(count);
  for (size_t j = 0; j < count; ++j) {
    Coordinate& coordinate = layout.coordinate[j];
    const int64_t dim = points.dims[j];
    coordinate.data = coordinates[j].const_data_ptr();
    coordinate.entry_bytes = static_cast<int32_t>(coordinates[j].element_size());
    coordinate.axis = static_cast<int32_t>(axis_name(axes, j, dim));
    coordinate.rule = IndexRule(mode, table_sizes[dim]);
    coordinate.table_stride = table_strides[dim];
  }
  RowAxes row_axes, inner;
  int64_t at = 0;  // an axis of the rows
  const auto add_point_axis = [&](int64_t index_axis, int64_t table_stride) {
    RowAxis next{{rows.size(at), table_stride, rows.stride(at)}, {}};
    for (size_t j = 0; j < count; ++j) {
      next.strides[j] = broadcast_stride(coordinates[j], index_rank, index_axis);
    }
    append(row_axes, next);
    ++at;
  };
  const auto add_table_axis = [&](RowAxes& to, int64_t axis) {
    append(to, {{rows.size(at), table_strides[axis], rows.stride(at)}, {}});
    ++at;
  };
  for (int64_t axis = 0; axis < points.batch_dims; ++axis) {
    add_point_axis(axis, table_strides[axis]);
  }
  for (const int64_t axis : points.outer_axes()) add_table_axis(row_axes, axis);
  for (int64_t axis = points.batch_dims; axis < index_rank; ++axis) add_point_axis(axis, 0);
  const auto rank = static_cast<int64_t>(table_sizes.size());
  for (const int64_t axis : points.inner_axes(rank)) add_table_axis(inner, axis);
  return lay_out_axes(row_axes, inner, layout);
}

// The layout of a call on tensors that were checked. Only if their axes cannot be joined to few
// enough, they become contiguous copies, one after the other; finally the table, with the indexed
// axes in front of the others, which are then one.
inline PointsLayout lay_out(Tensor& table, std::vector<Tensor>& coordinates, Tensor& rows,
                            const Points& points, IndexMode mode, const ops::Axes& axes) {
  PointsLayout layout{};
  for (Tensor& coordinate : coordinates) coordinate = indexing::for_kernels(coordinate);
  const auto fits = [&] {
    return try_lay_out(table.sizes(), table.strides(), coordinates, rows, points, mode, axes,
                       layout);
  };
  if (fits()) return layout;
  const auto sizes = C10_AS_INTARRAYREF_SLOW(points.sizes);
  for (Tensor& coordinate : coordinates) coordinate = coordinate.expand(sizes).contiguous();
  rows = rows.contiguous();
  if (fits()) return layout;
  table = table.contiguous();
  if (fits()) return layout;
  const auto front = span(points.batch_dims, static_cast<int64_t>(points.dims.size()));
  table = table.movedim(points.dims, front).contiguous().movedim(front, points.dims);
  TORCH_INTERNAL_ASSERT(fits());
  return layout;
}

// A layout whose rows are points and whose table is a contiguous array of `sizes`.
inline PointsLayout lay_out_places(std::vector<Tensor>& coordinates, at::IntArrayRef sizes,
                                   const Tensor& places, IndexMode mode, const ops::Axes& axes) {
  for (Tensor& coordinate : coordinates) coordinate = indexing::for_kernels(coordinate);
  const auto whole = places.sym_sizes();
  Points points{
      {}, /*batch_dims=*/0, /*side_by_side=*/true, c10::SymDimVector(whole.begin(), whole.end())};
  for (size_t j = 0; j < sizes.size(); ++j) points.dims.push_back(static_cast<int64_t>(j));
  const auto strides = c10::contiguous_strides(sizes);
  PointsLayout layout{};
  const auto fits = [&] {
    return try_lay_out(sizes, strides, coordinates, places, points, mode, axes, layout);
  };
  if (fits()) return layout;
  for (Tensor& coordinate : coordinates)
    coordinate = coordinate.expand(places.sizes()).contiguous();
  TORCH_INTERNAL_ASSERT(fits());
  return layout;
}

inline PointsSite make_site(const char* op, const Points& points, at::IntArrayRef sizes,
                            const Tensor& source) {
  PointsSite site{op, sizes, 1, 1};
  for (const int64_t axis : points.outer_axes()) site.outer *= source.size(axis);
  for (size_t axis = points.batch_dims; axis < sizes.size(); ++axis) site.entries *= sizes[axis];
  return site;
}

// ---- The transpose ------------------------------------------------------------------------------

// ravel_multi_index of any number of coordinates.
Tensor number_points(at::TensorList coordinates, c10::SymIntArrayRef sizes, std::string_view mode,
                     const ops::Axes& axes, ops::Name name);

// `rows`, as gather_points returns them, added up where it read them: in a tensor whose axes `dims`
// have these `sizes`. Calls registered ops, so it can be differentiated. A point
// that names no place is dropped; `all_named`: there is none, except for errors. `shards`: of the
// result (common/torch/registration/sharding.h).
Tensor sum_at(const Tensor& rows, at::TensorList coordinates, at::IntArrayRef dims,
              c10::SymIntArrayRef sizes, int64_t batch_dims, bool front, std::string_view mode,
              bool all_named, std::optional<bool> deterministic, ops::Axes axes = std::nullopt,
              ops::Name name = std::nullopt, std::vector<int64_t> shards = {});

}  // namespace torch_ops::points
