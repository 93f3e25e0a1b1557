// What ops on segments ask of their arguments.
#pragma once

#include "common/gather_family/indexing.h"

namespace torch_ops {

// `values` are the entries of the segments or, for gather_csr, the segments' rows.
inline indexing::Axes check_segments(const char* op, const at::Tensor& values,
                                     const at::Tensor& offsets, std::optional<int64_t> dim,
                                     int64_t batch_dims) {
  TORCH_CHECK_TYPE(indexing::is_index_dtype(offsets.scalar_type()), op,
                   ": offsets must be uint8, int8, int16, int32 or int64, but it is ",
                   dtype_name(offsets.scalar_type()), ".");
  check_one_device(op, "values", values, "offsets", offsets);
  TORCH_CHECK_VALUE(batch_dims >= 0 && offsets.dim() == batch_dims + 1, op,
                    ": offsets must have batch_dims axes and one more, but batch_dims is ",
                    batch_dims, " and the shape of offsets is ", offsets.sym_sizes(), ".");
  TORCH_CHECK_VALUE(offsets.sym_size(-1).sym_ge(1).expect_true(__FILE__, __LINE__), op,
                    ": offsets must have one element more than there are segments, but its shape "
                    "is ",
                    offsets.sym_sizes(), ".");
  const auto axes =
      indexing::resolve_axes(op, "values", values.dim(), offsets.dim(), dim, batch_dims);
  indexing::check_axes_match(op, "values", values.sym_sizes(), 0, "offsets", offsets.sym_sizes(), 0,
                             batch_dims, "values and offsets must have the same batch axes");
  return axes;
}

}  // namespace torch_ops
