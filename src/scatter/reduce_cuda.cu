#include <ATen/Dispatch.h>

#include "common/index_errors.h"
#include "common/indexing.h"
#include "common/launch.cuh"
#include "scatter/reduce.h"
#include "scatter/reduce_arg.cuh"
#include "scatter/scatter.h"
#include "scatter/scatter_best.cuh"
#include "scatter/scatter_path.h"
#include "scatter/scatter_planned.cuh"
#include "scatter/scatter_sorted_launch.cuh"

namespace torch_ops {
namespace {

// Calls use(shape) with the shape of a call in the narrowest type that numbers its entries, rows
// and values a row.
template <class Use>
void with_shape(const RowLayout& layout, Use&& use) {
  const int64_t most =
      std::max({layout.slabs() * layout.entries, layout.slabs() * layout.axis_size, layout.inner});
  if (most < INT32_MAX) {
    use(sorted::Shape<uint32_t>{layout.batch, layout.outer, layout.entries, layout.axis_size,
                                layout.inner});
  } else {
    use(sorted::Shape<uint64_t>{layout.batch, layout.outer, layout.entries, layout.axis_size,
                                layout.inner});
  }
}

// Calls use with how many columns a lane has: as many as rows and pointer allow, up to 4 or 16
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

// ---- The best entries ---------------------------------------------------------------------------

template <class Value>
void find_sorted(const Value* values, const at::Tensor& index, const RowLayout& layout,
                 const IndexRule& rule, bool largest, const Plan* plan, int64_t* positions,
                 const IndexErrorSite& errors) {
  with_shape(layout, [&](const auto& shape) {
    const auto entries = entries_in_order(plan, index, layout, rule, shape, errors);
    using Id = std::remove_const_t<std::remove_pointer_t<decltype(entries.keys)>>;
    const auto find = [&](auto columns) {
      total_sorted<sorted::Best<columns(), Value, Id>>(values, positions, shape, entries, {largest},
                                                       layout.entries);
    };
    with_columns(values, layout, find);
  });
}

template <class Value>
void find_by_atomics(const Value* values, const at::Tensor& index, const RowLayout& layout,
                     const IndexRule& rule, bool largest, const at::Tensor& positions,
                     const IndexErrorSite& errors) {
  using Key = reduce::Key<Value>;
  const size_t bytes = positions.numel() * sizeof(Key);
  const c10::DataPtr memory = c10::cuda::CUDACachingAllocator::get()->allocate(bytes);
  auto* keys = static_cast<Key*>(memory.get());
  C10_CUDA_CHECK(cudaMemsetAsync(keys, 0, bytes, at::cuda::getCurrentCUDAStream()));
  auto* to = reinterpret_cast<unsigned long long*>(positions.mutable_data_ptr<int64_t>());
  for (auto* kernel : {reduce::arg_kernel<false, Value>, reduce::arg_kernel<true, Value>}) {
    // Rows of more than 2^30 values are looked at in parts.
    for (int64_t column = 0; column < layout.inner; column += RowGrid::kMaxChunk) {
      const int64_t columns = std::min(layout.inner - column, RowGrid::kMaxChunk);
      const reduce::ArgCall call{RowGrid(layout.batch, layout.outer, layout.entries, columns),
                                 layout, rule, largest};
      const dim3 grid(grid_x(call.grid.chunk_words(), kThreads * reduce::kUnroll),
                      grid_y(call.grid.chunks));
      TORCH_OPS_LAUNCH(kernel, grid, kThreads, 0, values + column, view_index(index), keys + column,
                       to + column, call, errors);
    }
  }
}

}  // namespace

void scatter_arg_cuda(const at::Tensor& values, const at::Tensor& index, const RowLayout& layout,
                      const IndexRule& rule, bool largest, const Plan* plan,
                      const at::Tensor& positions) {
  const c10::cuda::CUDAGuard guard(positions.device());
  IndexErrorCall errors = before_launch("scatter", index, layout, rule.mode());
  const bool nothing = values.numel() == 0 || positions.numel() == 0;
  const bool sort = plan != nullptr || pays_to_sort_for_best(layout);
  if (nothing || !sort) positions.fill_(layout.entries);
  if (nothing) return;
  TORCH_OPS_DISPATCH_ORDERED(values.scalar_type(), [&] {
    const auto* from = values.const_data_ptr<value_t>();
    if (sort) {
      find_sorted(from, index, layout, rule, largest, plan, positions.mutable_data_ptr<int64_t>(),
                  errors);
    } else {
      find_by_atomics(from, index, layout, rule, largest, positions, errors);
    }
  });
  errors.end();
}

// ---- Products -----------------------------------------------------------------------------------

void scatter_prod_cuda(const at::Tensor& values, const at::Tensor& index, const RowLayout& layout,
                       const IndexRule& rule, const Plan* plan, const at::Tensor& products) {
  const c10::cuda::CUDAGuard guard(products.device());
  IndexErrorCall errors = before_launch("scatter", index, layout, rule.mode());
  if (values.numel() == 0) products.fill_(1);
  if (values.numel() == 0 || products.numel() == 0) return;
  TORCH_OPS_DISPATCH_VALUES(values.scalar_type(), [&] {
    const auto* from = static_cast<const value_t*>(values.const_data_ptr());
    auto* to = static_cast<value_t*>(products.mutable_data_ptr());
    with_shape(layout, [&](const auto& shape) {
      const auto entries = entries_in_order(plan, index, layout, rule, shape, errors);
      with_columns(from, layout, [&](auto columns) {
        total_sorted<Sums<columns(), sum_t, Times>>(from, to, shape, entries, {},
                                                    static_cast<value_t>(1));
      });
    });
  });
  errors.end();
}

}  // namespace torch_ops
