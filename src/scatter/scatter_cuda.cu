#include <ATen/Dispatch.h>

#include "common/indexing.h"
#include "common/launch.cuh"
#include "scatter/scatter.h"
#include "scatter/scatter_kernels.cuh"

namespace torch_ops {

void scatter_add_cuda(const at::Tensor& values, const at::Tensor& index, const RowLayout& layout,
                      const at::Tensor& sums) {
  if (values.numel() == 0) return;
  const c10::cuda::CUDAGuard guard(sums.device());
  TORCH_OPS_DISPATCH_INDEX(index, "scatter_add", [&] {
    TORCH_OPS_DISPATCH_VALUES(values.scalar_type(), [&] {
      // Rows of more than 2^30 values are added in parts.
      for (int64_t column = 0; column < layout.inner; column += RowGrid::kMaxChunk) {
        const int64_t width = std::min(layout.inner - column, RowGrid::kMaxChunk);
        const RowGrid grid(layout.batch, layout.outer, layout.entries, width);
        const dim3 blocks(grid_x(grid.chunk_words(), kThreads * kScatterUnroll),
                          static_cast<unsigned>(std::min(grid.chunks, kMaxGridYZ)));
        TORCH_OPS_LAUNCH(scatter_add_kernel, blocks, kThreads,
                         static_cast<const value_t*>(values.const_data_ptr()) + column,
                         index.const_data_ptr<index_t>(),
                         static_cast<sum_t*>(sums.mutable_data_ptr()) + column, layout, grid,
                         layout.inner);
      }
    });
  });
}

}  // namespace torch_ops
