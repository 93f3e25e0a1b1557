// Sums by atomics: launches the kernels of atomic.cuh, streamed.cuh and few.cuh on a grid.
#include <algorithm>
#include <cstdint>

#include "common/cuda/launch.cuh"
#include "common/cuda/scratch.h"
#include "common/cuda/vectorized.cuh"
#include "common/indexing/index_error.cuh"
#include "common/indexing/index_view.cuh"
#include "scatter/cuda/atomic/atomic.cuh"
#include "scatter/cuda/atomic/few.cuh"
#include "scatter/cuda/atomic/streamed.cuh"
#include "scatter/sum/ways.cuh"

namespace torch_ops {
namespace {

template <class Value>
struct Addition {
  using Sum = SumOf<Value>;
  const ReduceCall<Value, Sum>& call;
  const SumPlan& plan;
  bool fresh;  // sums are zeros, which the previous kernel writes; then this one begins early
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

  // The launch of the kernels: `words` of the grid per row.
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
  // run at the same time, as far as their parts of the table stay in the L2 cache: the rows that
  // many entries of one batch name would delay each other.
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

// ---- Few entries to many rows -------------------------------------------------------------------

template <class Value>
void add_few(const Value* values, const few::Entries& entries, Value* result,
             const IndexErrorSite& errors) {
  const RowLayout& layout = entries.layout;
  const int64_t count = layout.batch * layout.entries, rows = layout.batch * layout.axis_size;
  const int64_t table_bytes = count * layout.inner * static_cast<int64_t>(sizeof(float));
  const int64_t owners_bytes = ceil_div(rows * static_cast<int64_t>(sizeof(uint32_t)), 256) * 256;
  const DeviceScratch memory(table_bytes + owners_bytes + count * sizeof(int32_t));
  // The owners first: the table's size is a multiple of no more than 4 bytes.
  auto* owners = static_cast<uint32_t*>(memory.get());
  auto* table = reinterpret_cast<float*>(static_cast<char*>(memory.get()) + owners_bytes);
  auto* slots = reinterpret_cast<int32_t*>(table + count * layout.inner);
  TORCH_OPS_CUDA_CALL(cudaMemsetAsync(owners, 0, owners_bytes, current_stream()));

  const unsigned blocks = grid_x(count, few::kThreads);
  TORCH_OPS_LAUNCH(few::claim_kernel<float>, blocks, few::kThreads, 0, entries, owners, table,
                   errors);
  TORCH_OPS_LAUNCH(few::find_slots_kernel, blocks, few::kThreads, 0, entries, owners, slots);

  RowLayout by_slot = layout;
  by_slot.batch = 1;
  by_slot.entries = by_slot.axis_size = count;
  by_slot.index_entry_stride = 1;
  // Entries without a slot are left out: one that is alone in its row, and one that names no row,
  // which was recorded above.
  const ReduceCall<Value, float> sums{
      values, {slots, sizeof(int32_t)}, by_slot, IndexRule(IndexMode::kRaise, count), table};
  const SumPlan plan =
      choose(describe(sums, /*repeatable=*/false, /*in_place=*/true), current_device_limits());
  Addition<Value>{sums, plan, /*fresh=*/false, IndexErrorSite{}}.run();

  constexpr int kWide = kVectorSize<Value>;
  const bool wide = layout.inner % kWide == 0 && is_aligned(values, kVectorBytes);
  auto* write = wide ? few::write_kernel<kWide, Value, float> : few::write_kernel<1, Value, float>;
  TORCH_OPS_LAUNCH(write, grid_x(count * layout.inner / (wide ? kWide : 1), few::kThreads),
                   few::kThreads, 0, entries, slots, values, table, result);
}

}  // namespace

template <class Value>
void add_by_atomics(const ReduceCall<Value, SumOf<Value>>& call, const SumPlan& plan, bool fresh,
                    const IndexErrorSite& errors) {
  Addition<Value>{call, plan, fresh, errors}.run();
}

template <class Value>
void sum_few(const ReduceCall<Value, Value>& call, const IndexErrorSite& errors) {
  zero(call.result, call.result_count() * sizeof(Value));
  add_few(call.values, {IndexView{call.index}, call.layout, call.rule}, call.result, errors);
}

#define INSTANTIATE(T)                                                                  \
  template void add_by_atomics<T>(const ReduceCall<T, SumOf<T>>&, const SumPlan&, bool, \
                                  const IndexErrorSite&);
TORCH_OPS_FOR_EACH_SUMMED(INSTANTIATE)
template void sum_few(const ReduceCall<Float16, Float16>&, const IndexErrorSite&);
template void sum_few(const ReduceCall<BFloat16, BFloat16>&, const IndexErrorSite&);

}  // namespace torch_ops
