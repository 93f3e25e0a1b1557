#include "c_api/gpu/parts.h"

#include "common/cuda/launch.cuh"
#include "common/indexing/index_error.cuh"
#include "common/indexing/index_view.cuh"
#include "gather/cuda/gather_part.cuh"

namespace torch_ops::gpu {
namespace {

__global__ void localize_kernel(IndexView index, int64_t entries, int64_t first, int64_t rows,
                                int64_t whole, int64_t* __restrict__ part,
                                const __grid_constant__ IndexErrorSite errors) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t n = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; n < entries; n += step) {
    const int64_t entry = index[n];
    part[n] = entry >= first && entry < first + rows ? entry - first : rows;
    if (first == 0 && !in_range(entry, whole)) record_bad_entry(errors, n, entry);
  }
}

}  // namespace

void launch_gather_part(const RowCall& call, int64_t first, int64_t whole,
                        const IndexErrorSite& errors) {
  const IndexView view{call.index_array()};
  const int64_t words = call.entries * call.inner;
  dispatch_size(call.element_bytes, [&](auto word) {
    using Word = decltype(word);
    if constexpr (sizeof(Word) <= sizeof(uint64_t)) {
      TORCH_OPS_LAUNCH(gather_part_kernel<Word>, grid_x(words, kThreads), kThreads, 0,
                       static_cast<const Word*>(call.from), view, static_cast<Word*>(call.to),
                       call.entries, call.inner, first, first + call.axis_size, whole, errors);
    }
  });
}

void launch_localize(const RowCall& call, int64_t first, int64_t whole, int64_t* part,
                     const IndexErrorSite& errors) {
  TORCH_OPS_LAUNCH(localize_kernel, grid_x(call.entries, kThreads), kThreads, 0,
                   IndexView{call.index_array()}, call.entries, first, call.axis_size, whole, part,
                   errors);
}

}  // namespace torch_ops::gpu
