// torch.vmap of generated kernels.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/SymInt.h>
#include <c10/util/FunctionRef.h>
#include <torch/library.h>

#include <optional>
#include <vector>

#include "common/torch/registration/batching.h"
#include "jit/call/signature.h"

namespace torch_ops::jit {

using batching::Batched;

// A call without samples, of an op's inputs and of what it has besides.
using SampleCall = c10::function_ref<std::vector<Tensor>(const std::vector<Tensor>& tensors,
                                                         const std::vector<Tensor>& more)>;
// One call of all samples. `given` are the arguments as a sample seems to have them. The results
// have the samples in front.
using SamplesCall = c10::function_ref<std::vector<Tensor>(
    const std::vector<Batched>& tensors, const std::vector<Batched>& more, const Arguments& given,
    const c10::SymInt& samples)>;

// A call under the FuncTorchBatched key: by all(), or, where `apart` or where samples differ in a
// raw array, by one() for each sample. `uses`: what makes one call of all impossible.
std::vector<Tensor> call_samples(const Signature& kernel, const OpInputs& inputs,
                                 at::TensorList more, bool apart, const char* uses, SampleCall one,
                                 SamplesCall all);

// Calls the op on these tensors. `sample_rank`: the axes of a sample, where tensors that are not
// raw may have that of the samples in front of as many; nothing where there are no samples.
using OpCall = c10::function_ref<std::vector<Tensor>(const std::vector<Tensor>& tensors,
                                                     std::optional<int64_t> sample_rank)>;

// The same of ops whose inputs broadcast: one call of all has an axis more.
std::vector<Tensor> call_batched(const Signature& kernel, const OpInputs& inputs, bool apart,
                                 OpCall call);

// What is registered for the Batched key (common/torch/registration/older_vmap.h).
torch::CppFunction rule_for_older_vmap();

}  // namespace torch_ops::jit
