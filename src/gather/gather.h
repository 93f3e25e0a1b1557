// The launchers of gather: they check nothing but the index's values.
#pragma once

#include <ATen/core/Tensor.h>

#include "common/checks.h"
#include "common/index_mode.h"
#include "common/row_layout.h"

namespace torch_ops {

// An entry out of range is what `policy` says. Where that is an error: raises IndexError, in the
// name of `op`.
void gather_cpu(const char* op, const at::Tensor& source, const at::Tensor& index,
                const RowLayout& layout, const GatherPolicy& policy, const at::Tensor& output);

// Where that is an error: gives a row of zeros, and an IndexError in the name of `op`, a literal:
// at the next call, or at this one in sync mode (common/index_errors.h). The axis may be empty only
// where that is an error.
TORCH_OPS_CUDA_LAUNCHER(void gather_cuda(const char* op, const at::Tensor& source,
                                         const at::Tensor& index, const RowLayout& layout,
                                         const GatherPolicy& policy, const at::Tensor& output))

}  // namespace torch_ops
