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
  int64_t first_row;
  const IndexErrorSite& errors;

  void run() const {
    switch (plan.way()) {
      case SumWay::kStaged:
        return staged();
      case SumWay::kEntries:
        return plan.adjacent ? entries<true>() : entries<false>();
      case SumWay::kValues:
        return launch_words(atomic::add_values_kernel<Value, Sum>, make_grid(call.layout.inner),
                            kLaneEntries, 1, 0);
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
    return {RowGrid(layout.batch, layout.outer, layout.entries, words), first_row, false,
            call.result_count() > UINT32_MAX, call.rule};
  }

  template <class Kernel, class... Arguments>
  void launch_on(Kernel* kernel, dim3 grid, int threads, int64_t shared_bytes,
                 const Arguments&... arguments) const {
    launch(fresh, kernel, grid, threads, shared_bytes, call.values, IndexView{call.index},
           call.result, call.layout, arguments..., errors);
  }

  // A block has so many of the grid's words, in so many pieces of a row. Blocks of different chunks
  // run at the same time, as far as their parts of the table stay in the L2 cache: the rows that
  // many entries of one batch name would delay each other.
  template <class Kernel, class... Arguments>
  void launch_words(Kernel* kernel, atomic::AtomicCall grid, int64_t words, int64_t pieces,
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

  void staged() const {
    const StagedCut& cut = std::get<StagedCut>(plan.cut);
    auto* kernel = plan.adjacent ? atomic::add_staged_kernel<true, Value, Sum>
                                 : atomic::add_staged_kernel<false, Value, Sum>;
    allow_shared_bytes(kernel, cut.bytes);
    const dim3 grid(static_cast<unsigned>(ceil_div(call.layout.entries, cut.part)),
                    grid_y(call.layout.slabs()));
    launch_on(kernel, grid, cut.threads, cut.bytes, make_grid(1), cut.part, fresh);
  }

  // Rows of one value, or of two or four floats.
  template <bool adjacent>
  void entries() const {
    auto* kernel = atomic::add_entries_kernel<adjacent, 1, Value, Sum>;
    if constexpr (std::is_same_v<Sum, float>) {
      if (call.layout.inner == 2) kernel = atomic::add_entries_kernel<adjacent, 2, Value, Sum>;
      if (call.layout.inner == 4) kernel = atomic::add_entries_kernel<adjacent, 4, Value, Sum>;
    }
    launch_words(kernel, make_grid(1), kLaneEntries, 1, 0);
  }

  void tiles() const {
    const TilesCut& cut = std::get<TilesCut>(plan.cut);
    auto* kernel = cut.short_spans ? atomic::add_tiles_kernel<kWindow, Value>
                                   : atomic::add_tiles_kernel<kSpan, Value>;
    launch_words(kernel, make_grid(1), cut.tile_entries(), cut.split.pieces, 0, cut.split);
  }

  void streamed() const {
    const atomic::StreamedTiles tiles(std::get<StreamedCut>(plan.cut));
    launch_words(atomic::add_streamed_kernel<Value, Sum>, make_grid(1), tiles.entries, tiles.pieces,
                 tiles.shared_bytes(sizeof(Value)), tiles);
  }
};

}  // namespace

template <class Value>
void add_by_atomics(const ReduceCall<Value, SumOf<Value>>& call, const SumPlan& plan, bool fresh,
                    int64_t first_row, const IndexErrorSite& errors) {
  Addition<Value>{call, plan, fresh, first_row, errors}.run();
}

template <class Value>
void sum_few(const ReduceCall<Value, Value>& call, const IndexErrorSite& errors) {
  const RowLayout& layout = call.layout;
  const int64_t count = layout.batch * layout.entries, pairs = layout.inner == 1 ? 2 : 1;
  const int64_t sums = count * layout.inner * pairs;
  const DeviceScratch memory(sums * sizeof(float) + (2 * count + 1) * sizeof(int32_t));
  // The table first, which is aligned then.
  auto* table = static_cast<float*>(memory.get());
  const few::Claims claims{reinterpret_cast<int32_t*>(table + sums) + count,
                           reinterpret_cast<int32_t*>(table + sums)};
  auto* last = reinterpret_cast<uint32_t*>(claims.rows + count);
  static_assert(few::Claims::kAlone == -1);  // all bits
  TORCH_OPS_CUDA_CALL(
      cudaMemsetAsync(claims.slots, 0xff, count * sizeof(int32_t), current_stream()));
  if (pairs == 2) TORCH_OPS_CUDA_CALL(cudaMemsetAsync(last, 0, sizeof(*last), current_stream()));
  zero(call.result, call.result_count() * sizeof(Value));

  const unsigned blocks = grid_x(count, few::kThreads);
  const few::Entries entries{IndexView{call.index}, layout, call.rule};
  launch_early(few::claim_kernel<Value>, blocks, few::kThreads, 0, entries, claims, call.result,
               last, table, errors);

  RowLayout by_slot = layout;
  by_slot.batch = 1;
  by_slot.entries = count;
  by_slot.axis_size = count * pairs;
  by_slot.index_entry_stride = 1;
  // Entries that are not added to the table are none of its rows: nothing is recorded.
  const ReduceCall<Value, float> added{call.values,
                                       {claims.slots, sizeof(int32_t)},
                                       by_slot,
                                       IndexRule(IndexMode::kRaise, by_slot.axis_size),
                                       table};
  const SumPlan plan =
      choose(describe(added, /*repeatable=*/false, /*in_place=*/true), current_device_limits());
  Addition<Value>{added, plan, /*fresh=*/false, /*first_row=*/0, IndexErrorSite{}}.run();

  if (pairs == 2) {
    return launch_early(few::write_pairs_kernel<Value>, blocks, few::kThreads, 0, claims,
                        static_cast<int>(count), call.values, table, call.result,
                        call.result_count());
  }
  const auto write = [&](auto columns) {
    constexpr int V = columns();
    const RowGrid grid(1, 1, count, layout.inner / V);
    const dim3 shape(grid_x(grid.chunk_words(), few::kThreads * few::kUnroll), grid_y(grid.chunks));
    launch_early(few::write_kernel<V, Value>, shape, few::kThreads, 0, claims, call.values, table,
                 call.result, grid);
  };
  constexpr int kWide = kVectorSize<Value>;
  const bool wide = layout.inner % kWide == 0 && is_aligned(call.values, kVectorBytes) &&
                    is_aligned(call.result, kVectorBytes);
  wide ? write(std::integral_constant<int, kWide>()) : write(std::integral_constant<int, 1>());
}

#define INSTANTIATE(T)                                                                           \
  template void add_by_atomics<T>(const ReduceCall<T, SumOf<T>>&, const SumPlan&, bool, int64_t, \
                                  const IndexErrorSite&);
TORCH_OPS_FOR_EACH_SUMMED(INSTANTIATE)
template void sum_few(const ReduceCall<Float16, Float16>&, const IndexErrorSite&);
template void sum_few(const ReduceCall<BFloat16, BFloat16>&, const IndexErrorSite&);

}  // namespace torch_ops
