// Reductions as registered ops. They have no derivative, and say so.
#include "jit/call/batched_call.h"
#include "jit/call/derivatives.h"
#include "jit/call/registered.h"
#include "jit/reduction/reduction.h"

namespace torch_ops::jit {
namespace {

std::string has_none(const Reduction& kernel, const char* what) {
  return "ReductionKernel \"" + kernel.name + "\" has no " + what +
         ". Detach its inputs, or write the reduction with torch's ops.";
}

Tensor reduction_autograd(const Reduction& kernel, c10::DispatchKeySet keys, const OpInputs& inputs,
                          at::OptionalIntArrayRef dim, bool keepdim) {
  for (const Tensor& tensor : inputs.tensors) {
    TORCH_CHECK_NOT_IMPLEMENTED(!torch::autograd::isFwGradDefined(tensor),
                                has_none(kernel, "forward-mode derivative"));
  }
  const Tensor result = autograd::below_autograd(keys, *kernel.op, inputs.tensors, inputs.numbers,
                                                 inputs.positions, dim, keepdim);
  if (torch::autograd::compute_requires_grad(inputs.tensors)) {
    refuse_gradient(has_none(kernel, "gradient"), inputs.tensors, result);
  }
  return result;
}

Tensor reduction_batched(const Reduction& kernel, const OpInputs& inputs,
                         at::OptionalIntArrayRef dim, bool keepdim) {
  const auto call = [&](const std::vector<Tensor>& values, std::optional<int64_t> sample_rank) {
    if (!sample_rank) {
      return std::vector<Tensor>{call_op(kernel, inputs.with(values), dim, keepdim)};
    }
    const std::vector<bool> reduced = reduced_axes(kernel, *sample_rank, dim);
    std::vector<int64_t> shifted;
    for (int64_t axis = 0; axis < *sample_rank; ++axis) {
      if (reduced[axis]) shifted.push_back(axis + 1);
    }
    return std::vector<Tensor>{call_op(kernel, inputs.with(values), shifted, keepdim)};
  };
  return call_batched(kernel, inputs, kernel.uses_size, call).at(0);
}

}  // namespace

void register_reduction(const std::shared_ptr<Reduction>& kernel) {
  const char* const schema =
      "(Tensor[] tensors, Scalar[] numbers, int[] positions, int[]? dim=None, "
      "bool keepdim=False) -> Tensor";
  const auto backend = [kernel](const OpInputs& inputs, at::OptionalIntArrayRef dim, bool keepdim) {
    return reduce(*kernel, join_arguments(*kernel, inputs), dim, keepdim, {});
  };
  register_kernel(kernel, schema, backend, [&](const auto& impl) {
    impl(c10::DispatchKey::FuncTorchBatched,
         [kernel](const auto&... args) { return reduction_batched(*kernel, args...); });
    impl.autograd([kernel](const auto&... args) { return reduction_autograd(*kernel, args...); });
  });
}

}  // namespace torch_ops::jit
