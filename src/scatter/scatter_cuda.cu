#include <ATen/AccumulateType.h>
#include <ATen/Dispatch.h>
#include <c10/cuda/CUDACachingAllocator.h>

#include "common/index_errors.h"
#include "common/indexing.h"
#include "common/launch.cuh"
#include "scatter/scatter.h"
#include "scatter/scatter_kernels.cuh"
#include "scatter/scatter_sorted.cuh"

namespace torch_ops {

void scatter_add_cuda(const at::Tensor& values, const at::Tensor& index, const RowLayout& layout,
                      const at::Tensor& sums) {
  const c10::cuda::CUDAGuard guard(sums.device());
  const IndexErrorSite errors = before_launch("scatter_add", index, layout);
  if (values.numel() == 0) return;
  const int64_t l2_bytes = at::cuda::getCurrentDeviceProperties()->l2CacheSize;
  TORCH_OPS_DISPATCH_INDEX(index, "scatter_add", [&] {
    TORCH_OPS_DISPATCH_VALUES(values.scalar_type(), [&] {
      // Rows of more than 2^30 values are added in parts.
      for (int64_t column = 0; column < layout.inner; column += RowGrid::kMaxChunk) {
        const int64_t width = std::min(layout.inner - column, RowGrid::kMaxChunk);
        const RowGrid grid(layout.batch, layout.outer, layout.entries, width);
        const int64_t blocks = ceil_div(grid.chunk_words(), kThreads * kScatterUnroll);
        // Where the table stays in the L2 cache, blocks of different batches run side by side: the
        // rows that many entries of one batch name would hold up each other.
        const bool chunks_first =
            static_cast<int64_t>(sums.nbytes()) <= l2_bytes / 2 && blocks <= kMaxGridYZ;
        const dim3 shape = chunks_first
                               ? dim3(grid_x(grid.chunks, 1), blocks)
                               : dim3(grid_x(blocks, 1), std::min(grid.chunks, kMaxGridYZ));
        const bool merge = width < 32 && (width & (width - 1)) == 0 && sums.numel() < UINT32_MAX;
        auto* kernel = merge ? scatter_add_kernel<true, value_t, sum_t, index_t>
                             : scatter_add_kernel<false, value_t, sum_t, index_t>;
        TORCH_OPS_LAUNCH(kernel, shape, kThreads, 0,
                         static_cast<const value_t*>(values.const_data_ptr()) + column,
                         index.const_data_ptr<index_t>(),
                         static_cast<sum_t*>(sums.mutable_data_ptr()) + column, layout, grid,
                         layout.inner, chunks_first, errors);
      }
    });
  });
  after_launch();
}

namespace {

template <int V, class Value, class Sum, class Id>
void sum_sorted(const Value* values, Value* result, const sorted::Shape<Id>& shape,
                const sorted::Workspace<Id, Sum>& work, const Id* keys, const Id* positions) {
  // As many lanes as a row has vectors, 32 at the most; longer rows are several pieces.
  const int64_t vectors = ceil_div(shape.inner, V);
  int lanes = 1;
  while (lanes < 32 && lanes < vectors) lanes *= 2;
  const auto pieces = static_cast<int>(ceil_div(vectors, lanes));
  const auto slices = static_cast<unsigned>(std::min(shape.outer, kMaxGridYZ));

  const int64_t tasks = ceil_div(shape.all_rows(), sorted::kRowsAtOnce) * pieces;
  const dim3 blocks(static_cast<unsigned>(ceil_div(tasks * lanes, sorted::kThreads)), slices);
  auto* rows = sorted::rows_kernel<V, Value, Sum, Id>;
  TORCH_OPS_LAUNCH(rows, blocks, sorted::kThreads, 0, values, positions, work.bounds, result, shape,
                   lanes, pieces);

  const auto grid = [&](int64_t x, int y) {
    return dim3(static_cast<unsigned>(x), static_cast<unsigned>(std::min<int64_t>(y, kMaxGridYZ)),
                slices);
  };
  auto* sum_tiles = sorted::tiles_kernel<V, Value, Sum, Id>;
  TORCH_OPS_LAUNCH(sum_tiles, grid(shape.tiles(), pieces), sorted::kThreads, 0, values, keys,
                   positions, work.bounds, work.partials, shape, lanes, pieces);
  // Few lanes a group: one block sums all tiles of a run, and has the more groups for it.
  const int join_lanes = std::min(lanes, 8);
  const auto join_pieces = static_cast<int>(ceil_div(vectors, join_lanes));
  auto* join = sorted::join_kernel<V, Value, Sum, Id>;
  TORCH_OPS_LAUNCH(join, grid(ceil_div(shape.tiles(), sorted::kJoinTiles), join_pieces),
                   sorted::kJoinThreads, 0, keys, work.bounds, work.partials, result, shape,
                   join_lanes, join_pieces);
}

template <class Id, class Value, class Sum>
void scatter_add_sorted(const at::Tensor& values, const at::Tensor& index, const RowLayout& layout,
                        const at::Tensor& result, const IndexErrorSite& errors) {
  using namespace sorted;
  const Shape<Id> shape{layout.batch, layout.outer, layout.entries, layout.axis_size, layout.inner};
  const int64_t count = shape.all_entries();
  const auto bytes = static_cast<int64_t>(Workspace<Id, Sum>(shape, nullptr).bytes);
  // Not at::empty: that fills what it gives under torch.use_deterministic_algorithms(True).
  const c10::DataPtr memory = c10::cuda::CUDACachingAllocator::get()->allocate(bytes);
  Workspace<Id, Sum> work(shape, memory.get());
  const auto stream = at::cuda::getCurrentCUDAStream();

  const unsigned blocks = grid_x(count, sorted::kThreads);
  TORCH_OPS_DISPATCH_INDEX(index, "scatter_add", [&] {
    auto* make_keys = keys_kernel<Id, index_t>;
    TORCH_OPS_LAUNCH(make_keys, blocks, sorted::kThreads, 0, index.const_data_ptr<index_t>(), shape,
                     layout.index_batch_stride, layout.index_entry_stride, work.keys[0],
                     work.positions[0], errors);
  });
  cub::DoubleBuffer<Id> keys(work.keys[0], work.keys[1]);
  cub::DoubleBuffer<Id> positions(work.positions[0], work.positions[1]);
  C10_CUDA_CHECK(cub::DeviceRadixSort::SortPairs(work.sort, work.sort_bytes, keys, positions, count,
                                                 0, shape.key_bits(), stream));
  C10_CUDA_CHECK(cudaMemsetAsync(work.bounds, 0, shape.all_rows() * sizeof(Bounds<Id>), stream));
  auto* find_bounds = bounds_kernel<Id>;
  TORCH_OPS_LAUNCH(find_bounds, blocks, sorted::kThreads, 0, keys.Current(), count,
                   static_cast<Id>(shape.all_rows()), work.bounds);

  const auto* from = static_cast<const Value*>(values.const_data_ptr());
  auto* to = static_cast<Value*>(result.mutable_data_ptr());
  constexpr int kWide = kVectorSize<Value>;
  if (layout.inner % kWide == 0 && is_aligned(from, kVectorBytes)) {
    sum_sorted<kWide, Value, Sum, Id>(from, to, shape, work, keys.Current(), positions.Current());
  } else {
    sum_sorted<1, Value, Sum, Id>(from, to, shape, work, keys.Current(), positions.Current());
  }
}

}  // namespace

void scatter_add_sorted_cuda(const at::Tensor& values, const at::Tensor& index,
                             const RowLayout& layout, const at::Tensor& result) {
  const c10::cuda::CUDAGuard guard(result.device());
  IndexErrorSite errors = before_launch("scatter_add", index, layout);
  errors.outer = 1;  // the kernel that reads the index counts its entries, not the values' rows
  if (values.numel() == 0) {
    result.zero_();
    return;
  }
  if (result.numel() == 0) return;
  const int64_t most =
      std::max({layout.batch * layout.entries, layout.batch * layout.axis_size, layout.inner});
  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kHalf, at::kBFloat16, values.scalar_type(), "scatter_add", [&] {
        using sum_t = at::acc_type<scalar_t, /*is_cuda=*/true>;
        if (most < INT32_MAX) {
          scatter_add_sorted<uint32_t, scalar_t, sum_t>(values, index, layout, result, errors);
        } else {
          scatter_add_sorted<uint64_t, scalar_t, sum_t>(values, index, layout, result, errors);
        }
      });
  after_launch();
}

}  // namespace torch_ops
