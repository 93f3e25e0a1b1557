// Common code of gather.plan and scatter_add.plan. Each is the other's transpose and takes the same
// arguments: the data, then the parts of a plan. So their derivatives, forward mode and batching
// rules are the same lines, with the two ops exchanged.
//
//   struct FooByPlan : planned::Op<FooByPlan> {        // register.h
//     static constexpr const char* kName = "foo";      // for messages
//     static constexpr const char* kTranspose = "bar.plan";
//   };
#pragma once

#include "common/torch/registration/batching.h"
#include "common/torch/registration/derive.h"

namespace torch_ops::planned {

using at::Tensor;

using Signature = Tensor(const Tensor& data, const Tensor& index, const Tensor& rows,
                         const Tensor& order, c10::SymInt, int64_t, int64_t);
using Handle = c10::TypedOperatorHandle<Signature>;

// Of a plan, before anything else is checked of its parts, whose samples have other shapes.
template <class... Tensors>
void check_not_mapped(const char* op, const Tensors&... parts) {
  const auto layer = at::functorch::maybeCurrentDynamicLayer();
  const bool mapped = layer && (at::functorch::isBatchedAtLevel(parts, layer->layerId()) || ...);
  TORCH_CHECK(!mapped, op,
              ": torch.vmap cannot map over a plan. Give it in_dims=None, or make one plan of the "
              "stacked indices, with batch_dims.");
}

template <class Self>
struct Op {
  // The plan; of the data, only its dtype: sums may be wider.
  static auto keep(const Tensor& data, const Tensor& index, const Tensor& rows, const Tensor& order,
                   const c10::SymInt& dim_size, int64_t dim, int64_t batch_dims) {
    return std::tuple(index, rows, order, dim_size, dim, batch_dims,
                      static_cast<int64_t>(data.scalar_type()));
  }

  static Tensor backward(const Tensor& grad_output, const Tensor& index, const Tensor& rows,
                         const Tensor& order, const c10::SymInt& dim_size, int64_t dim,
                         int64_t batch_dims, int64_t dtype) {
    static const Handle transpose = find_op<Signature>(Self::kTranspose);
    return transpose.call(grad_output.to(static_cast<at::ScalarType>(dtype)), index, rows, order,
                          dim_size, dim, batch_dims);
  }

  // A hidden axis of the data is one more outer axis.
  static Tensor batch(const Tensor& data, const Tensor& index, const Tensor& rows,
                      const Tensor& order, const c10::SymInt& dim_size, int64_t dim,
                      int64_t batch_dims) {
    using batching::Batched;
    check_not_mapped(Self::kName, index, rows, order);
    return batching::apply(
        [&](const Batched& from, const Batched& i, const Batched& r, const Batched& o) -> Batched {
          const auto call = [&](const Tensor& moved, int64_t axis) {
            return op_of<Self>().call(moved, i.value, r.value, o.value, dim_size, axis, batch_dims);
          };
          if (!from.axis) return {call(from.value, dim), std::nullopt};
          return {call(from.at(batch_dims), dim < 0 ? dim : dim + 1), batch_dims};
        },
        data, index, rows, order);
  }
};

}  // namespace torch_ops::planned
