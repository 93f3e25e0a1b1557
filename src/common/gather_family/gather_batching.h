// torch.vmap over a gather.
#pragma once

#include "common/gather_family/indexing.h"
#include "common/torch/registration/batching.h"

namespace torch_ops {

// call(source, index, dim, batch_dims). A hidden axis of both tensors is one more batch axis, in
// front. An axis of the source alone becomes an outer axis, one of the index alone another axis of
// the index: neither needs a copy.
template <class Call>
at::Tensor batch_gather(const char* op, const at::Tensor& source, const at::Tensor& index,
                        std::optional<int64_t> dim, int64_t batch_dims, Call&& call) {
  using batching::Batched;
  return batching::apply(
      [&](const Batched& from, const Batched& picks) -> Batched {
        if (!from.axis && !picks.axis) {
          return {call(from.value, picks.value, dim, batch_dims), std::nullopt};
        }
        const int64_t axis =
            indexing::resolve_axes(op, "source", from.rank(), picks.rank(), dim, batch_dims).dim;
        if (!from.axis) return {call(from.value, picks.at(batch_dims), axis, batch_dims), axis};
        if (!picks.axis) {
          return {call(from.at(batch_dims), picks.value, axis + 1, batch_dims), batch_dims};
        }
        return {call(from.at(0), picks.at(0), axis + 1, batch_dims + 1), 0};
      },
      source, index);
}

}  // namespace torch_ops
