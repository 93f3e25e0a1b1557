// The launchers of mask_positions.
#pragma once

#include <ATen/core/Tensor.h>

#include "common/checks.h"

namespace torch_ops {

// Writes where a contiguous mask is true to the front of `positions`, in order, as many as it has
// room for; the rest stays as it is. int32 or int64, contiguous.
void mask_positions_cpu(const at::Tensor& mask, const at::Tensor& positions);
TORCH_OPS_CUDA_LAUNCHER(void mask_positions_cuda(const at::Tensor& mask,
                                                 const at::Tensor& positions))

}  // namespace torch_ops
