#include <ATen/Dispatch.h>
#include <c10/cuda/CUDACachingAllocator.h>

#include "common/index_errors.h"
#include "common/indexing.h"
#include "common/launch.cuh"
#include "scatter/reduce.h"
#include "scatter/reduce_arg.cuh"

namespace torch_ops {

void scatter_arg_cuda(const at::Tensor& values, const at::Tensor& index, const RowLayout& layout,
                      const IndexRule& rule, bool largest, const at::Tensor& positions) {
  const c10::cuda::CUDAGuard guard(positions.device());
  const IndexErrorSite errors = before_launch("scatter", index, layout, rule.mode());
  positions.fill_(layout.entries);
  if (values.numel() == 0 || positions.numel() == 0) return;
  const IndexView entries{index.const_data_ptr(), static_cast<int>(index.element_size())};
  auto* to = reinterpret_cast<unsigned long long*>(positions.mutable_data_ptr<int64_t>());
  TORCH_OPS_DISPATCH_ORDERED(values.scalar_type(), [&] {
    using Key = reduce::Key<value_t>;
    const size_t bytes = positions.numel() * sizeof(Key);
    const c10::DataPtr memory = c10::cuda::CUDACachingAllocator::get()->allocate(bytes);
    auto* keys = static_cast<Key*>(memory.get());
    C10_CUDA_CHECK(cudaMemsetAsync(keys, 0, bytes, at::cuda::getCurrentCUDAStream()));
    const auto* from = values.const_data_ptr<value_t>();
    for (auto* kernel : {reduce::arg_kernel<false, value_t>, reduce::arg_kernel<true, value_t>}) {
      // Rows of more than 2^30 values are looked at in parts.
      for (int64_t column = 0; column < layout.inner; column += RowGrid::kMaxChunk) {
        const int64_t columns = std::min(layout.inner - column, RowGrid::kMaxChunk);
        const reduce::ArgCall call{RowGrid(layout.batch, layout.outer, layout.entries, columns),
                                   layout, rule, largest};
        const dim3 grid(grid_x(call.grid.chunk_words(), kThreads), grid_y(call.grid.chunks));
        TORCH_OPS_LAUNCH(kernel, grid, kThreads, 0, from + column, entries, keys + column,
                         to + column, call, errors);
      }
    }
  });
  after_launch();
}

}  // namespace torch_ops
