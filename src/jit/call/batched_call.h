// torch.vmap of generated kernels.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/SymInt.h>
#include <c10/util/FunctionRef.h>
#include <torch/library.h>

#include <optional>
#include <vector>

#include "jit/call/signature.h"

namespace torch_ops::jit {

// Calls the op on these tensors. `sample_rank`: the axes of a sample, where tensors that are not
// raw may have that of the samples in front of as many; nothing where there are no samples.
using OpCall = c10::function_ref<std::vector<Tensor>(const std::vector<Tensor>& tensors,
                                                     std::optional<int64_t> sample_rank)>;

// The results of a call for each sample, stacked. `uses`: what makes one call of all impossible.
std::vector<Tensor> call_each(const Signature& kernel, const c10::SymInt& samples, const char* uses,
                              c10::function_ref<std::vector<Tensor>(int64_t sample)> call);

// A call under the FuncTorchBatched key: one call of the op with an axis more, or, where `apart` or
// where samples differ in a raw array, one for each sample.
std::vector<Tensor> call_batched(const Signature& kernel, const OpInputs& op_inputs, bool apart,
                                 OpCall call);

// What is registered for the Batched key (common/torch/registration/older_vmap.h).
torch::CppFunction rule_for_older_vmap();

}  // namespace torch_ops::jit
