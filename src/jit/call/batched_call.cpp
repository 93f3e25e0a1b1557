#include "jit/call/batched_call.h"

#include <ATen/ops/stack.h>

#include "common/torch/registration/older_vmap.h"

namespace torch_ops::jit {

std::vector<Tensor> call_samples(const Signature& kernel, const OpInputs& inputs,
                                 at::TensorList more, bool apart, const char* uses, SampleCall one,
                                 SamplesCall all) {
  c10::impl::ExcludeDispatchKeyGuard guard(c10::DispatchKey::FuncTorchBatched);
  const int64_t level = batching::current_level();
  const std::vector<Batched> tensors = batching::unwrap(inputs.tensors, level);
  const std::vector<Batched> others = batching::unwrap(more, level);
  std::optional<c10::SymInt> samples;
  for (const auto* list : {&tensors, &others}) {
    for (const Batched& each : *list) {
      if (each.axis) samples = each.size();
    }
  }
  const auto call_one = [&](int64_t sample) {
    const auto values_of = [&](const std::vector<Batched>& list) {
      std::vector<Tensor> values;
      for (const Batched& each : list) {
        values.push_back(each.axis ? each.value.select(*each.axis, sample) : each.value);
      }
      return values;
    };
    return one(values_of(tensors), values_of(others));
  };
  if (!samples) return call_one(0);
  const Arguments given = join_arguments(kernel, inputs);
  for (size_t k = 0, at = 0; k < given.size(); ++k) {
    if (given[k].tensor) apart |= tensors[at++].axis && kernel.in[k].raw;
  }
  std::vector<Tensor> results;
  if (apart) {
    const int64_t count = samples->guard_int(__FILE__, __LINE__);
    TORCH_CHECK(count > 0, kernel.name,
                ": torch.vmap over no samples at all is not possible for a kernel that uses ", uses,
                ".");
    std::vector<std::vector<Tensor>> columns;
    for (int64_t sample = 0; sample < count; ++sample) {
      const std::vector<Tensor> made = call_one(sample);
      columns.resize(made.size());
      for (size_t k = 0; k < made.size(); ++k) columns[k].push_back(made[k]);
    }
    for (const auto& column : columns) results.push_back(at::stack(column));
  } else {
    results = all(tensors, others, given, *samples);
  }
  for (Tensor& result : results) {
    result = at::functorch::makeBatched(std::move(result), 0, level);
  }
  return results;
}

std::vector<Tensor> call_batched(const Signature& kernel, const OpInputs& inputs, bool apart,
                                 OpCall call) {
  const auto one = [&](const std::vector<Tensor>& values, const std::vector<Tensor>&) {
    return call(values, std::nullopt);
  };
  const auto all = [&](const std::vector<Batched>& tensors, const std::vector<Batched>&,
                       const Arguments& given, const c10::SymInt&) {
    int64_t rank = 0;
    for (size_t k = 0; k < given.size(); ++k) {
      if (given[k].tensor && !kernel.in[k].raw) rank = std::max(rank, given[k].tensor->dim());
    }
    // In a sample a 0-d tensor gives way to others in type promotion; with the axis of the samples
    // it no longer would. So each is brought to its type first.
    const Types types = resolve_types(kernel, given, {});
    std::vector<Tensor> values;
    for (size_t k = 0, at = 0; k < given.size(); ++k) {
      if (!given[k].tensor) continue;
      const Batched& input = tensors[at++];
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
    return call(values, rank);
  };
  return call_samples(kernel, inputs, {}, apart,
                      "raw parameters, the index or the number of elements", one, all);
}

torch::CppFunction rule_for_older_vmap() { return older_vmap::rule(); }

}  // namespace torch_ops::jit
