// Sums by atomics: launches the kernels of atomic.cuh and streamed.cuh on a grid.
#include <algorithm>
#include <cstdint>

#include "common/cuda/launch.cuh"
#include "common/cuda/vectorized.cuh"
#include "common/indexing/index_error.cuh"
#include "common/indexing/index_view.cuh"
#include "scatter/cuda/atomic/atomic.cuh"
#include "scatter/cuda/atomic/streamed.cuh"
#include "scatter/sum/ways.cuh"

namespace torch_ops {
namespace {

template <class Value>
struct Addition {
  using Sum = SumOf<Value>;
  const ReduceCall<Value, Sum>& call;
  const SumPlan& plan;
  bool fresh;  // sums are zeros, which the kernel before writes; then this one begins early
  const IndexErrorSite& errors;

  void run() const {
    switch (plan.way()) {
      case SumWay::kStaged:
        return plan.adjacent ? staged<true>() : staged<false>();
      case SumWay::kEntries:
        return plan.adjacent ? entries<true>() : entries<false>();
      case SumWay::kValues: {
        const atomic::AtomicCall grid = make_grid(call.layout.inner);
        return launch(atomic::add_values_kernel<Value, Sum>, grid, kLaneEntries, 1, 0);
      }
      case SumWay::kTiles:
        if constexpr (std::is_same_v<Sum, float>) return tiles();
        break;
      case SumWay::kStreamed:
        return streamed();
      default:
        break;
    }
    fail_without_kernel(ability(plan.way()).name);
  }

 private:
  static constexpr int64_t kLaneEntries = atomic::kThreads * atomic::kUnroll;  // of a block

  // What the kernels are launched with: `words` of the grid a row.
  atomic::AtomicCall make_grid(int64_t words) const {
    const RowLayout& layout = call.layout;
    return {RowGrid(layout.batch, layout.outer, layout.entries, words), false,
            call.result_count() > UINT32_MAX, call.rule};
  }

  template <class... Parameters, class... Arguments>
  void launch_on(void (*kernel)(Parameters...), dim3 grid, int threads, int64_t shared_bytes,
                 const Arguments&... arguments) const {
    const IndexView index{call.index};
    if (fresh) {
      launch_early(kernel, grid, dim3(threads), shared_bytes, call.values, index, call.result,
                   call.layout, arguments..., errors);
    } else {
      TORCH_OPS_LAUNCH(kernel, grid, threads, shared_bytes, call.values, index, call.result,
                       call.layout, arguments..., errors);
    }
  }

  // A block has so many of the grid's words, in so many pieces of a row. Blocks of different chunks
  // run side by side, as far as their parts of the table stay in the L2 cache: the rows that many
  // entries of one batch name would hold up each other.
  template <class... Parameters, class... Arguments>
  void launch(void (*kernel)(Parameters...), atomic::AtomicCall grid, int64_t words, int64_t pieces,
              int64_t shared_bytes, const Arguments&... arguments) const {
    const DeviceLimits device = current_device_limits();
    const int64_t blocks = ceil_div(grid.grid.chunk_words(), words) * pieces;
    const int64_t chunks = grid.grid.chunks;
    const auto table_bytes = call.result_count() * static_cast<int64_t>(sizeof(Sum));
    const int64_t chunk_bytes = std::max<int64_t>(table_bytes / chunks, 1);
    const int64_t together =
        table_bytes <= device.l2_bytes / 2 ? chunks : parts_together(chunks, chunk_bytes, device);
    grid.chunks_in_x = blocks <= kMaxGridYZ && (together > 1 || chunks == 1);
    const dim3 shape = grid.chunks_in_x ? dim3(grid_x(together, 1), static_cast<unsigned>(blocks),
                                               grid_y(chunks / together))
                                        : dim3(grid_x(blocks, 1), grid_y(chunks));
    launch_on(kernel, shape, atomic::kThreads, shared_bytes, grid, arguments...);
  }

  template <bool adjacent>
  void staged() const {
    const StagedCut& cut = std::get<StagedCut>(plan.cut);
    auto* kernel = atomic::add_staged_kernel<adjacent, Value, Sum>;
    allow_shared_bytes(kernel, cut.bytes);
    const dim3 grid(static_cast<unsigned>(ceil_div(call.layout.entries, cut.part)),
                    grid_y(call.layout.slabs()));
    launch_on(kernel, grid, cut.threads, cut.bytes, make_grid(1), cut.part, fresh);
  }

  // Rows of one value, or of two or four floats.
  template <bool adjacent>
  void entries() const {
    if constexpr (std::is_same_v<Sum, float>) {
      if (call.layout.inner == 2) return entries_of<adjacent, 2>();
      if (call.layout.inner == 4) return entries_of<adjacent, 4>();
    }
    if (!adjacent || call.layout.inner != 1) fail_without_kernel("entries");
    entries_of<true, 1>();
  }

  template <bool adjacent, int D>
  void entries_of() const {
    launch(atomic::add_entries_kernel<adjacent, D, Value, Sum>, make_grid(1), kLaneEntries, 1, 0);
  }

  void tiles() const {
    const TilesCut& cut = std::get<TilesCut>(plan.cut);
    auto* kernel = cut.short_spans ? atomic::add_tiles_kernel<kTileVector, kWindow, Value, Sum>
                                   : atomic::add_tiles_kernel<kTileVector, kSpan, Value, Sum>;
    launch(kernel, make_grid(1), cut.tile_entries(), cut.split.pieces, 0, cut.split);
  }

  void streamed() const {
    const atomic::StreamedTiles tiles(std::get<StreamedCut>(plan.cut));
    launch(atomic::add_streamed_kernel<Value, Sum>, make_grid(1), tiles.entries, tiles.pieces,
           tiles.shared_bytes(sizeof(Value)), tiles);
  }
};

}  // namespace

template <class Value>
void add_by_atomics(const ReduceCall<Value, SumOf<Value>>& call, const SumPlan& plan, bool fresh,
                    const IndexErrorSite& errors) {
  Addition<Value>{call, plan, fresh, errors}.run();
}

#define INSTANTIATE(T)                                                                  \
  template void add_by_atomics<T>(const ReduceCall<T, SumOf<T>>&, const SumPlan&, bool, \
                                  const IndexErrorSite&);
TORCH_OPS_FOR_EACH_SUMMED(INSTANTIATE)

}  // namespace torch_ops
