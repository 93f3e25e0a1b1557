// The batching rule of ops that scatter: values and an index to an axis of a result.
#pragma once

#include "common/gather_family/indexing.h"
#include "common/torch/registration/batching.h"

namespace torch_ops {

// The result's axis, counted from the front.
inline int64_t resolve_result_dim(const char* op, int64_t values_rank, int64_t index_rank,
                                  std::optional<int64_t> dim, int64_t batch_dims) {
  const int64_t rank = values_rank - (index_rank - batch_dims) + 1;
  return indexing::resolve_axes(op, "the result", rank, index_rank, dim, batch_dims).dim;
}

// call(values, index, dim, batch_dims). An axis hidden in the index is one more batch axis, and the
// values get it too: each sample adds them to other rows. One in the values alone is an outer axis.
template <class Call>
at::Tensor batch_scatter(const char* op, const at::Tensor& values, const at::Tensor& index,
                         std::optional<int64_t> dim, int64_t batch_dims, Call&& call) {
  using batching::Batched;
  return batching::apply(
      [&](const Batched& rows, const Batched& picks) -> Batched {
        if (!rows.axis && !picks.axis) {
          return {call(rows.value, picks.value, dim, batch_dims), std::nullopt};
        }
        const int64_t axis = resolve_result_dim(op, rows.rank(), picks.rank(), dim, batch_dims);
        if (picks.axis) {
          return {call(rows.expanded_at(0, picks.size()), picks.at(0), axis + 1, batch_dims + 1),
                  0};
        }
        return {call(rows.at(batch_dims), picks.value, axis + 1, batch_dims), batch_dims};
      },
      values, index);
}

}  // namespace torch_ops
