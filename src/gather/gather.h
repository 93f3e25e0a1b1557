// The launchers of gather: they check nothing but the index's values.
#pragma once

#include <ATen/core/Tensor.h>

#include "common/checks.h"
#include "common/row_layout.h"

namespace torch_ops {

// Raises IndexError, in the name of `op`, where an entry of the index is out of range.
void gather_cpu(const char* op, const at::Tensor& source, const at::Tensor& index,
                const RowLayout& layout, const at::Tensor& output);

// An entry out of range gives a row of zeros, and an IndexError in the name of `op`, a literal: at
// the next call, or at this one in sync mode (common/index_errors.h).
TORCH_OPS_CUDA_LAUNCHER(void gather_cuda(const char* op, const at::Tensor& source,
                                         const at::Tensor& index, const RowLayout& layout,
                                         const at::Tensor& output))

}  // namespace torch_ops
