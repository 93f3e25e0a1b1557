// The positions of the best values, and products.
#include "common/cuda/launch.cuh"
#include "common/cuda/scratch.h"
#include "scatter/cuda/best/arg.cuh"
#include "scatter/cuda/best/best.cuh"
#include "scatter/cuda/sorted/sorted_launch.cuh"
#include "scatter/sum/choose.h"

namespace torch_ops {
namespace {

// Calls use with the number of columns of a lane: as many as rows and pointer allow, up to 4 or 16
// bytes, or one.
template <class Value, class Use>
void with_columns(const Value* values, const RowLayout& layout, Use&& use) {
  constexpr int kWide = std::min(kVectorSize<Value>, 4);
  if (layout.inner % kWide == 0 && is_aligned(values, kWide * sizeof(Value))) {
    use(std::integral_constant<int, kWide>());
  } else {
    use(std::integral_constant<int, 1>());
  }
}

template <class T>
__global__ void fill_kernel(T* memory, T value, int64_t count) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    memory[i] = value;
  }
}

template <class Value, class Result>
void fill(const ReduceCall<Value, Result>& call, Result value) {
  const int64_t count = call.result_count();
  if (count == 0) return;
  TORCH_OPS_LAUNCH(fill_kernel<Result>, grid_x(count, kThreads), kThreads, 0, call.result, value,
                   count);
}

// ---- The best entries ---------------------------------------------------------------------------

template <class Value>
void find_sorted(const ReduceCall<Value, int64_t>& call, bool largest,
                 const IndexErrorSite& errors) {
  with_shape(call.layout, [&](const auto& shape) {
    const auto entries = entries_in_order(call, shape, errors);
    using Id = std::remove_const_t<std::remove_pointer_t<decltype(entries.keys)>>;
    with_columns(call.values, call.layout, [&](auto columns) {
      total_sorted<sorted::Best<columns(), Value, Id>>(call.values, call.result, shape, entries,
                                                       {largest}, call.layout.entries);
    });
  });
}

template <class Value>
void find_by_atomics(const ReduceCall<Value, int64_t>& call, bool largest,
                     const IndexErrorSite& errors) {
  using Key = reduce::Key<Value>;
  const RowLayout& layout = call.layout;
  const int64_t bytes = call.result_count() * sizeof(Key);
  const DeviceScratch memory(bytes);
  auto* keys = static_cast<Key*>(memory.get());
  TORCH_OPS_CUDA_CALL(cudaMemsetAsync(keys, 0, bytes, current_stream()));
  fill(call, layout.entries);
  auto* to = reinterpret_cast<unsigned long long*>(call.result);
  for (auto* kernel : {reduce::arg_kernel<false, Value>, reduce::arg_kernel<true, Value>}) {
    // Rows of more than 2^30 values are processed in parts.
    for (int64_t column = 0; column < layout.inner; column += RowGrid::kMaxChunk) {
      const int64_t columns = std::min(layout.inner - column, RowGrid::kMaxChunk);
      const reduce::ArgCall rows{RowGrid(layout.batch, layout.outer, layout.entries, columns),
                                 layout, call.rule, largest};
      const dim3 grid(grid_x(rows.grid.chunk_words(), kThreads * reduce::kUnroll),
                      grid_y(rows.grid.chunks));
      TORCH_OPS_LAUNCH(kernel, grid, kThreads, 0, call.values + column, IndexView{call.index},
                       keys + column, to + column, rows, errors);
    }
  }
}

}  // namespace

namespace kernels {

template <class Value>
void scatter_arg(OnCuda on, const ReduceCall<Value, int64_t>& call, bool largest,
                 const IndexErrorSite& errors) {
  const HostScope scope(on.program);
  if (call.values_count() == 0 || call.result_count() == 0) {
    return fill(call, call.layout.entries);
  }
  if (call.plan.rows.data != nullptr ||
      pays_to_sort_for_best(call.layout, current_device_limits())) {
    find_sorted(call, largest, errors);
  } else {
    find_by_atomics(call, largest, errors);
  }
}

template <class Value>
void scatter_prod(OnCuda on, const ReduceCall<Value, Value>& call, const IndexErrorSite& errors) {
  const HostScope scope(on.program);
  if (call.values_count() == 0 || call.result_count() == 0) {
    return fill(call, static_cast<Value>(1));
  }
  with_shape(call.layout, [&](const auto& shape) {
    const auto entries = entries_in_order(call, shape, errors);
    with_columns(call.values, call.layout, [&](auto columns) {
      total_sorted<Sums<columns(), SumOf<Value>, Times>>(call.values, call.result, shape, entries,
                                                         {}, static_cast<Value>(1));
    });
  });
}

#define INSTANTIATE_ARG(T) \
  template void scatter_arg(OnCuda, const ReduceCall<T, int64_t>&, bool, const IndexErrorSite&);
TORCH_OPS_FOR_EACH_ORDERED(INSTANTIATE_ARG)

#define INSTANTIATE_PROD(T) \
  template void scatter_prod(OnCuda, const ReduceCall<T, T>&, const IndexErrorSite&);
TORCH_OPS_FOR_EACH_SUMMED(INSTANTIATE_PROD)

}  // namespace kernels
}  // namespace torch_ops
