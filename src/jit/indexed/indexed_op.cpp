// Indexed kernels as registered ops, and torch.vmap of them.
#include <torch/csrc/utils/pybind.h>

#include <algorithm>

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

Tensor unsqueezed(Tensor tensor, int64_t axis, int64_t times) {
  for (; times > 0; --times) tensor = tensor.unsqueeze(axis);
  return tensor;
}

// Gives a tensor the samples' axis at `position`, of their number where it must have it, else of 1.
Tensor with_samples(const Batched& sample, int64_t position, const c10::SymInt& samples,
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
  Batched typed(size_t k, Batched sample, const Types& types) const {
    if (given[k].tensor->dim() == 0 && (sample.axis || is_like[k])) {
      sample.value = sample.value.to(call.indices[0].device(), types.in[k]);
    }
    return sample;
  }

  // With one index for all samples, their axis is one more of the features', the first.
  Tensor as_feature(size_t k, const Batched& sample, const c10::SymInt& samples,
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
  Tensor as_batch(size_t k, const Batched& sample, const c10::SymInt& samples) const {
    const int64_t own = given[k].tensor->dim();
    const bool is_read = kernel.in_roles[k].index >= 0;
    if (!sample.axis && !is_like[k] && !is_read && own < rank) return sample.value;
    const bool must_have = is_read || is_like[k];
    return unsqueezed(with_samples(sample, 0, samples, must_have), 1, rank - own);
  }
};

// On FuncTorchBatched.
std::vector<Tensor> indexed_batched(const Indexed& kernel, const OpInputs& inputs,
                                    const Call& of_sample, bool winners) {
  for (const Batched& part : batching::unwrap(of_sample.plans, batching::current_level())) {
    TORCH_CHECK(!part.axis, kernel.name,
                ": torch.vmap cannot map over a plan. Make one plan of the stacked indices, with "
                "batch_dims.");
  }
  Call call = of_sample;
  const auto one = [&](const std::vector<Tensor>& values, const std::vector<Tensor>& indices) {
    call.indices = indices;
    return call_op(kernel, inputs.with(values), call, winners);
  };
  const auto all = [&](const std::vector<Batched>& tensors, const std::vector<Batched>& indices,
                       const Arguments& given, const c10::SymInt& samples) {
    const Batcher batcher(kernel, given, of_sample);
    const bool apart_indices = std::any_of(indices.begin(), indices.end(),
                                           [](auto& index) { return index.axis.has_value(); });
    const Types types = resolve_types(kernel, given, {});
    std::vector<Tensor> values;
    std::vector<int64_t> axes(given.size());
    for (size_t k = 0, at = 0; k < given.size(); ++k) {
      if (!given[k].tensor) continue;
      const Batched sample = batcher.typed(k, tensors[at++], types);
      values.push_back(kernel.in[k].raw ? sample.value
                       : apart_indices  ? batcher.as_batch(k, sample, samples)
                                        : batcher.as_feature(k, sample, samples, axes[k]));
    }
    for (size_t k = 0; k < indices.size(); ++k) {
      call.indices[k] =
          apart_indices ? with_samples(indices[k], 0, samples, true) : indices[k].value;
    }
    if (apart_indices) {
      TORCH_CHECK(call.plans.empty(), kernel.name,
                  ": torch.vmap cannot map over the indices of a plan. Make one plan of the "
                  "stacked indices, with batch_dims.");
      ++call.batch_dims;
    }
    std::vector<Tensor> results = call_op(kernel, inputs.with(values), call, winners);
    if (apart_indices) return results;
    for (size_t k = 0; k < results.size(); ++k) {
      const int64_t like = k < kernel.out.size() ? kernel.out[k].like : -1;
      results[k] = results[k].movedim(like >= 0 ? axes[like] : of_sample.batch_dims + 1, 0);
    }
    return results;
  };
  return call_samples(kernel, inputs, of_sample.indices, kernel.uses_index || kernel.uses_size,
                      "raw parameters, the entry's number or the number of entries", one, all);
}

}  // namespace

// ---- Registration -------------------------------------------------------------------------------

void register_indexed(const std::shared_ptr<Indexed>& kernel) {
  const char* const schema =
      "(Tensor[] tensors, Scalar[] numbers, int[] positions, Tensor[] indices, Tensor[] plans, "
      "SymInt[] longest, SymInt[] sizes, int batch_dims=0, bool? deterministic=None, "
      "bool winners=False) -> Tensor[]";
  // The function of the op's arguments that calls use(inputs, call, winners).
  const auto with_call = [](auto use) {
    return [use](const OpInputs& inputs, at::TensorList indices, at::TensorList plans,
                 c10::SymIntArrayRef longest, c10::SymIntArrayRef sizes, int64_t batch_dims,
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
           const Types types = resolve_types(*kernel, arguments, {});
           return allocate(*kernel, types, frame, c10::kMeta, winners);
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
