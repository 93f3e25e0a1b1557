// The checks of ops with an integer index, the resulting shapes, and the RowLayout of a
// call. Sizes are symbolic, so the Meta kernels check and compute by the same lines.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/SymIntArrayRef.h>
#include <c10/util/accumulate.h>

#include <optional>
#include <string>
#include <vector>

#include "common/indexing/index_mode.h"
#include "common/layout/row_layout.h"
#include "common/torch/calls/callers.h"
#include "common/torch/calls/checks.h"

namespace torch_ops {

// A copy of a tensor whose memory begins at no multiple of its elements' size, which is possible
// only for complex numbers that came from elsewhere: kernels move whole elements.
inline at::Tensor aligned(const at::Tensor& tensor) {
  const auto address = reinterpret_cast<uintptr_t>(tensor.const_data_ptr());
  return address % tensor.element_size() == 0 ? tensor : tensor.clone();
}

}  // namespace torch_ops

namespace torch_ops::indexing {

using at::Tensor;

// The axis that an index picks from, and how many leading axes index and table share; both counted
// from the front.
struct Axes {
  int64_t dim;
  int64_t batch_dims;
};

inline bool is_index_dtype(at::ScalarType dtype) {
  return at::isIntegralType(dtype, /*includeBool=*/false) && !at::isBarebonesUnsignedType(dtype);
}

inline void check_index_dtype(const char* op, const Tensor& index) {
  const at::ScalarType dtype = index.scalar_type();
  TORCH_CHECK_TYPE(is_index_dtype(dtype), shown(op), ": ", names_of(op).index,
                   " must be uint8, int8, int16, int32 or int64, but it is ", dtype_name(dtype),
                   ".");
}

// Does it hold? A compiled graph asserts it of sizes that it knows only when it runs.
inline bool holds_or_assert(const c10::SymBool& fits) {
  return TORCH_GUARD_OR_FALSE(fits) ||
         (!TORCH_GUARD_OR_FALSE(fits.sym_not()) && fits.expect_true(__FILE__, __LINE__));
}

// The type of numbers from 0 to `count`: int32 if it can hold them.
inline at::ScalarType number_type(const c10::SymInt& count) {
  return holds_or_assert(count.sym_le(INT32_MAX)) ? at::kInt : at::kLong;
}

// As kernels read an index: an entry of one byte is a uint8, and int8 would add a fifth type.
inline Tensor for_kernels(const Tensor& index) {
  return index.scalar_type() == at::kChar ? index.to(at::kShort) : index;
}

// `dim` counted from the front. `rank` is that of `table`, which is the argument's name in
// messages.
inline int64_t resolve_dim(const char* op, const char* table, int64_t rank, int64_t dim) {
  TORCH_CHECK_INDEX(dim >= -rank && dim < rank, op, ": dim must be between ", -rank, " and ",
                    rank - 1, ", since the number of axes of ", table, " is ", rank,
                    ". But dim is ", dim, ".");
  return dim < 0 ? dim + rank : dim;
}

inline void check_batch_dims(const char* op, int64_t index_rank, int64_t batch_dims) {
  TORCH_CHECK_VALUE(batch_dims >= 0 && batch_dims <= index_rank, op,
                    ": batch_dims must be between 0 and index.dim() = ", index_rank, ", but it is ",
                    batch_dims, ".");
}

inline Axes resolve_axes(const char* op, const char* table, int64_t rank, int64_t index_rank,
                         std::optional<int64_t> dim, int64_t batch_dims) {
  TORCH_CHECK_VALUE(rank > 0, op, ": ", table,
                    " must have at least one axis to index, but it is 0-dimensional.");
  check_batch_dims(op, index_rank, batch_dims);
  TORCH_CHECK_VALUE(batch_dims < rank, op, ": batch_dims must be below ", table, ".dim() = ", rank,
                    ", which leaves an axis to index, but it is ", batch_dims, ".");
  const int64_t given = dim.value_or(batch_dims);
  const int64_t axis = resolve_dim(op, table, rank, given);
  TORCH_CHECK_VALUE(axis >= batch_dims, op,
                    ": dim must not be a batch axis (batch_dims=", batch_dims, "), but it is ",
                    given, ".");
  return {axis, batch_dims};
}

// Do the axes [a_first, a_first + count) of `a` have the sizes of those at b_first of `b`?
inline void check_axes_match(const char* op, const char* a_name, c10::SymIntArrayRef a,
                             int64_t a_first, const char* b_name, c10::SymIntArrayRef b,
                             int64_t b_first, int64_t count, const char* what) {
  for (int64_t i = 0; i < count; ++i) {
    TORCH_CHECK_VALUE(a[a_first + i].sym_eq(b[b_first + i]).expect_true(__FILE__, __LINE__), op,
                      ": ", what, ": axis ", a_first + i, " of ", a_name, " with shape ", a,
                      " must be as long as axis ", b_first + i, " of ", b_name, " with shape ", b,
                      ".");
  }
}

// ---- gather: table -> rows ----------------------------------------------------------------------

inline Axes check_gather(const char* op, const Tensor& source, const Tensor& index,
                         std::optional<int64_t> dim, int64_t batch_dims) {
  check_index_dtype(op, index);
  if (source.device() != index.device()) {
    const Caller names = names_of(op);
    check_one_device(op, names.table, source, names.index, index);
  }
  const Axes axes = resolve_axes(op, "source", source.dim(), index.dim(), dim, batch_dims);
  check_axes_match(op, "source", source.sym_sizes(), 0, "index", index.sym_sizes(), 0,
                   axes.batch_dims, "source and index must have the same batch axes");
  return axes;
}

// source.shape[:dim] + index.shape[batch_dims:] + source.shape[dim+1:]
inline c10::SymDimVector gather_sizes(const Tensor& source, const Tensor& index, Axes axes) {
  const auto from = source.sym_sizes();
  const auto picks = index.sym_sizes();
  c10::SymDimVector sizes(from.begin(), from.begin() + axes.dim);
  sizes.append(picks.begin() + axes.batch_dims, picks.end());
  sizes.append(from.begin() + axes.dim + 1, from.end());
  return sizes;
}

// ---- scatter: rows -> table ---------------------------------------------------------------------

inline Axes check_scatter(const char* op, const Tensor& values, const Tensor& index,
                          const c10::SymInt& dim_size, std::optional<int64_t> dim,
                          int64_t batch_dims) {
  check_index_dtype(op, index);
  check_one_device(op, "values", values, "index", index);
  TORCH_CHECK_VALUE(dim_size.sym_ge(0).expect_true(__FILE__, __LINE__), op,
                    ": dim_size must not be negative, but it is ", dim_size, ".");
  check_batch_dims(op, index.dim(), batch_dims);
  const int64_t picked = index.dim() - batch_dims;  // axes in the place of the result's axis
  const int64_t rank = values.dim() - picked + 1;
  TORCH_CHECK_VALUE(rank > batch_dims, op,
                    ": values must have at least as many axes as index, but its shape is ",
                    values.sym_sizes(), " and index's is ", index.sym_sizes(), ".");
  const Axes axes = resolve_axes(op, "the result", rank, index.dim(), dim, batch_dims);
  check_axes_match(op, "values", values.sym_sizes(), 0, "index", index.sym_sizes(), 0,
                   axes.batch_dims, "values and index must have the same batch axes");
  check_axes_match(op, "values", values.sym_sizes(), axes.dim, "index", index.sym_sizes(),
                   axes.batch_dims, picked, "values must have index's axes at dim");
  return axes;
}

inline c10::SymDimVector scatter_sizes(const Tensor& values, const Tensor& index,
                                       const c10::SymInt& dim_size, Axes axes) {
  const auto from = values.sym_sizes();
  c10::SymDimVector sizes(from.begin(), from.begin() + axes.dim);
  sizes.push_back(dim_size);
  sizes.append(from.begin() + axes.dim + (index.dim() - axes.batch_dims), from.end());
  return sizes;
}

// A tensor [batch..., rows] with axes of length 1 to broadcast to one of `rank` axes whose rows are
// at `dim`.
inline Tensor per_row(Tensor of_rows, int64_t batch_dims, int64_t dim, int64_t rank) {
  for (int64_t d = batch_dims; d < dim; ++d) of_rows = of_rows.unsqueeze(batch_dims);
  while (of_rows.dim() < rank) of_rows = of_rows.unsqueeze(-1);
  return of_rows;
}

// ---- Plans: an index with what gather_plan has made of it ---------------------------------------

// `rows` and `order` are what gather_plan returned for `index`: that cannot be checked here.
inline void check_plan(const char* op, const char* name, const Tensor& data, const Tensor& index,
                       const Tensor& rows, const Tensor& order) {
  for (const Tensor* each : {&index, &rows, &order}) {  // a list of tensors would copy them
    const Tensor& part = *each;
    TORCH_CHECK(part.device() == data.device(), op, ": ", name,
                " and the plan must be on one device, but ", name, " is on ", data.device(),
                " and the plan is on ", part.device(), ": use plan.to(", name, ".device).");
  }
  const at::ScalarType dtype = rows.scalar_type();
  TORCH_CHECK_TYPE((dtype == at::kInt || dtype == at::kLong) && order.scalar_type() == dtype, op,
                   ": a plan's rows and order must both be int32 or both int64, but they are ",
                   dtype_name(dtype), " and ", dtype_name(order.scalar_type()), ".");
  for (const Tensor* each : {&rows, &order}) {
    const Tensor& part = *each;
    const bool fits = part.dim() == 1 &&
                      part.sym_size(0).sym_eq(index.sym_numel()).expect_true(__FILE__, __LINE__);
    TORCH_CHECK_VALUE(fits, op, ": a plan's rows and order must be one-dimensional, with as many ",
                      "elements as its index has entries (", index.sym_numel(),
                      "), but one of them has shape ", part.sym_sizes(), ".");
  }
}

// ---- RowLayout ----------------------------------------------------------------------------------

// The one stride that walks the axes [first, last) of `tensor` in order; nothing if there is
// none.
inline std::optional<int64_t> joint_stride(const Tensor& tensor, int64_t first, int64_t last) {
  std::optional<int64_t> stride;
  int64_t expected = 0;
  for (int64_t axis = last - 1; axis >= first; --axis) {
    const int64_t size = tensor.size(axis);
    if (size == 0) return 0;
    if (size == 1) continue;
    if (!stride) {
      stride = tensor.stride(axis);
      expected = *stride * size;
    } else if (tensor.stride(axis) == expected) {
      expected *= size;
    } else {
      return std::nullopt;
    }
  }
  return stride.value_or(0);
}

inline int64_t joint_size(const Tensor& tensor, int64_t first, int64_t last) {
  return c10::multiply_integers(tensor.sizes().slice(first, last - first));
}

// Fills the table's part of `layout`; false if its strides do not fit, that is, if the batch,
// the outer or the inner axes have no joint stride.
inline bool lay_out_table(const Tensor& table, Axes axes, RowLayout& layout) {
  layout.batch = joint_size(table, 0, axes.batch_dims);
  layout.outer = joint_size(table, axes.batch_dims, axes.dim);
  layout.axis_size = table.size(axes.dim);
  layout.inner = joint_size(table, axes.dim + 1, table.dim());
  const auto batch = joint_stride(table, 0, axes.batch_dims);
  const auto outer = joint_stride(table, axes.batch_dims, axes.dim);
  const auto inner = joint_stride(table, axes.dim + 1, table.dim());
  // An empty one may have any: a copy would have the same.
  if (!batch || !outer || !inner) return table.numel() == 0;
  layout.table_batch_stride = *batch;
  layout.table_outer_stride = *outer;
  // The stride of an axis with one row has no meaning.
  layout.table_axis_stride = layout.axis_size > 1 ? table.stride(axes.dim) : 0;
  layout.table_inner_stride = *inner;
  return true;
}

// Fills the index's part, of kernels' types. An index whose strides do not fit becomes a contiguous
// copy.
inline void lay_out_index(Tensor& index, Axes axes, RowLayout& layout) {
  index = for_kernels(index);
  layout.entries = joint_size(index, axes.batch_dims, index.dim());
  const auto batch = joint_stride(index, 0, axes.batch_dims);
  const auto entry = joint_stride(index, axes.batch_dims, index.dim());
  if ((!batch || !entry) && index.numel() > 0) {
    index = index.contiguous();
    return lay_out_index(index, axes, layout);
  }
  layout.index_batch_stride = batch.value_or(0);
  layout.index_entry_stride = entry.value_or(0);
}

// The layout of a call. If a tensor's strides do not fit, it becomes a contiguous copy.
inline RowLayout lay_out(Tensor& table, Tensor& index, Axes axes) {
  RowLayout layout{};
  if (!lay_out_table(table, axes, layout)) {
    table = table.contiguous();
    lay_out_table(table, axes, layout);
  }
  lay_out_index(index, axes, layout);
  return layout;
}

// The layout of a call whose table is contiguous, of these sizes.
inline RowLayout lay_out_contiguous(at::IntArrayRef sizes, Tensor& index, Axes axes) {
  const auto product = [&](size_t first, size_t last) {
    return c10::multiply_integers(sizes.slice(first, last - first));
  };
  RowLayout layout = RowLayout::contiguous(product(0, axes.batch_dims),
                                           product(axes.batch_dims, axes.dim), sizes[axes.dim],
                                           /*entries=*/0, product(axes.dim + 1, sizes.size()));
  lay_out_index(index, axes, layout);
  return layout;
}

// ---- Errors -------------------------------------------------------------------------------------

// The coordinates of the element at `position`, in row-major order.
inline std::vector<int64_t> unravel(at::IntArrayRef sizes, int64_t position) {
  std::vector<int64_t> coordinates(sizes.size());
  for (size_t axis = sizes.size(); axis-- > 0;) {
    coordinates[axis] = position % sizes[axis];
    position /= sizes[axis];
  }
  return coordinates;
}

// An entry of an index of these sizes; `position` counts them in row-major order.
inline std::string name_entry(const char* op, at::IntArrayRef sizes, int64_t position) {
  const Caller names = names_of(op);
  std::vector<int64_t> at = unravel(sizes, position);
  if (names.is_point) at.push_back(0);
  return at.empty() ? std::string(names.index) : c10::str(names.index, at::IntArrayRef(at));
}

inline std::string out_of_range_text(const char* op, const std::string& entry, int64_t value,
                                     int64_t axis_size, bool from_end = false) {
  if (axis_size == 0) {
    return c10::str(shown(op), ": ", entry, " is ", value,
                    ", but the axis has size 0: no entry is allowed.");
  }
  return c10::str(shown(op), ": ", entry, " is ", value, ", out of range for an axis of size ",
                  axis_size - (names_of(op).is_bound ? 1 : 0), ": it must be between ",
                  from_end ? -axis_size : 0, " and ", axis_size - 1, ".");
}

// A coordinate of the points at `position` of points of these sizes: an element of gather_nd's
// index, or of the index array for an axis. No sizes: they are unknown.
inline std::string name_coordinate(std::optional<at::IntArrayRef> sizes, int64_t position,
                                   int64_t coordinate, int64_t axis, bool from_end) {
  std::vector<int64_t> at = sizes ? unravel(*sizes, position) : std::vector<int64_t>{position};
  if (from_end) {
    const std::string entry = at.empty() ? "" : c10::str("entry ", at::IntArrayRef(at), " of ");
    return c10::str(entry, "the index for axis ", axis,
                    sizes ? "" : " (counted in row-major order)");
  }
  at.push_back(coordinate);
  return c10::str("index", at::IntArrayRef(at), sizes ? "" : " (points in row-major order)",
                  ", for axis ", axis, ",");
}

// In an empty axis there is no row for an entry, unless there need not be one.
inline void check_axis_not_empty(const char* op, const Tensor& index, int64_t axis_size,
                                 IndexMode mode) {
  TORCH_CHECK_INDEX(axis_size > 0 || index.numel() == 0 || mode == IndexMode::kFill, shown(op),
                    ": the number of entries of ", names_of(op).index, " is ", index.numel(),
                    ", but the axis has size 0: no entry is allowed.");
}

// `position` counts the entries of a contiguous index.
[[noreturn]] inline void raise_out_of_range(const char* op, const Tensor& index, int64_t position,
                                            int64_t axis_size, bool from_end = false) {
  const int64_t value = index.contiguous().view({-1})[position].item().toLong();
  TORCH_CHECK_INDEX(false, out_of_range_text(op, name_entry(op, index.sizes(), position), value,
                                             axis_size, from_end));
}

}  // namespace torch_ops::indexing
