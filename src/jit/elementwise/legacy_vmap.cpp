// The rule for the older vmap, that of torch.autograd.grad(is_grads_batched=True) and gradcheck.
// clang-format off: functorch's header after the older vmap's finds two functions of each name.
#include <ATen/functorch/BatchedTensorImpl.h>
#include <ATen/LegacyVmapTransforms.h>
// clang-format on

#include <algorithm>

#include "jit/call/registered.h"
#include "jit/elementwise/elementwise.h"

namespace torch_ops::jit {

std::vector<Tensor> batched_before_functorch(const Elementwise& kernel, const OpInputs& inputs,
                                             at::OptionalSymIntArrayRef size) {
  const auto is_raw = [](const Parameter& parameter) { return parameter.raw; };
  TORCH_CHECK(
      !kernel.uses_index && !kernel.uses_size && !size.has_value() &&
          std::none_of(kernel.in.begin(), kernel.in.end(), is_raw) &&
          std::none_of(kernel.out.begin(), kernel.out.end(), is_raw),
      kernel.name,
      ": is_grads_batched=True is not possible for a kernel that uses raw parameters or the "
      "index. torch.func and torch.vmap are.");
  // The hidden axes of all to the front, then the axes of a sample, of one number for all.
  const auto physical = at::MultiBatchVmapTransform::logicalToPhysical(inputs.tensors);
  int64_t rank = 0;
  for (const auto& view : physical) {
    rank = std::max(rank, view.tensor().dim() - view.numBatchDims());
  }
  std::vector<Tensor> values;
  for (const auto& view : physical) {
    Tensor value = view.tensor();
    for (int64_t missing = rank - (value.dim() - view.numBatchDims()); missing > 0; --missing) {
      value = value.unsqueeze(view.numBatchDims());
    }
    values.push_back(std::move(value));
  }
  std::vector<Tensor> results = call_op(kernel, inputs.with(values), size);
  const auto to_logical = physical.at(0).getPhysicalToLogicalMap();
  for (Tensor& result : results) result = to_logical.apply(result);
  return results;
}

}  // namespace torch_ops::jit
