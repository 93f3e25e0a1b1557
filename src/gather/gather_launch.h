// gather and gather_elements in the kernel library: gather_cpu.cpp and gather_cuda.cu. Only the
// values of the index are checked. No torch.
#pragma once

#include <cstdint>

#include "common/host/host_program.h"
#include "common/indexing/index_array.h"
#include "common/indexing/index_error.h"
#include "common/indexing/index_mode.h"
#include "common/layout/element_layout.h"
#include "common/layout/row_layout.h"

namespace torch_ops {

// Layout is a RowLayout, for an entry for each row, or an ElementLayout, for one for each element.
// The output is contiguous. The axis may be empty only if an entry that is not a row is an error.
template <class Layout>
struct GatherCall {
  const void* source;
  int64_t element_bytes;
  IndexArray index;
  Layout layout;
  GatherPolicy policy;
  void* output;
};

namespace kernels {

// Return the position of the first entry that is an error, or kNoBadEntry. If there is one, the
// output is undefined.
TORCH_OPS_KERNELS_API int64_t gather(OnCpu on, const GatherCall<RowLayout>& call);
TORCH_OPS_KERNELS_API int64_t gather(OnCpu on, const GatherCall<ElementLayout>& call);

// An entry that is an error gives zeros, and is recorded.
TORCH_OPS_KERNELS_API void gather(OnCuda on, const GatherCall<RowLayout>& call,
                                  const IndexErrorSite& errors);
TORCH_OPS_KERNELS_API void gather(OnCuda on, const GatherCall<ElementLayout>& call,
                                  const IndexErrorSite& errors);

}  // namespace kernels
}  // namespace torch_ops
