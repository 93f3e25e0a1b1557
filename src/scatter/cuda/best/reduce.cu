// The best values, their positions, and products.
#include <algorithm>

#include "common/cuda/launch.cuh"
#include "common/cuda/scratch.h"
#include "common/elementwise/joins.h"
#include "scatter/cuda/best/arg.cuh"
#include "scatter/cuda/best/best.cuh"
#include "scatter/cuda/best/values.cuh"
#include "scatter/cuda/privatized/privatized_launch.cuh"
#include "scatter/cuda/sorted/sorted_launch.cuh"
#include "scatter/sum/choose.h"

namespace torch_ops {
namespace {

// Columns of a lane, if rows and pointer allow: up to 4, or 16 bytes.
template <class Value>
constexpr int kWide = std::min(kVectorSize<Value>, 4);

// ---- The best entries ---------------------------------------------------------------------------

template <class Value>
void find_sorted(const ReduceCall<Value, int64_t>& call, bool largest,
                 const IndexErrorSite& errors) {
  with_shape(call.layout, [&](const auto& shape) {
    const auto entries = entries_in_order(call, shape, errors);
    using Id = std::remove_const_t<std::remove_pointer_t<decltype(entries.keys)>>;
    with_columns<kWide<Value>>(call.values, call.layout.inner, [&](auto columns) {
      total_sorted<sorted::Best<columns(), Value, Id>>(call.values, call.result, shape, entries,
                                                       {largest, call.layout.entries},
                                                       call.layout.entries);
    });
  });
}

// Calls launch(blocks, column, grid) for all rows of each slab, from a column on: those of more
// than 2^30 values are processed in parts. A thread has `unroll` words of V values.
template <int V = 1, class Launch>
void launch_rows(const RowLayout& layout, int64_t rows, int unroll, Launch&& launch) {
  for (int64_t column = 0; column < layout.inner; column += RowGrid::kMaxChunk) {
    const int64_t columns = std::min(layout.inner - column, RowGrid::kMaxChunk);
    const RowGrid grid(layout.batch, layout.outer, rows, columns / V);
    const dim3 blocks(grid_x(grid.chunk_words(), kThreads * unroll), grid_y(grid.chunks));
    launch(blocks, column, grid);
  }
}

template <class Value>
void find_by_atomics(const ReduceCall<Value, int64_t>& call, bool largest,
                     const IndexErrorSite& errors) {
  using Key = OrderedKey<Value>;
  const RowLayout& layout = call.layout;
  const int64_t bytes = call.result_count() * sizeof(Key);
  const DeviceScratch memory(bytes);
  auto* keys = static_cast<Key*>(memory.get());
  TORCH_OPS_CUDA_CALL(cudaMemsetAsync(keys, 0, bytes, current_stream()));
  fill(call, layout.entries);
  auto* to = reinterpret_cast<unsigned long long*>(call.result);
  for (auto* kernel : {reduce::arg_kernel<false, Value>, reduce::arg_kernel<true, Value>}) {
    launch_rows(layout, layout.entries, reduce::kUnroll,
                [&](dim3 blocks, int64_t column, const RowGrid& grid) {
                  const reduce::ArgCall rows{grid, layout, call.rule, largest};
                  TORCH_OPS_LAUNCH(kernel, blocks, kThreads, 0, call.values + column,
                                   IndexView{call.index}, keys + column, to + column, rows, errors);
                });
  }
}

template <class Value>
void find_positions(const ReduceCall<Value, int64_t>& call, bool largest,
                    const IndexErrorSite& errors) {
  using Best = privatized::Best<Value>;
  static_assert(sizeof(Best) == best_bytes(sizeof(Value)));
  const PrivatizedCut cut = cut_for_best(call.layout, sizeof(Value), current_device_limits());
  if (cut.fits) {
    total_privatized<Best>(call, cut, {largest, call.layout.entries}, errors);
  } else if (call.plan.rows.data != nullptr ||
             pays_to_sort_for_best(call.layout, current_device_limits())) {
    find_sorted(call, largest, errors);
  } else {
    find_by_atomics(call, largest, errors);
  }
}

// ---- The best values ----------------------------------------------------------------------------

template <class Value>
void take_by_position(const ReduceCall<Value, Value>& call, bool largest, reduce::Former former,
                      const IndexErrorSite& errors) {
  const RowLayout& layout = call.layout;
  const DeviceScratch memory(call.result_count() * sizeof(int64_t));
  auto* positions = static_cast<int64_t*>(memory.get());
  find_positions(
      ReduceCall<Value, int64_t>{call.values, call.index, layout, call.rule, positions, call.plan},
      largest, errors);
  launch_rows(layout, layout.axis_size, 1, [&](dim3 blocks, int64_t column, const RowGrid& grid) {
    TORCH_OPS_LAUNCH(reduce::take_kernel<Value>, blocks, kThreads, 0, call.values + column,
                     positions + column, call.result + column, largest, former, layout, grid);
  });
}

// What all values are better than, or as good as.
template <class T>
T worst(bool largest) {
  return largest ? Better<true>::identity<T>() : Better<false>::identity<T>();
}

template <class Value, class T>
void start(const ReduceCall<Value, Value>& call, T* best, bool largest, reduce::Former former) {
  const RowLayout& layout = call.layout;
  const bool marks_rows = former != reduce::Former::kCompared;
  const int64_t rows = marks_rows ? layout.batch * layout.axis_size : 0;
  const DeviceScratch memory(rows);
  auto* marks = static_cast<uint8_t*>(memory.get());
  if (marks_rows) {
    TORCH_OPS_CUDA_CALL(cudaMemsetAsync(marks, 0, rows, current_stream()));
    TORCH_OPS_LAUNCH(reduce::mark_kernel, grid_x(layout.batch * layout.entries, kThreads), kThreads,
                     0, IndexView{call.index}, marks, layout, call.rule);
  }
  with_columns<kWide<T>>(best, layout.inner, [&](auto columns) {
    launch_rows<columns()>(
        layout, layout.axis_size, 1, [&](dim3 blocks, int64_t column, const RowGrid& grid) {
          auto* kernel = reduce::start_kernel<columns(), Value, T>;
          TORCH_OPS_LAUNCH(kernel, blocks, kThreads, 0, marks, call.result + column, best + column,
                           worst<T>(largest), former, layout, grid);
        });
  });
}

template <class Value>
void find_by_comparing(const ReduceCall<Value, Value>& call, bool largest, reduce::Former former,
                       const IndexErrorSite& errors) {
  using T = reduce::Compared<Value>;
  constexpr bool kInPlace = std::is_same_v<T, Value>;
  const RowLayout& layout = call.layout;
  const int64_t count = call.result_count();
  const DeviceScratch memory(kInPlace ? 0 : count * sizeof(T));
  T* best = static_cast<T*>(memory.get());
  if constexpr (kInPlace) best = call.result;
  const auto for_entries = [&](auto* kernel) {
    launch_rows(layout, layout.entries, reduce::kUnroll,
                [&](dim3 blocks, int64_t column, const RowGrid& grid) {
                  const reduce::ArgCall rows{grid, layout, call.rule, largest};
                  TORCH_OPS_LAUNCH(kernel, blocks, kThreads, 0, call.values + column,
                                   IndexView{call.index}, best + column, call.result + column,
                                   worst<T>(largest), former, rows, errors);
                });
  };
  using reduce::Step;
  const bool few = !kInPlace && pays_to_start_few(layout, current_device_limits());
  if (few) {
    if (former == reduce::Former::kNone) {
      TORCH_OPS_CUDA_CALL(cudaMemsetAsync(call.result, 0, count * sizeof(Value), current_stream()));
    }
    for_entries(reduce::improve_kernel<Step::kStart, Value, T>);
  } else if (!kInPlace || former != reduce::Former::kCompared) {
    start(call, best, largest, former);
  }
  for_entries(reduce::improve_kernel<Step::kImprove, Value, T>);
  if constexpr (!kInPlace) {
    if (few) return for_entries(reduce::improve_kernel<Step::kRound, Value, T>);
    auto* kernel = reduce::round_kernel<Value, T>;
    TORCH_OPS_LAUNCH(kernel, grid_x(count, kThreads), kThreads, 0, best, call.result, count);
  }
}

template <class Value>
void find_values(const ReduceCall<Value, Value>& call, bool largest, reduce::Former former,
                 const IndexErrorSite& errors) {
  if (call.result_count() == 0) return;
  if (call.values_count() == 0) {
    if (former == reduce::Former::kNone) fill(call, Value());
    return;
  }
  const bool is_planned = call.plan.rows.data != nullptr;
  const DeviceLimits device = current_device_limits();
  if (pays_to_sort_for_values(call.layout, is_planned, device) ||
      cut_for_best(call.layout, sizeof(Value), device).fits) {
    take_by_position(call, largest, former, errors);
  } else {
    find_by_comparing(call, largest, former, errors);
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
  find_positions(call, largest, errors);
}

template <class Value>
void scatter_best(OnCuda on, const ReduceCall<Value, Value>& call, bool largest,
                  const IndexErrorSite& errors) {
  const HostScope scope(on.program);
  find_values(call, largest, reduce::Former::kNone, errors);
}

template <class Value>
void scatter_into(OnCuda on, const ReduceCall<Value, Value>& call, IntoRule rule, bool include_self,
                  const IndexErrorSite& errors) {
  const HostScope scope(on.program);
  find_values(call, rule == IntoRule::kLargest,
              include_self ? reduce::Former::kCompared : reduce::Former::kReplaced, errors);
}

template <class Value>
void scatter_prod(OnCuda on, const ReduceCall<Value, Value>& call, const IndexErrorSite& errors) {
  const HostScope scope(on.program);
  if (call.values_count() == 0 || call.result_count() == 0) {
    return fill(call, static_cast<Value>(1));
  }
  with_shape(call.layout, [&](const auto& shape) {
    const auto entries = entries_in_order(call, shape, errors);
    with_columns<kWide<Value>>(call.values, call.layout.inner, [&](auto columns) {
      total_sorted<Sums<columns(), SumOf<Value>, Times>>(call.values, call.result, shape, entries,
                                                         {}, static_cast<Value>(1));
    });
  });
}

#define INSTANTIATE_ORDERED(T)                                                                   \
  template void scatter_arg(OnCuda, const ReduceCall<T, int64_t>&, bool, const IndexErrorSite&); \
  template void scatter_best(OnCuda, const ReduceCall<T, T>&, bool, const IndexErrorSite&);      \
  template void scatter_into(OnCuda, const ReduceCall<T, T>&, IntoRule, bool,                    \
                             const IndexErrorSite&);
TORCH_OPS_FOR_EACH_ORDERED(INSTANTIATE_ORDERED)

#define INSTANTIATE_PROD(T) \
  template void scatter_prod(OnCuda, const ReduceCall<T, T>&, const IndexErrorSite&);
TORCH_OPS_FOR_EACH_SUMMED(INSTANTIATE_PROD)

}  // namespace kernels
}  // namespace torch_ops
