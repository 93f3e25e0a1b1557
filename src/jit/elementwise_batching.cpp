// torch.vmap of elementwise kernels.
#include <ATen/ops/stack.h>

#include "common/batching.h"
#include "jit/elementwise.h"

namespace torch_ops::jit {

std::vector<Tensor> elementwise_batched(const std::shared_ptr<Elementwise>& kernel,
                                        at::TensorList tensors, at::ArrayRef<Scalar> numbers,
                                        at::IntArrayRef positions,
                                        at::OptionalSymIntArrayRef size) {
  c10::impl::ExcludeDispatchKeyGuard guard(c10::DispatchKey::FuncTorchBatched);
  const int64_t level = batching::current_level();
  std::vector<batching::Batched> inputs;
  std::vector<Tensor> logical(tensors.begin(), tensors.end());
  for (const Tensor& tensor : tensors) {
    auto [value, axis] = at::functorch::unwrapTensorAtLevel(tensor, level);
    inputs.push_back({std::move(value), axis});
  }
  const Arguments given = join_arguments(*kernel, logical, numbers, positions);
  // What an element does may depend on where it stands, or on an array as a whole: then each sample
  // has a call of its own.
  bool apart = kernel->uses_index || kernel->uses_size || size.has_value();
  int64_t rank = 0;
  std::optional<c10::SymInt> samples;
  for (size_t k = 0, at = 0; k < given.size(); ++k) {
    if (!given[k].tensor) continue;
    const batching::Batched& input = inputs[at++];
    if (input.axis) samples = input.size();
    apart |= kernel->in[k].raw && input.axis;
    if (!kernel->in[k].raw) rank = std::max(rank, given[k].tensor->dim());
  }
  for (const Parameter& parameter : kernel->out) apart |= parameter.raw;
  std::vector<Tensor> results;
  if (!samples) {
    std::vector<Tensor> values;
    for (const auto& input : inputs) values.push_back(input.value);
    return kernel->op->call(values, numbers, positions, size);
  }
  if (apart) {
    const int64_t count = samples->guard_int(__FILE__, __LINE__);
    TORCH_CHECK(count > 0, kernel->name,
                ": torch.vmap over no samples at all is not possible for a kernel that uses raw "
                "parameters or the index.");
    std::vector<std::vector<Tensor>> columns;
    for (int64_t sample = 0; sample < count; ++sample) {
      std::vector<Tensor> values;
      for (const auto& input : inputs) {
        values.push_back(input.axis ? input.value.select(*input.axis, sample) : input.value);
      }
      const std::vector<Tensor> made = kernel->op->call(values, numbers, positions, size);
      columns.resize(made.size());
      for (size_t k = 0; k < made.size(); ++k) columns[k].push_back(made[k]);
    }
    for (const auto& column : columns) results.push_back(at::stack(column));
  } else {
    // In a sample a 0-d tensor gives way to others in type promotion; with the axis of the samples
    // it no longer would. So each is brought to its type first.
    const Types types = resolve_types(*kernel, given, {});
    std::vector<Tensor> values;
    for (size_t k = 0, at = 0; k < given.size(); ++k) {
      if (!given[k].tensor) continue;
      const batching::Batched& input = inputs[at++];
      if (kernel->in[k].raw || !input.axis) {
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
    results = kernel->op->call(values, numbers, positions, size);
  }
  for (Tensor& result : results) {
    result = at::functorch::makeBatched(std::move(result), 0, level);
  }
  return results;
}

}  // namespace torch_ops::jit
