// The launchers of scatter_elements_add: they check nothing but the index's values.
#pragma once

#include <ATen/core/Tensor.h>

#include "common/checks.h"
#include "common/element_layout.h"
#include "common/index_mode.h"

namespace torch_ops {

// Adds `values`, of the layout's strides, to `sums`, contiguous, of a dtype in which they are
// summed: sum_type(values' dtype) of scatter.h. An entry that names no row by the rule is dropped;
// where that is an error, raises IndexError, and the sums are nonsense. The same bits for any
// number of threads.
void add_along_cpu(const at::Tensor& values, const at::Tensor& index, const ElementLayout& layout,
                   const IndexRule& rule, const at::Tensor& sums);

// The same in no given order. Where an entry is an error it is dropped, and gives an IndexError at
// the next call, or at this one in sync mode (common/index_errors.h).
TORCH_OPS_CUDA_LAUNCHER(void add_along_cuda(const at::Tensor& values, const at::Tensor& index,
                                            const ElementLayout& layout, const IndexRule& rule,
                                            const at::Tensor& sums))

// Writes the place in the result, counted over all of its elements, that each entry names;
// `nowhere` for one that is dropped, or is an error. `places` is int64 and contiguous.
TORCH_OPS_CUDA_LAUNCHER(void find_places_cuda(const at::Tensor& index, const ElementLayout& layout,
                                              const IndexRule& rule, int64_t nowhere,
                                              const at::Tensor& places))

}  // namespace torch_ops
