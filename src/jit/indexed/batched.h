// A call of an indexed kernel for several samples at once: both kinds of torch.vmap.
#pragma once

#include <vector>

#include "common/torch/batching.h"
#include "jit/indexed/indexed.h"

namespace torch_ops::jit::indexed {

// A tensor, and where it has the axis of the samples; nothing: it is the same for all.
using Sample = batching::Batched;

// `logical` are the tensors as a sample seems to have them. The results have the samples in front.
std::vector<Tensor> call_on_samples(const Indexed& kernel, const std::vector<Sample>& tensors,
                                    const OpInputs& logical, const std::vector<Sample>& indices,
                                    const Call& of_sample, const c10::SymInt& samples,
                                    bool winners);

}  // namespace torch_ops::jit::indexed
