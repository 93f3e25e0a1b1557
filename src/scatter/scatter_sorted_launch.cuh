// The launches of the sorted way (scatter_sorted.cuh), which scatter_add and scatter share.
#pragma once

#include <c10/cuda/CUDACachingAllocator.h>

#include <utility>

#include "common/launch.cuh"
#include "scatter/scatter_sorted.cuh"

namespace torch_ops {

inline IndexView view_index(const at::Tensor& index) {
  return {index.const_data_ptr(), static_cast<int>(index.element_size())};
}

// Keys and positions in the order of the keys, and the memory that they lie in, if it is our own.
template <class Id>
struct SortedEntries {
  const Id* keys;
  const Id* positions;
  c10::DataPtr memory;
};

template <class Id>
SortedEntries<Id> sort_entries(const at::Tensor& index, const RowLayout& layout,
                               const IndexRule& rule, const sorted::Shape<Id>& shape,
                               const IndexErrorSite& errors) {
  using namespace sorted;
  const int64_t count = shape.all_entries();
  Pieces sizes{nullptr};
  SortWorkspace<Id>(shape, sizes);
  c10::DataPtr memory = c10::cuda::CUDACachingAllocator::get()->allocate(sizes.bytes);
  Pieces pieces{static_cast<char*>(memory.get())};
  SortWorkspace<Id> work(shape, pieces);
  const auto stream = at::cuda::getCurrentCUDAStream();

  TORCH_OPS_LAUNCH(keys_kernel<Id>, grid_x(count, sorted::kThreads), sorted::kThreads, 0,
                   view_index(index), shape, layout.index_batch_stride, layout.index_entry_stride,
                   rule, work.keys[0], work.positions[0], errors);
  cub::DoubleBuffer<Id> keys(work.keys[0], work.keys[1]);
  cub::DoubleBuffer<Id> positions(work.positions[0], work.positions[1]);
  C10_CUDA_CHECK(cub::DeviceRadixSort::SortPairs(work.sort, work.sort_bytes, keys, positions, count,
                                                 0, shape.key_bits(), stream));
  return {keys.Current(), positions.Current(), std::move(memory)};
}

// Writes the totals of sorted entries to `result`; `empty` to what has no entries.
template <class Total, class Value, class Result, class Id>
void total_sorted(const Value* values, Result* result, const sorted::Shape<Id>& shape,
                  const SortedEntries<Id>& entries, typename Total::Options options, Result empty) {
  constexpr int V = Total::kColumns;
  const RowPieces split(shape.inner, V);
  using Work = sorted::SumWorkspace<Id, typename Total::Part>;
  // Not at::empty: that fills what it gives under torch.use_deterministic_algorithms(True).
  sorted::Pieces sizes{nullptr};
  Work(shape, split.lanes, sizes);
  const c10::DataPtr memory = c10::cuda::CUDACachingAllocator::get()->allocate(sizes.bytes);
  sorted::Pieces pieces{static_cast<char*>(memory.get())};
  const Work work(shape, split.lanes, pieces);

  const auto stream = at::cuda::getCurrentCUDAStream();
  C10_CUDA_CHECK(
      cudaMemsetAsync(work.touched, 0, work.touched_words(shape) * sizeof(uint32_t), stream));
  const unsigned slices = grid_y(shape.outer);
  const int64_t tiles = shape.tiles(split.lanes);
  auto* sum_tiles = sorted::sum_tiles_kernel<Total, Value, Result, Id>;
  TORCH_OPS_LAUNCH(sum_tiles, dim3(grid_x(tiles * split.pieces, 1), slices), sorted::kThreads, 0,
                   values, entries.keys, entries.positions, result, work.partials, work.touched,
                   shape, split, options);
  if (tiles > 1) {
    const RowPieces join_split(shape.inner, V, sorted::kJoinLanes);
    const int64_t join_blocks =
        ceil_div(tiles, join_split.groups(sorted::kJoinThreads)) * join_split.pieces;
    auto* join = sorted::join_kernel<Total, Result, Id>;
    TORCH_OPS_LAUNCH(join, dim3(grid_x(join_blocks, 1), slices), sorted::kJoinThreads, 0,
                     entries.keys, work.partials, result, shape, shape.tile_entries(split.lanes),
                     tiles, join_split);
  }
  auto* fill_rest = sorted::fill_rest_kernel<V, Result, Id>;
  TORCH_OPS_LAUNCH(fill_rest, dim3(grid_x(shape.all_rows(), sorted::kThreads), slices),
                   sorted::kThreads, 0, work.touched, result, shape, split, empty);
}

}  // namespace torch_ops
