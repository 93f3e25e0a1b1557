// The derivative of elementwise kernels: gradients are kernels that were generated in their turn.
#include <ATen/ExpandUtils.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include <algorithm>

#include "jit/call/derivatives.h"
#include "jit/elementwise/elementwise.h"

namespace torch_ops::jit {
namespace {

using autograd::SavedVariable;
using autograd::variable_list;

// Up to here a gradient that is summed over broadcast axes is made at full size, by one kernel with
// the others. A larger one is a kernel of its own, which sums it.
constexpr int64_t kLargestGradient = int64_t{64} << 20;  // bytes
// On the CPU, where to write it and read it again takes longer than to compute it.
constexpr int64_t kLargestOnCpu = int64_t{4} << 20;

std::vector<c10::SymInt> broadcast_shape(const Elementwise& kernel, const Arguments& arguments) {
  std::vector<c10::SymInt> shape;
  for (size_t k = 0; k < arguments.size(); ++k) {
    if (!arguments[k].tensor || kernel.in[k].raw) continue;
    const auto sizes = arguments[k].tensor->sym_sizes();
    if (sizes.size() > shape.size()) shape.insert(shape.begin(), sizes.size() - shape.size(), 1);
    for (size_t d = 0; d < sizes.size(); ++d) {  // the call has checked that they broadcast
      c10::SymInt& known = shape[shape.size() - sizes.size() + d];
      if (TORCH_GUARD_OR_FALSE(known.sym_eq(1))) known = sizes[d];
    }
  }
  return shape;
}

// The gradient of a broadcast input in one kernel, which sums what it computes and writes nothing
// else. Undefined where the result must be differentiable, or batched or traced: then it must be
// made of registered ops.
Tensor summed_at_once(Elementwise& gradient, const Arguments& arguments, const Tensor& input,
                      const std::vector<int64_t>& shape) {
  bool wants_gradient = false;
  if (!arguments[0].tensor || !is_plain(arguments, {}, {}, wants_gradient)) return {};
  const std::shared_ptr<Reduction> reduction = gradient.summed();
  if (!reduction) return {};
  std::vector<int64_t> dims;
  const auto added = static_cast<int64_t>(shape.size()) - input.dim();
  for (int64_t d = 0; d < static_cast<int64_t>(shape.size()); ++d) {
    if (d < added || (input.size(d - added) == 1 && shape[d] > 1)) dims.push_back(d);
  }
  const at::AutoDispatchBelowADInplaceOrView below;
  return reduce(*reduction, arguments, dims, /*keepdim=*/true, {}).view(input.sizes());
}

struct ElementwiseNode final : KernelNode<ElementwiseNode, Elementwise> {
  static constexpr const char* kName = "ElementwiseBackward";
  std::vector<SavedVariable> tensors, outputs;  // that a derivative reads
  std::vector<Tensor> others;                   // in place of the other inputs

  // Saves what a derivative reads of the call.
  void save(const Elementwise& forward, const OpInputs& inputs, const std::vector<Tensor>& made) {
    keep(forward, inputs);
    const Arguments arguments = join_arguments(forward, inputs);
    for (size_t k = 0; k < arguments.size(); ++k) {
      if (!arguments[k].tensor) continue;
      const Tensor& input = *arguments[k].tensor;
      if (forward.saves[k]) {
        tensors.emplace_back(input, /*is_output=*/false);
      } else {  // its shape and type, with the memory of one element
        others.push_back(input.new_empty_symint({}).expand_symint(input.sym_sizes()));
      }
    }
    for (size_t k = 0; k < made.size(); ++k) {
      if (forward.saves[forward.in.size() + k]) outputs.emplace_back(made[k], /*is_output=*/true);
    }
  }

  template <class Visit>
  void fields(Visit&& visit) {
    fields_of_call(visit);
    visit(others);
    visit(tensors);
    visit(outputs, /*is_output=*/true);
  }

  variable_list backward(const variable_list& grads) {
    const std::shared_ptr<Elementwise> forward = this->forward();
    std::vector<Tensor> values;
    for (size_t k = 0, saved = 0, other = 0; k < forward->in.size(); ++k) {
      if (std::find(positions.begin(), positions.end(), k) != positions.end()) continue;
      values.push_back(forward->saves[k] ? unpack(tensors[saved++]) : others[other++]);
    }
    const Arguments inputs = join_arguments(*forward, {values, numbers, positions});
    const std::vector<Tensor> read = unpack(outputs);

    variable_list results(values.size());
    std::vector<size_t> edge_of(inputs.size());
    std::vector<bool> whole(inputs.size()), wide(inputs.size()), alone(inputs.size());
    const std::vector<c10::SymInt> shape = broadcast_shape(*forward, inputs);
    size_t edge = 0;
    for (size_t k = 0; k < inputs.size(); ++k) {
      if (!inputs[k].tensor) continue;
      edge_of[k] = edge++;
      if (!needs_input_grad(edge_of[k])) continue;
      const bool summed = !forward->in[k].raw && inputs[k].tensor->sym_sizes() != shape;
      wide[k] = summed;
      (summed && exceeds(shape, inputs[k].tensor->is_cpu() ? kLargestOnCpu : kLargestGradient) &&
               !forward->uses_index && !forward->uses_size
           ? alone
           : whole)[k] = true;
    }
    if (std::find(whole.begin(), whole.end(), true) != whole.end()) {
      const auto gradient = forward->derived("vjp", whole, both(whole, wide), defined(grads));
      const std::vector<Tensor> made =
          call_op(*gradient, split_arguments(of_vjp(*forward, grads, inputs, read)), std::nullopt);
      size_t at = 0;
      for (size_t k = 0; k < inputs.size(); ++k) {
        if (whole[k]) results[edge_of[k]] = finished(made.at(at++), *inputs[k].tensor);
      }
    }
    for (size_t k = 0; k < inputs.size(); ++k) {
      if (!alone[k]) continue;
      std::vector<bool> only(inputs.size());
      only[k] = true;
      const auto gradient = forward->derived("vjp", only, only, defined(grads));
      const Arguments arguments = of_vjp(*forward, grads, inputs, read);
      const Tensor& input = *inputs[k].tensor;
      Tensor sum;
      // A snippet of the user's may use them.
      if (!gradient->uses_index && !gradient->uses_size) {
        sum = summed_at_once(*gradient, arguments, input, C10_AS_INTARRAYREF_SLOW(shape).vec());
      }
      if (!sum.defined()) sum = call_op(*gradient, split_arguments(arguments), std::nullopt).at(0);
      results[edge_of[k]] = finished(sum, input);
    }
    return results;
  }

 private:
  static bool exceeds(const std::vector<c10::SymInt>& shape, int64_t limit) {
    int64_t bytes = 4;
    for (const c10::SymInt& size : shape) {
      if (!size.maybe_as_int()) return false;  // traced: the compiler fuses the sum
      bytes *= size.expect_int();
    }
    return bytes > limit;
  }

  static std::vector<bool> both(std::vector<bool> a, const std::vector<bool>& b) {
    for (size_t k = 0; k < a.size(); ++k) a[k] = a[k] && b[k];
    return a;
  }

  // The arguments of a vjp: a gradient for each output, a number where there is none, then the
  // inputs, then the outputs that it reads.
  static Arguments of_vjp(const Elementwise& forward, const variable_list& grads,
                          const Arguments& inputs, const std::vector<Tensor>& read) {
    Arguments arguments;
    for (size_t k = 0; k < forward.out.size(); ++k) {
      const Tensor& grad = grads[k];
      arguments.push_back(grad.defined() ? Argument{&grad, 0} : kNoGradient);
    }
    arguments.append(inputs.begin(), inputs.end());
    for (const Tensor& output : read) arguments.push_back({&output, 0});
    return arguments;
  }

  static Tensor finished(const Tensor& gradient, const Tensor& input) {
    return at::sum_to(gradient, input.sym_sizes()).to(input.scalar_type());
  }
};

constexpr const char* kKind = "ElementwiseKernel";

}  // namespace

std::vector<Tensor> elementwise_autograd(const std::shared_ptr<Elementwise>& kernel,
                                         c10::DispatchKeySet keys, const OpInputs& inputs,
                                         at::OptionalSymIntArrayRef size) {
  const auto node = autograd::make_node<ElementwiseNode>(inputs.tensors);
  std::vector<Tensor> outputs = autograd::below_autograd(keys, *kernel->op, inputs.tensors,
                                                         inputs.numbers, inputs.positions, size);
  if (node && record_outputs(kKind, *kernel, node, inputs.tensors, outputs)) {
    node->save(*kernel, inputs, outputs);
  }
  set_tangents(kKind, *kernel, inputs, outputs,
               [&](const std::vector<bool>& wanted, const Arguments& arguments) {
                 const auto derived =
                     kernel->derived("jvp", wanted, std::vector<bool>(wanted.size()));
                 return call_op(*derived, split_arguments(arguments), size);
               });
  return outputs;
}

}  // namespace torch_ops::jit
