// The rule for the older vmap, that of torch.autograd.grad(is_grads_batched=True) and gradcheck.
// clang-format off: functorch's header after the older vmap's finds two functions of each name.
#include "jit/indexed/batched.h"
#include <ATen/LegacyVmapTransforms.h>
// clang-format on

#include <algorithm>

namespace torch_ops::jit::indexed {

std::vector<Tensor> indexed_batched_before_functorch(const Indexed& kernel, const OpInputs& inputs,
                                                     const Call& call, bool winners) {
  const auto is_mapped = [](const Tensor& tensor) {
    return tensor.key_set().has(c10::DispatchKey::Batched);
  };
  TORCH_CHECK(std::none_of(call.indices.begin(), call.indices.end(), is_mapped), kernel.name,
              ": is_grads_batched=True is not possible where indices are mapped over. torch.func "
              "and torch.vmap are.");
  // The hidden axes of all in front, as one.
  const auto physical = at::MultiBatchVmapTransform::logicalToPhysical(inputs.tensors);
  const int64_t hidden = physical.at(0).numBatchDims();
  std::vector<Sample> values, indices;
  for (const auto& view : physical) values.push_back({view.tensor().flatten(0, hidden - 1), 0});
  for (const Tensor& index : call.indices) indices.push_back({index, std::nullopt});
  const auto sizes = physical.at(0).tensor().sym_sizes().slice(0, hidden);
  std::vector<Tensor> results = call_on_samples(kernel, values, inputs, indices, call,
                                                values.at(0).value.sym_size(0), winners);
  const auto to_logical = physical.at(0).getPhysicalToLogicalMap();
  for (Tensor& result : results) {
    // It asks for the hidden axes in front in memory too.
    result = to_logical.apply(result.contiguous().unflatten_symint(0, sizes));
  }
  return results;
}

}  // namespace torch_ops::jit::indexed
