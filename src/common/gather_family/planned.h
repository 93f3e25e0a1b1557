// What gather.plan and scatter_add.plan share. Each is the other's transpose and takes the same
// arguments: the data, then what makes a plan. So their derivatives, forward mode and batching
// rules are the same lines, with the two ops exchanged.
//
//   struct FooByPlan {
//     static constexpr const char* kName = "foo";                  // for messages
//     static constexpr const char* kNodeName = "FooByPlanBackward";
//     static const planned::Op& self();
//     static const planned::Op& transpose();
//   };
#pragma once

#include "common/torch/autograd.h"
#include "common/torch/batching.h"
#include "common/torch/op.h"

namespace torch_ops::planned {

using at::Tensor;

using Op =
    c10::TypedOperatorHandle<Tensor(const Tensor& data, const Tensor& index, const Tensor& rows,
                                    const Tensor& order, c10::SymInt, int64_t, int64_t)>;

inline Op find(const char* name) {
  return find_op<Tensor(const Tensor&, const Tensor&, const Tensor&, const Tensor&, c10::SymInt,
                        int64_t, int64_t)>(name, "plan");
}

inline void check_not_mapped(const char* op, bool mapped) {
  TORCH_CHECK(!mapped, op,
              ": torch.vmap cannot map over a plan. Give it in_dims=None, or make one plan of the "
              "stacked indices, with batch_dims.");
}

// Keeps the plan; of the data, only its dtype: sums may be wider.
template <class Family>
struct Node final : autograd::DerivativeNode<Node<Family>> {
  static constexpr const char* kName = Family::kNodeName;
  autograd::SavedVariable index;
  autograd::SavedVariable rows;
  autograd::SavedVariable order;
  c10::SymInt dim_size;
  int64_t dim = 0;
  int64_t batch_dims = 0;
  int64_t dtype = 0;

  template <class Visit>
  void fields(Visit&& visit) {
    visit(index);
    visit(rows);
    visit(order);
    visit(dim_size);
    visit(dim);
    visit(batch_dims);
    visit(dtype);
  }

  autograd::variable_list backward(const Tensor& grad_output) {
    return {Family::transpose().call(grad_output.to(static_cast<at::ScalarType>(dtype)),
                                     this->unpack(index), this->unpack(rows), this->unpack(order),
                                     dim_size, dim, batch_dims)};
  }
};

// Registered for the Autograd key.
template <class Family>
Tensor derive(c10::DispatchKeySet keys, const Tensor& data, const Tensor& index, const Tensor& rows,
              const Tensor& order, c10::SymInt dim_size, int64_t dim, int64_t batch_dims) {
  const Op& op = Family::self();
  const auto node = autograd::make_node<Node<Family>>(data);
  Tensor output =
      autograd::below_autograd(keys, op, data, index, rows, order, dim_size, dim, batch_dims);
  autograd::record(output, node);
  autograd::set_tangent(
      output,
      [&](const Tensor& tangent) {
        return op.call(tangent, index, rows, order, dim_size, dim, batch_dims);
      },
      data);
  if (node) {
    node->index = autograd::SavedVariable(index, /*is_output=*/false);
    node->rows = autograd::SavedVariable(rows, /*is_output=*/false);
    node->order = autograd::SavedVariable(order, /*is_output=*/false);
    node->dim_size = std::move(dim_size);
    node->dim = dim;
    node->batch_dims = batch_dims;
    node->dtype = static_cast<int64_t>(data.scalar_type());
  }
  return output;
}

// Registered for the FuncTorchBatched key. A hidden axis of the data is one more outer axis.
template <class Family>
Tensor batch(const Tensor& data, const Tensor& index, const Tensor& rows, const Tensor& order,
             c10::SymInt dim_size, int64_t dim, int64_t batch_dims) {
  using batching::Batched;
  return batching::apply(
      [&](const Batched& from, const Batched& i, const Batched& r, const Batched& o) -> Batched {
        check_not_mapped(Family::kName, i.axis || r.axis || o.axis);
        const Op& op = Family::self();
        if (!from.axis) {
          return {op.call(from.value, i.value, r.value, o.value, dim_size, dim, batch_dims),
                  std::nullopt};
        }
        const int64_t shifted = dim < 0 ? dim : dim + 1;
        return {
            op.call(from.at(batch_dims), i.value, r.value, o.value, dim_size, shifted, batch_dims),
            batch_dims};
      },
      data, index, rows, order);
}

}  // namespace torch_ops::planned
