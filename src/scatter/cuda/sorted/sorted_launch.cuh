// The launches of the sorted way (sorted.cuh), which scatter_add and scatter share.
#pragma once

#include <optional>
#include <utility>

#include "common/cuda/launch.cuh"
#include "common/cuda/scratch.h"
#include "scatter/cuda/sorted/sorted.cuh"
#include "scatter/scatter_launch.h"

namespace torch_ops {

// Calls use(shape) with the shape of a call in the narrowest type that can count its entries, rows
// and values per row.
template <class Use>
void with_shape(const RowLayout& layout, Use&& use) {
  const int64_t most =
      std::max({layout.slabs() * layout.entries, layout.slabs() * layout.axis_size, layout.inner});
  if (most < INT32_MAX) {
    use(sorted::Shape<uint32_t>(layout));
  } else {
    use(sorted::Shape<uint64_t>(layout));
  }
}

// Calls use with the number of columns of a lane, of rows of `inner` values: kWide if rows and
// pointer allow it, otherwise one.
template <int kWide, class Value, class Use>
void with_columns(const Value* values, int64_t inner, Use&& use) {
  if (inner % kWide == 0 && is_aligned(values, kWide * sizeof(Value))) {
    use(std::integral_constant<int, kWide>());
  } else {
    use(std::integral_constant<int, 1>());
  }
}

// Keys and positions in the order of the keys, and their memory, if it is our own.
template <class Id>
struct SortedEntries {
  const Id* keys;
  const Id* positions;
  std::optional<DeviceScratch> memory;
};

// Sorts the entries of an index (sort.cu).
template <class Id>
SortedEntries<Id> sort_entries(const IndexArray& index, const RowLayout& layout,
                               const IndexRule& rule, const sorted::Shape<Id>& shape,
                               const IndexErrorSite& errors);

// A plan's entries. Its arrays are used directly if rows and values are counted alike.
template <class Id>
SortedEntries<Id> planned_entries(const PlanArrays& plan, const sorted::Shape<Id>& shape);

// Those of a call: of its plan, or sorted here.
template <class Value, class Result, class Id>
SortedEntries<Id> entries_in_order(const ReduceCall<Value, Result>& call,
                                   const sorted::Shape<Id>& shape, const IndexErrorSite& errors) {
  return call.plan.rows.data != nullptr
             ? planned_entries(call.plan, shape)
             : sort_entries(call.index, call.layout, call.rule, shape, errors);
}

template <class T>
__global__ void fill_kernel(T* memory, T value, int64_t count) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    memory[i] = value;
  }
}

// Of a call without values.
template <class Value, class Result>
void fill(const ReduceCall<Value, Result>& call, Result value) {
  const int64_t count = call.result_count();
  if (count == 0) return;
  TORCH_OPS_LAUNCH(fill_kernel<Result>, grid_x(count, kThreads), kThreads, 0, call.result, value,
                   count);
}

// Writes the totals of sorted entries to the rows that have some. A bit for each of these is set in
// `touched`, if given.
template <class Total, class Rows, class Value, class Id>
void total_runs(const Value* values, typename Rows::Of* result, const sorted::Shape<Id>& shape,
                const Id* keys, const Id* positions, typename Total::Options options,
                uint32_t* touched) {
  constexpr int V = Total::kColumns;
  using Part = typename Total::Part;
  const RowPieces split(shape.inner, V);
  const unsigned slices = grid_y(shape.outer);
  const int64_t tiles = shape.tiles(split.lanes);
  // Two totals per tile: of the run that enters it and of the one that leaves.
  const DeviceScratch memory(2 * tiles * shape.outer * shape.inner * sizeof(Part));
  auto* const partials = static_cast<Part*>(memory.get());
  auto* sum_tiles = sorted::sum_tiles_kernel<Total, Value, Rows, Id>;
  TORCH_OPS_LAUNCH(sum_tiles, dim3(grid_x(tiles * split.pieces, 1), slices), sorted::kThreads, 0,
                   values, keys, positions, result, partials, touched, shape, split, options);
  if (tiles > 1) {
    const RowPieces join_split(shape.inner, V, sorted::kJoinLanes);
    const int64_t join_blocks =
        ceil_div(tiles, join_split.groups(sorted::kJoinThreads)) * join_split.pieces;
    auto* join = sorted::join_kernel<Total, Rows, Id>;
    TORCH_OPS_LAUNCH(join, dim3(grid_x(join_blocks, 1), slices), sorted::kJoinThreads, 0, keys,
                     partials, result, shape, shape.tile_entries(split.lanes), tiles, join_split,
                     options);
  }
}

// Writes the totals of sorted entries to `result`; `empty` to rows without entries.
template <class Total, class Value, class Result, class Id>
void total_sorted(const Value* values, Result* result, const sorted::Shape<Id>& shape,
                  const SortedEntries<Id>& entries, typename Total::Options options, Result empty) {
  constexpr int V = Total::kColumns;
  const int64_t words = ceil_div(shape.all_rows(), 32);
  const DeviceScratch memory(words * sizeof(uint32_t));
  auto* const touched = static_cast<uint32_t*>(memory.get());
  TORCH_OPS_CUDA_CALL(cudaMemsetAsync(touched, 0, words * sizeof(uint32_t), current_stream()));
  total_runs<Total, sorted::RowsInOrder<Result>>(values, result, shape, entries.keys,
                                                 entries.positions, options, touched);
  auto* fill_rest = sorted::fill_rest_kernel<V, Result, Id>;
  TORCH_OPS_LAUNCH(fill_rest, dim3(grid_x(shape.all_rows(), sorted::kThreads), grid_y(shape.outer)),
                   sorted::kThreads, 0, touched, result, shape, RowPieces(shape.inner, V), empty);
}

}  // namespace torch_ops
