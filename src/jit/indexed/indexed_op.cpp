// Indexed kernels as registered ops, and torch.vmap of them.
#include <torch/csrc/utils/pybind.h>

#include <algorithm>

#include "common/torch/registration/batching.h"
#include "jit/call/batched_call.h"
#include "jit/call/registered.h"
#include "jit/indexed/indexed.h"

namespace torch_ops::jit::indexed {

std::vector<Tensor> call_op(const Indexed& kernel, const OpInputs& inputs, const Call& call,
                            bool winners) {
  return jit::call_op(kernel, inputs, call.indices, call.plans, call.longest, call.sizes,
                      call.batch_dims, /*deterministic=*/std::nullopt, winners);
}

std::shared_ptr<Indexed> Indexed::derived(const std::string& kind, const std::vector<bool>& wanted,
                                          const std::vector<bool>& given) {
  return derived_.get(as_key(kind, {&wanted, &given}),
                      [&] { return derive(kind, wanted, given).cast<std::shared_ptr<Indexed>>(); });
}

// ---- torch.vmap ---------------------------------------------------------------------------------

namespace {

// A tensor, and where it has the axis of the samples; nothing: it is the same for all.
using Sample = batching::Batched;

Tensor unsqueezed(Tensor tensor, int64_t axis, int64_t times) {
  for (; times > 0; --times) tensor = tensor.unsqueeze(axis);
  return tensor;
}

// Gives a tensor the samples' axis at `position`, of their number where it must have it, else of 1.
Tensor with_samples(const Sample& sample, int64_t position, const c10::SymInt& samples,
                    bool must_have) {
  if (sample.axis || must_have) return sample.expanded_at(position, samples);
  return sample.value.unsqueeze(position);
}

struct Batcher {
  const Indexed& kernel;
  const Arguments given;  // of a sample, as it seems
  const Call& call;
  std::vector<bool> is_like;  // inputs whose shapes outputs have
  int64_t rank = 0;           // of a sample's frame

  Batcher(const Indexed& indexed, const Arguments& arguments, const Call& of_sample)
      : kernel(indexed), given(arguments), call(of_sample), is_like(arguments.size()) {
    rank = call.batch_dims + 1;
    for (size_t k = 0; k < given.size(); ++k) {
      if (given[k].tensor && !kernel.in[k].raw) rank = std::max(rank, given[k].tensor->dim());
    }
    for (const Parameter& out : kernel.out) {
      if (out.like >= 0) is_like[out.like] = true;
    }
    for (size_t k = 0; k < kernel.out.size(); ++k) {
      summed_axes(kernel, k, rank - call.batch_dims - 1);  // raises
    }
  }

  // A sample that has no axes gives way to others in type promotion; with that of the samples it no
  // longer would.
  Sample typed(size_t k, Sample sample, const Types& types) const {
    if (given[k].tensor->dim() == 0 && (sample.axis || is_like[k])) {
      sample.value = sample.value.to(call.indices[0].device(), types.in[k]);
    }
    return sample;
  }

  // With one index for all samples, their axis is one more of the features', the first.
  Tensor as_feature(size_t k, const Sample& sample, const c10::SymInt& samples,
                    int64_t& axis) const {
    const int64_t own = given[k].tensor->dim(), shift = rank - own;
    if (shift <= call.batch_dims) {
      axis = call.batch_dims - shift + 1;
      return with_samples(sample, axis, samples, is_like[k]);
    }
    axis = 0;
    if (!sample.axis && !is_like[k]) return sample.value;
    const int64_t missing = rank - call.batch_dims - 1 - own;
    return unsqueezed(with_samples(sample, 0, samples, true), 1, missing);
  }

  // With an index for each sample, it is one more of the batch's, the first.
  Tensor as_batch(size_t k, const Sample& sample, const c10::SymInt& samples) const {
    const int64_t own = given[k].tensor->dim();
    const bool is_read = kernel.in_roles[k].index >= 0;
    if (!sample.axis && !is_like[k] && !is_read && own < rank) return sample.value;
    const bool must_have = is_read || is_like[k];
    return unsqueezed(with_samples(sample, 0, samples, must_have), 1, rank - own);
  }
};

// `logical` are the tensors as a sample seems to have them. The results have the samples in front.
std::vector<Tensor> call_on_samples(const Indexed& kernel, const std::vector<Sample>& tensors,
                                    const OpInputs& logical, const std::vector<Sample>& indices,
                                    const Call& of_sample, const c10::SymInt& samples,
                                    bool winners) {
  const Arguments given = join_arguments(kernel, logical);
  const Batcher batcher(kernel, given, of_sample);
  const auto has_axis = [](const Sample& sample) { return sample.axis.has_value(); };
  const bool apart_indices = std::any_of(indices.begin(), indices.end(), has_axis);
  bool apart = kernel.uses_index || kernel.uses_size;
  for (size_t k = 0, at = 0; k < given.size(); ++k) {
    if (given[k].tensor) apart |= has_axis(tensors[at++]) && kernel.in[k].raw;
  }
  Call call = of_sample;
  if (apart) {
    const char* const uses = "raw parameters, the entry's number or the number of entries";
    return call_each(kernel, samples, uses, [&](int64_t s) {
      const auto one = [&](const Sample& sample) {
        return sample.axis ? sample.value.select(*sample.axis, s) : sample.value;
      };
      std::vector<Tensor> values;
      for (const Sample& sample : tensors) values.push_back(one(sample));
      for (size_t k = 0; k < indices.size(); ++k) call.indices[k] = one(indices[k]);
      return call_op(kernel, logical.with(values), call, winners);
    });
  }
  const Types types = resolve_types(kernel, given, {});
  std::vector<Tensor> values;
  std::vector<int64_t> axes(given.size());
  for (size_t k = 0, at = 0; k < given.size(); ++k) {
    if (!given[k].tensor) continue;
    const Sample sample = batcher.typed(k, tensors[at++], types);
    values.push_back(kernel.in[k].raw ? sample.value
                     : apart_indices  ? batcher.as_batch(k, sample, samples)
                                      : batcher.as_feature(k, sample, samples, axes[k]));
  }
  for (size_t k = 0; k < indices.size(); ++k) {
    call.indices[k] = apart_indices ? with_samples(indices[k], 0, samples, true) : indices[k].value;
  }
  if (apart_indices) {
    TORCH_CHECK(call.plans.empty(), kernel.name,
                ": torch.vmap cannot map over the indices of a plan. Make one plan of the stacked "
                "indices, with batch_dims.");
    ++call.batch_dims;
  }
  std::vector<Tensor> results = call_op(kernel, logical.with(values), call, winners);
  if (apart_indices) return results;
  for (size_t k = 0; k < results.size(); ++k) {
    const int64_t like = k < kernel.out.size() ? kernel.out[k].like : -1;
    results[k] = results[k].movedim(like >= 0 ? axes[like] : of_sample.batch_dims + 1, 0);
  }
  return results;
}

// On FuncTorchBatched.
std::vector<Tensor> indexed_batched(const Indexed& kernel, const OpInputs& inputs, const Call& call,
                                    bool winners) {
  c10::impl::ExcludeDispatchKeyGuard guard(c10::DispatchKey::FuncTorchBatched);
  const int64_t level = batching::current_level();
  std::optional<c10::SymInt> samples;
  const auto unwrap = [&](at::TensorList list) {
    std::vector<Sample> unwrapped = batching::unwrap(list, level);
    for (const Sample& each : unwrapped) {
      if (each.axis) samples = each.size();
    }
    return unwrapped;
  };
  const std::vector<Sample> values = unwrap(inputs.tensors), indices = unwrap(call.indices);
  for (const Sample& part : unwrap(call.plans)) {
    TORCH_CHECK(!part.axis, kernel.name,
                ": torch.vmap cannot map over a plan. Make one plan of the stacked indices, with "
                "batch_dims.");
  }
  if (!samples) {
    std::vector<Tensor> plain;
    for (const Sample& value : values) plain.push_back(value.value);
    Call below = call;
    for (size_t k = 0; k < indices.size(); ++k) below.indices[k] = indices[k].value;
    return call_op(kernel, inputs.with(plain), below, winners);
  }
  std::vector<Tensor> results =
      call_on_samples(kernel, values, inputs, indices, call, *samples, winners);
  for (Tensor& result : results) {
    result = at::functorch::makeBatched(std::move(result), 0, level);
  }
  return results;
}

}  // namespace

// ---- Registration -------------------------------------------------------------------------------

void register_indexed(const std::shared_ptr<Indexed>& kernel) {
  const char* const schema =
      "(Tensor[] tensors, Scalar[] numbers, int[] positions, Tensor[] indices, Tensor[] plans, "
      "int[] longest, SymInt[] sizes, int batch_dims=0, bool? deterministic=None, "
      "bool winners=False) -> Tensor[]";
  // The function of the op's arguments that calls use(inputs, call, winners).
  const auto with_call = [](auto use) {
    return [use](const OpInputs& inputs, at::TensorList indices, at::TensorList plans,
                 at::IntArrayRef longest, c10::SymIntArrayRef sizes, int64_t batch_dims,
                 std::optional<bool> /*deterministic*/, bool winners) {
      const Call call{indices.vec(), plans.vec(), longest.vec(), sizes.vec(), batch_dims};
      return use(inputs, call, winners);
    };
  };
  const auto backend = with_call([kernel](const OpInputs& inputs, const Call& call, bool winners) {
    return run(*kernel, join_arguments(*kernel, inputs), call, winners);
  });
  register_kernel(kernel, schema, backend, [&](const auto& impl) {
    impl(c10::DispatchKey::Meta,
         with_call([kernel](const OpInputs& inputs, const Call& call, bool winners) {
           const Arguments arguments = join_arguments(*kernel, inputs);
           check_devices(*kernel, arguments, call);
           const Frame frame = frame_of(*kernel, arguments, call);
           return allocate(*kernel, arguments, frame, c10::kMeta, winners, /*is_meta=*/true);
         }));
    impl(c10::DispatchKey::FuncTorchBatched,
         with_call([kernel](const auto&... args) { return indexed_batched(*kernel, args...); }));
    impl.autograd([kernel, with_call](c10::DispatchKeySet keys, const auto&... args) {
      return with_call([&](const auto&... of_call) {
        return indexed_autograd(kernel, keys, of_call...);
      })(args...);
    });
  });
}

}  // namespace torch_ops::jit::indexed
