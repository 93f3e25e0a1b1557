// The launchers of gather_elements: they check nothing but the index's values.
#pragma once

#include <ATen/core/Tensor.h>

#include "common/checks.h"
#include "common/element_layout.h"
#include "common/index_mode.h"

namespace torch_ops {

// As gather_cpu and gather_cuda (gather.h), with an entry for each element. `output` is contiguous;
// `index` names an entry that is an error, and has the layout's elements in their order.
void gather_along_cpu(const char* op, const at::Tensor& source, const at::Tensor& index,
                      const ElementLayout& layout, const GatherPolicy& policy,
                      const at::Tensor& output);
TORCH_OPS_CUDA_LAUNCHER(void gather_along_cuda(const char* op, const at::Tensor& source,
                                               const at::Tensor& index, const ElementLayout& layout,
                                               const GatherPolicy& policy,
                                               const at::Tensor& output))

}  // namespace torch_ops
