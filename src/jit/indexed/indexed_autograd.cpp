// The derivative of indexed kernels: indexed kernels that were generated in their turn. An input
// that was read by an index has a gradient that is reduced to it.
#include <ATen/TensorOperators.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/div.h>
#include <ATen/ops/ones.h>

#include <algorithm>

#include "common/gather_family/gather_ops.h"
#include "jit/call/derivatives.h"
#include "jit/indexed/indexed.h"

namespace torch_ops::jit::indexed {
namespace {

using autograd::SavedVariable;
using autograd::variable_list;

// How many entries each row has: [batch..., rows].
Tensor counts_of(const Indexed& kernel, const Call& call, const Frame& frame, size_t index) {
  c10::SymDimVector sizes(frame.batch.begin(), frame.batch.end());
  sizes.push_back(frame.sizes[index]);
  const Planned plan = planned(call.plans, index, kernel.indices.size());
  if (plan.is_known()) {
    const c10::SymInt rows = plan.offsets.sym_size(0) - 1;
    const Tensor last = plan.offsets.narrow_symint(0, 1, rows);
    return (last - plan.offsets.narrow_symint(0, 0, rows)).view_symint(sizes);
  }
  const Tensor& entries = call.indices[index];
  const Tensor ones = at::ones_symint(entries.sym_sizes(), entries.options().dtype(at::kInt));
  return ops::scatter_add().call(ones, entries, frame.sizes[index], std::nullopt, call.batch_dims,
                                 std::nullopt, "raise", std::nullopt);
}

struct IndexedNode final : KernelNode<IndexedNode, Indexed> {
  static constexpr const char* kName = "IndexedBackward";
  std::vector<SavedVariable> tensors, indices, plans, winners;
  std::vector<c10::SymInt> longest, sizes;
  int64_t batch_dims = 0;

  template <class Visit>
  void fields(Visit&& visit) {
    fields_of_call(visit);
    visit(longest);
    visit(sizes);
    visit(batch_dims);
    for (auto* list : {&tensors, &indices, &plans, &winners}) visit(*list);
  }

  variable_list backward(const variable_list& grads) {
    const std::shared_ptr<Indexed> forward = this->forward();
    const std::vector<Tensor> values = unpack(tensors), best = unpack(winners);
    const Arguments inputs = join_arguments(*forward, {values, numbers, positions});
    const Call call{unpack(indices), unpack(plans), longest, sizes, batch_dims};
    std::vector<bool> wanted(inputs.size());
    for (size_t k = 0, edge = 0; k < inputs.size(); ++k) {
      if (inputs[k].tensor) wanted[k] = needs_input_grad(edge++);
    }
    variable_list results(values.size());
    if (std::find(wanted.begin(), wanted.end(), true) == wanted.end()) return results;

    const Frame frame = frame_of(*forward, inputs, call);
    const auto gradient = forward->derived("vjp", wanted, defined(grads));
    std::vector<Tensor> of_outputs;
    of_outputs.reserve(forward->out.size());
    Arguments arguments;
    for (size_t k = 0; k < forward->out.size(); ++k) {
      Tensor grad = grads[k];
      if (grad.defined()) {
        grad = in_frame(*forward, call, frame, k, grad);
        of_outputs.push_back(grad);
        arguments.push_back({&of_outputs.back(), 0});
      } else {
        arguments.push_back(kNoGradient);
      }
    }
    for (const Tensor& winner : best) arguments.push_back({&winner, 0});
    arguments.append(inputs.begin(), inputs.end());
    Call of_gradient = call;
    of_gradient.sizes.assign(frame.sizes.begin(), frame.sizes.end());
    const std::vector<Tensor> made = call_op(*gradient, split_arguments(arguments), of_gradient);
    size_t at = 0;
    for (size_t edge = 0; edge < values.size(); ++edge) {
      if (!needs_input_grad(edge)) continue;
      results[edge] = made.at(at++).to(values[edge].device(), values[edge].scalar_type());
    }
    return results;
  }

 private:
  // An output's gradient as it is read for each entry: with the axes that were summed away, and
  // divided where the output is a mean.
  static Tensor in_frame(const Indexed& kernel, const Call& call, const Frame& frame, size_t k,
                         Tensor grad) {
    const auto features = static_cast<int64_t>(frame.features.size());
    if (kernel.out[k].like < 0) {
      std::vector<int64_t> axes = summed_axes(kernel, k, features);
      std::sort(axes.begin(), axes.end());  // from the left
      for (const int64_t axis : axes) grad = grad.unsqueeze(call.batch_dims + 1 + features + axis);
    }
    const Role& role = kernel.out_roles[k];
    if (role.reduce != Reduce::kMean) return grad;
    Tensor counts = counts_of(kernel, call, frame, static_cast<size_t>(role.index));
    for (int64_t d = 0; d < features; ++d) counts = counts.unsqueeze(-1);
    const bool is_double = grad.scalar_type() == at::kDouble;
    const Tensor divisor = counts.clamp_min(1).to(is_double ? at::kDouble : at::kFloat);
    return at::div(grad, divisor);
  }
};

constexpr const char* kKind = "IndexedKernel";

}  // namespace

std::vector<Tensor> indexed_autograd(const std::shared_ptr<Indexed>& kernel,
                                     c10::DispatchKeySet keys, const OpInputs& inputs,
                                     const Call& call, bool winners) {
  const auto node = autograd::make_node<IndexedNode>(inputs.tensors);
  const bool keep = kernel->has_winners() && (winners || node || any_tangent(inputs.tensors));
  std::vector<Tensor> outputs = autograd::below_autograd(
      keys, *kernel->op, inputs.tensors, inputs.numbers, inputs.positions, call.indices, call.plans,
      call.longest, call.sizes, call.batch_dims, /*deterministic=*/std::nullopt, keep);
  const std::vector<Tensor> best(outputs.begin() + static_cast<int64_t>(kernel->out.size()),
                                 outputs.end());
  outputs.resize(kernel->out.size());
  if (node && record_outputs(kKind, *kernel, node, inputs.tensors, outputs)) {
    node->keep(*kernel, inputs);
    node->longest = call.longest;
    node->sizes = call.sizes;
    node->batch_dims = call.batch_dims;
    const auto save = [](std::vector<SavedVariable>& to, at::TensorList from) {
      for (const Tensor& tensor : from) to.emplace_back(tensor, /*is_output=*/false);
    };
    save(node->tensors, inputs.tensors);
    save(node->indices, call.indices);
    save(node->plans, call.plans);
    save(node->winners, best);
  }
  set_tangents(kKind, *kernel, inputs, outputs,
               [&](const std::vector<bool>& wanted, Arguments arguments) {
                 for (const Tensor& winner : best) arguments.push_back({&winner, 0});
                 return call_op(*kernel->derived("jvp", wanted), split_arguments(arguments), call);
               });
  if (winners) outputs.insert(outputs.end(), best.begin(), best.end());
  return outputs;
}

}  // namespace torch_ops::jit::indexed
