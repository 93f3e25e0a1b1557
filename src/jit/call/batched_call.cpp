#include "jit/call/batched_call.h"

#include <ATen/ops/stack.h>

#include "common/torch/registration/batching.h"
#include "common/torch/registration/older_vmap.h"

namespace torch_ops::jit {

std::vector<Tensor> call_each(const Signature& kernel, const c10::SymInt& samples, const char* uses,
                              c10::function_ref<std::vector<Tensor>(int64_t sample)> call) {
  const int64_t count = samples.guard_int(__FILE__, __LINE__);
  TORCH_CHECK(count > 0, kernel.name,
              ": torch.vmap over no samples at all is not possible for a kernel that uses ", uses,
              ".");
  std::vector<std::vector<Tensor>> columns;
  for (int64_t sample = 0; sample < count; ++sample) {
    const std::vector<Tensor> made = call(sample);
    columns.resize(made.size());
    for (size_t k = 0; k < made.size(); ++k) columns[k].push_back(made[k]);
  }
  std::vector<Tensor> results;
  for (const auto& column : columns) results.push_back(at::stack(column));
  return results;
}

std::vector<Tensor> call_batched(const Signature& kernel, const OpInputs& op_inputs, bool apart,
                                 OpCall call) {
  c10::impl::ExcludeDispatchKeyGuard guard(c10::DispatchKey::FuncTorchBatched);
  const int64_t level = batching::current_level();
  const std::vector<batching::Batched> inputs = batching::unwrap(op_inputs.tensors, level);
  const Arguments given = join_arguments(kernel, op_inputs);
  int64_t rank = 0;
  std::optional<c10::SymInt> samples;
  for (size_t k = 0, at = 0; k < given.size(); ++k) {
    if (!given[k].tensor) continue;
    const batching::Batched& input = inputs[at++];
    if (input.axis) samples = input.size();
    apart |= kernel.in[k].raw && input.axis;
    if (!kernel.in[k].raw) rank = std::max(rank, given[k].tensor->dim());
  }
  std::vector<Tensor> results;
  if (!samples) {
    std::vector<Tensor> values;
    for (const auto& input : inputs) values.push_back(input.value);
    return call(values, std::nullopt);
  }
  if (apart) {
    const char* const uses = "raw parameters, the index or the number of elements";
    results = call_each(kernel, *samples, uses, [&](int64_t sample) {
      std::vector<Tensor> values;
      for (const auto& input : inputs) {
        values.push_back(input.axis ? input.value.select(*input.axis, sample) : input.value);
      }
      return call(values, std::nullopt);
    });
  } else {
    // In a sample a 0-d tensor gives way to others in type promotion; with the axis of the samples
    // it no longer would. So each is brought to its type first.
    const Types types = resolve_types(kernel, given, {});
    std::vector<Tensor> values;
    for (size_t k = 0, at = 0; k < given.size(); ++k) {
      if (!given[k].tensor) continue;
      const batching::Batched& input = inputs[at++];
      if (kernel.in[k].raw || !input.axis) {
        values.push_back(input.value);
        continue;
      }
      Tensor value = input.at(0);
      if (given[k].tensor->dim() == 0) value = value.to(types.in[k]);
      for (int64_t missing = rank - given[k].tensor->dim(); missing > 0; --missing) {
        value = value.unsqueeze(1);
      }
      values.push_back(std::move(value));
    }
    results = call(values, rank);
  }
  for (Tensor& result : results) {
    result = at::functorch::makeBatched(std::move(result), 0, level);
  }
  return results;
}

torch::CppFunction rule_for_older_vmap() { return older_vmap::rule(); }

}  // namespace torch_ops::jit
