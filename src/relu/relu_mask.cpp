// relu and leaky_relu with a mask saved for the derivative: the ops _relu_mask, _relu_mask_ and
// _relu_mask_backward, which have a slope, or none for relu.
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_permuted.h>
#include <ATen/ops/ones_like.h>

#include "common/elementwise/bit_mask.h"
#include "common/torch/registration/register.h"
#include "relu/relu.h"

// clang-format off: after functorch's headers, as in older_vmap.h.
#include <ATen/LegacyBatchedTensorImpl.h>
#include <ATen/LegacyVmapTransforms.h>
// clang-format on

namespace torch_ops {
namespace {

using at::Tensor;

// The gradient from a tensor that is kept where the input is.
Tensor backward_by(const Tensor& reference, const Tensor& grad_output, Slope slope) {
  return slope ? op_of<Activation<double>::Backward>().call(grad_output, reference, *slope)
               : op_of<Activation<>::Backward>().call(grad_output, reference);
}

// The order in which a mask goes through the elements, for _relu_mask_backward: none if the
// result is contiguous.
std::vector<int64_t> mask_order(const Tensor& result) {
  if (result.is_contiguous()) return {};
  const AxisOrder order = memory_order(result);
  return {order.begin(), order.end()};
}

// Writes the output, and returns the mask.
template <class On>
Tensor write_with_mask(const Tensor& input, Slope slope, const Tensor& output) {
  const Tensor mask = new_output(input.options().dtype(at::kByte), [&](const auto& options) {
    return at::empty_symint({mask_bytes(input.sym_numel())}, options);
  });
  with_kernels<On>(output, [&](auto on) {
    AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, input.scalar_type(), "relu", [&] {
      kernels::relu(on, slope, make_walk(output, input), mask.mutable_data_ptr<uint8_t>(),
                    output_of<scalar_t>(output), input_of<scalar_t>(input));
    });
  });
  return mask;
}

struct ReluMask {
  static constexpr const char* kSchema =
      "_relu_mask(Tensor input, float? negative_slope) -> (Tensor output, Tensor mask)";

  template <class On>
  static std::tuple<Tensor, Tensor> kernel(const Tensor& input, Slope slope) {
    check_floating("_relu_mask", "input", input);
    Tensor output = new_output_like(input);
    Tensor mask = write_with_mask<On>(input, slope, output);
    return {std::move(output), std::move(mask)};
  }
};

struct ReluMaskInplace {
  static constexpr const char* kSchema =
      "_relu_mask_(Tensor(a!) input, float? negative_slope) -> Tensor";

  template <class On>
  static Tensor kernel(Tensor& input, Slope slope) {
    check_floating("_relu_mask_", "input", input);
    check_no_overlap(slope ? "leaky_relu_" : "relu_", "input", input);
    return write_with_mask<On>(input, slope, input);
  }

  static Tensor functionalize(Tensor& input, Slope slope) {
    namespace functional = at::functionalization::impl;
    if (!functional::isFunctionalTensor(input)) {
      at::AutoDispatchSkipFunctionalize guard;
      return op_of<ReluMaskInplace>().call(input, slope);
    }
    Tensor mask;
    inplace::replace(input, [&](const Tensor& before) {
      auto [after, its_mask] = op_of<ReluMask>().call(before, slope);
      mask = its_mask;
      return after;
    });
    return functional::to_functional_tensor(mask);
  }
};

struct ReluMaskBackward {
  static constexpr const char* kSchema =
      "_relu_mask_backward(Tensor grad_output, Tensor mask, int[] order, float? negative_slope)"
      " -> Tensor";
  static constexpr const char* kNode = "ReluMaskBackward";

  template <class On>
  static Tensor kernel(const Tensor& grad_output, const Tensor& mask, at::IntArrayRef order,
                       Slope slope) {
    check_floating("_relu_mask_backward", "grad_output", grad_output);
    check_one_device("_relu_mask_backward", "grad_output", grad_output, "mask", mask);
    TORCH_CHECK_VALUE(mask.scalar_type() == at::kByte && mask.is_contiguous() &&
                          mask.sym_storage_offset() % 4 == 0,
                      "_relu_mask_backward: mask must be what _relu_mask returned.");
    TORCH_CHECK_VALUE(mask.sym_numel() == mask_bytes(grad_output.sym_numel()),
                      "_relu_mask_backward: grad_output has shape ", grad_output.sym_sizes(),
                      ", for which the mask has another length than ", mask.sym_numel(), ".");
    // The mask goes through the elements in the order of the output's memory, and so must this.
    const auto sizes = grad_output.sym_sizes();
    Tensor grad_input = new_output(grad_output.options(), [&](const auto& options) {
      return order.empty() ? at::empty_symint(sizes, options)
                           : at::empty_permuted_symint(sizes, order, options);
    });
    with_kernels<On>(grad_input, [&](auto on) {
      AT_DISPATCH_FLOATING_TYPES_AND2(
          at::kHalf, at::kBFloat16, grad_output.scalar_type(), "relu_mask_backward", [&] {
            kernels::relu_mask_backward(
                on, slope, make_walk(grad_input, grad_output), mask.const_data_ptr<uint8_t>(),
                output_of<scalar_t>(grad_input), input_of<scalar_t>(grad_output));
          });
    });
    return grad_input;
  }

  // Linear in grad_output; only the mask is kept.
  static auto keep(const Tensor&, const Tensor& mask, at::IntArrayRef order, Slope slope) {
    return std::tuple(mask, order.vec(), slope);
  }

  static Tensor backward(const torch::autograd::Node& node, const Tensor& grad_output,
                         const Tensor& mask, const std::vector<int64_t>& order, Slope slope) {
    const Tensor grad = op_of<ReluMaskBackward>().call(grad_output, mask, order, slope);
    // Under create_graph=True the gradient depends on the input, if only by zeros: a Hessian of
    // relu is zeros, not an error. A saved output would show this to autograd by itself.
    // The older vmap, that of is_grads_batched, hides its axis above autograd and has no rule for
    // detach: the graph is that of all samples, whose axis in front the engine sums over.
    if (!at::isBatchedTensor(grad)) return autograd::with_zero_gradient(grad, node);
    const auto samples = at::MultiBatchVmapTransform::logicalToPhysical(grad);
    return samples.getPhysicalToLogicalMap().apply(
        autograd::with_zero_gradient(samples.tensor(), node));
  }

  // Several gradients for one mask, which was written outside torch.vmap.
  static Tensor batch(const Tensor& grad_output, const Tensor& mask, at::IntArrayRef order,
                      Slope slope) {
    const auto& op = op_of<ReluMaskBackward>();
    return batching::apply(
        [&](const batching::Batched& grad, const batching::Batched& bits) -> batching::Batched {
          TORCH_CHECK(!bits.axis, "_relu_mask_backward: torch.vmap cannot map over a mask.");
          if (!grad.axis) return {op.call(grad.value, bits.value, order, slope), std::nullopt};
          const Tensor all = grad.at(0);
          // 1 where the mask is set, else 0: in place of an output.
          const Tensor ones = at::ones_like(all.select(0, 0));
          const Tensor output = op.call(ones, bits.value, order, std::nullopt);
          return {backward_by(output.expand_as(all), all, slope), 0};
        },
        grad_output, mask);
  }
};

}  // namespace

// Under a transform of torch.func the output is saved: a mask has no axis that torch.vmap could
// hide, and what a transform saves is gone when it returns. The same for a nested tensor: torch
// passes its values to ops that return one tensor.
bool saves_mask(const Tensor& input, bool save_mask) {
  return save_mask && is_kernel_float(input) && !input.is_nested() && !has_other_layout(input) &&
         torch::autograd::compute_requires_grad(input) &&
         !at::functorch::maybeCurrentDynamicLayer();
}

Tensor forward_with_mask(c10::DispatchKeySet keys, const Tensor& input, Slope slope) {
  const auto node = autograd::make_node<autograd::Node<ReluMaskBackward>>(input);
  auto [output, mask] = autograd::below_autograd(keys, op_of<ReluMask>(), input, slope);
  autograd::record(output, node);
  autograd::set_tangent(
      output,
      [&, &output = output](const Tensor& tangent) {
        const Tensor& reference = output_tells(slope) ? output : input;
        return backward_by(autograd::primal(reference), tangent, slope);
      },
      input);
  node->keep(output, mask, mask_order(output), slope);
  return output;
}

Tensor& inplace_with_mask(c10::DispatchKeySet keys, Tensor& input, Slope slope) {
  torch::autograd::check_inplace(input, /*requires_grad=*/true);
  const auto node = autograd::make_node<autograd::Node<ReluMaskBackward>>(input);
  const Tensor mask = autograd::below_autograd(keys, op_of<ReluMaskInplace>(), input, slope);
  torch::autograd::rebase_history(input, node);
  const std::vector<int64_t> order = mask_order(input);
  node->keep(input, mask, order, slope);
  autograd::change_tangent(input, [&](const Tensor& tangent) {
    return op_of<ReluMaskBackward>().call(tangent, mask, order, slope);
  });
  return input;
}

TORCH_LIBRARY_FRAGMENT(torch_ops, m) {
  register_op<ReluMask>(m);
  register_op<ReluMaskInplace>(m);
  register_op<ReluMaskBackward>(m);
}

}  // namespace torch_ops
