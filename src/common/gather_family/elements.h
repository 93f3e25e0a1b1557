// The checks of gather_elements and scatter_elements_add, and the layouts of a call.
// Sizes are symbolic in the checks, so the Meta kernels use the same lines.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "common/gather_family/indexing.h"
#include "common/layout/element_layout.h"
#include "common/torch/registration/batching.h"

namespace torch_ops::elements {

using at::Tensor;

// A 0-dimensional tensor counts as one with one axis of size 1, as in torch.gather.
inline Tensor at_least_1d(const Tensor& tensor) {
  return tensor.dim() == 0 ? tensor.unsqueeze(0) : tensor;
}

inline int64_t rank_of(c10::SymIntArrayRef sizes) {
  return std::max<int64_t>(static_cast<int64_t>(sizes.size()), 1);
}

// Table and index have as many axes, and the table is not shorter on any, except on `dim`; as in
// torch, an empty index may have any shape. Returns dim counted from the front.
inline int64_t check_table(const char* op, const char* name, c10::SymIntArrayRef table,
                           const Tensor& index, int64_t dim) {
  indexing::check_index_dtype(op, index);
  const auto picks = index.sym_sizes();
  if (TORCH_GUARD_OR_FALSE(index.sym_numel().sym_eq(0))) {
    return indexing::resolve_dim(op, name, rank_of(table), dim);
  }
  TORCH_CHECK_VALUE(rank_of(table) == rank_of(picks), op, ": index must have as many axes as ",
                    name, ", but its shape is ", picks, " and that of ", name, " is ", table, ".");
  const int64_t axis = indexing::resolve_dim(op, name, rank_of(table), dim);
  for (size_t d = 0; d < table.size() && d < picks.size(); ++d) {
    TORCH_CHECK_VALUE(static_cast<int64_t>(d) == axis ||
                          picks[d].sym_le(table[d]).expect_true(__FILE__, __LINE__),
                      op, ": index with shape ", picks, " must not be longer than ", name,
                      " with shape ", table, " on any axis but dim = ", axis,
                      ", but it is on axis ", d, ".");
  }
  return axis;
}

// `tensor` cut to the index's sizes; the axis is not cut.
inline Tensor cut_to(const Tensor& tensor, at::IntArrayRef sizes, int64_t axis) {
  Tensor cut = tensor;
  for (int64_t d = 0; d < tensor.dim(); ++d) {
    if (d != axis && cut.size(d) != sizes[d]) cut = cut.narrow(d, 0, sizes[d]);
  }
  return cut;
}

// All three have one rank, at least 1; table and values have the index's sizes, or longer ones of
// which the front is used, except for the table's at the axis.
inline ElementLayout lay_out(const char* op, at::IntArrayRef table_sizes,
                             at::IntArrayRef table_strides, const Tensor& index,
                             const Tensor& values, int64_t axis) {
  ElementLayout layout{};
  layout.axis = -1;
  layout.axis_size = table_sizes[axis];
  layout.axis_stride = layout.axis_size > 1 ? table_strides[axis] : 0;
  layout.count = index.numel();
  for (int64_t d = 0; d < index.dim(); ++d) {
    const int64_t size = index.size(d);
    if (size == 1) continue;
    const int64_t strides[] = {d == axis ? 0 : table_strides[d], index.stride(d), values.stride(d)};
    const int last = layout.rank - 1;
    if (last >= 0 && d != axis && last != layout.axis &&
        layout.table_strides[last] == strides[0] * size &&
        layout.index_strides[last] == strides[1] * size &&
        layout.value_strides[last] == strides[2] * size) {
      layout.sizes[last] *= size;
    } else {
      TORCH_CHECK_VALUE(layout.rank < ElementLayout::kMaxRank, op, ": more than ",
                        ElementLayout::kMaxRank,
                        " axes that no common stride walks are not supported; pass contiguous "
                        "tensors.");
      if (d == axis) layout.axis = layout.rank;
      layout.sizes[layout.rank++] = size;
    }
    const int now = layout.rank - 1;
    layout.table_strides[now] = strides[0];
    layout.index_strides[now] = strides[1];
    layout.value_strides[now] = strides[2];
  }
  return layout;
}

// ---- Where the index does not vary, whole rows are moved ----------------------------------------

// The index without the axes along which all entries are the same, and how many leading axes it
// shares with the table. Axes are kept, with size 1.
struct RowForm {
  Tensor index;
  int64_t batch_dims;
};

// Is a call one of whole rows: gather(table, index, axis, batch_dims)? That is so if the index
// varies only along leading axes and `axis`.
inline std::optional<RowForm> as_rows(const Tensor& index, int64_t axis) {
  const auto varies = [&](int64_t d) { return index.size(d) > 1 && index.stride(d) != 0; };
  for (int64_t d = axis + 1; d < index.dim(); ++d) {
    if (varies(d)) return std::nullopt;
  }
  int64_t batch_dims = axis;
  while (batch_dims > 0 && !varies(batch_dims - 1)) --batch_dims;
  if (!indexing::joint_stride(index, 0, batch_dims)) return std::nullopt;
  Tensor once = index;
  for (int64_t d = batch_dims; d < index.dim(); ++d) {
    if (d != axis && index.size(d) > 1) once = once.narrow(d, 0, 1);
  }
  return RowForm{once, batch_dims};
}

// The layout of such a call; nothing if the table's strides do not fit.
inline std::optional<RowLayout> lay_out_rows(const Tensor& table, const RowForm& rows,
                                             int64_t axis) {
  RowLayout layout{};
  if (!indexing::lay_out_table(table, {axis, rows.batch_dims}, layout)) return std::nullopt;
  layout.entries = rows.index.size(axis);
  layout.index_batch_stride = *indexing::joint_stride(rows.index, 0, rows.batch_dims);
  layout.index_entry_stride = layout.entries > 1 ? rows.index.stride(axis) : 0;
  return layout;
}

// ---- torch.vmap ---------------------------------------------------------------------------------

// call(data, index, is_lifted). A hidden axis of one of them, or of both, becomes an axis in front
// of both, by an expansion of the other, without a copy. Tensors without other axes get one of size
// 1, which is how they count; so does the result, if it is a scalar.
template <class Call>
Tensor batch(const Tensor& data, const Tensor& index, bool is_scalar, Call&& call) {
  using batching::Batched;
  return batching::apply(
      [&](const Batched& from, const Batched& picks) -> Batched {
        if (!from.axis && !picks.axis) return {call(from.value, picks.value, false), std::nullopt};
        const c10::SymInt size = from.axis ? from.size() : picks.size();
        const auto lift = [&](const Batched& each) {
          const Tensor lifted = each.expanded_at(0, size);
          return lifted.dim() == 1 ? lifted.unsqueeze(1) : lifted;
        };
        const Tensor result = call(lift(from), lift(picks), true);
        return {is_scalar ? result.squeeze(1) : result, 0};
      },
      data, index);
}

}  // namespace torch_ops::elements
