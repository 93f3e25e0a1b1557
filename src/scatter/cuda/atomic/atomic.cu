// Sums by atomics: launches the kernels of atomic.cuh, streamed.cuh and
// few.cuh: which one, on what grid.
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
#include "scatter/sum/atomic_cut.h"
#include "scatter/sum/ways.h"

namespace torch_ops {
namespace {

// Blocks of different chunks run side by side, as far as their parts of the table stay in the L2
// cache: the rows that many entries of one batch name would hold up each other. `blocks` are those
// of a chunk.
dim3 shape_grid(atomic::AtomicCall& call, int64_t blocks, int64_t table_bytes) {
  const int64_t l2_bytes = current_device_limits().l2_bytes, chunks = call.grid.chunks;
  const int64_t chunk_bytes = std::max<int64_t>(table_bytes / chunks, 1);
  const int64_t together = table_bytes <= l2_bytes / 2
                               ? chunks
                               : largest_divisor(chunks, l2_bytes / kSideBySide / chunk_bytes);
  call.chunks_in_x = blocks <= kMaxGridYZ && (together > 1 || chunks == 1);
  return call.chunks_in_x
             ? dim3(grid_x(together, 1), static_cast<unsigned>(blocks), grid_y(chunks / together))
             : dim3(grid_x(blocks, 1), grid_y(chunks));
}

// What the kernels are launched with: `words` of the grid a row.
atomic::AtomicCall make_call(const RowLayout& layout, const IndexRule& rule, int64_t words) {
  return {RowGrid(layout.batch, layout.outer, layout.entries, words), false,
          layout.slabs() * layout.axis_size * layout.inner > UINT32_MAX, rule};
}

bool are_adjacent(const void* values, int64_t value_bytes, const IndexView& index,
                  const RowLayout& layout) {
  const bool flat = layout.index_entry_stride == 1 &&
                    (layout.batch == 1 || layout.index_batch_stride == layout.entries);
  return flat && layout.entries % atomic::kUnroll == 0 && index.is_aligned_for_load4() &&
         is_aligned(values, atomic::kUnroll * value_bytes);
}

// `fresh`: sums are zeros, which the kernel before writes; then this one begins early.
template <class... Parameters, class... Arguments>
void launch(bool fresh, void (*kernel)(Parameters...), dim3 grid, int threads, int64_t shared_bytes,
            Arguments&&... arguments) {
  if (fresh) {
    launch_early(kernel, grid, dim3(threads), shared_bytes, arguments...);
  } else {
    TORCH_OPS_LAUNCH(kernel, grid, threads, shared_bytes, arguments...);
  }
}

template <bool adjacent, int D, class Value, class Sum>
void add_entries(const Value* values, const IndexView& index, Sum* sums, const RowLayout& layout,
                 const IndexRule& rule, int64_t table_bytes, bool fresh,
                 const IndexErrorSite& errors) {
  atomic::AtomicCall call = make_call(layout, rule, /*words=*/1);
  const int64_t blocks = ceil_div(call.grid.chunk_words(), atomic::kThreads * atomic::kUnroll);
  const dim3 grid = shape_grid(call, blocks, table_bytes);
  launch(fresh, atomic::add_entries_kernel<adjacent, D, Value, Sum>, grid, atomic::kThreads, 0,
         values, index, sums, layout, call, errors);
}

template <class Value, class Sum>
void add_values(const Value* values, const IndexView& index, Sum* sums, const RowLayout& layout,
                const IndexRule& rule, int64_t table_bytes, bool fresh,
                const IndexErrorSite& errors) {
  atomic::AtomicCall call = make_call(layout, rule, layout.inner);
  const int64_t blocks = ceil_div(call.grid.chunk_words(), atomic::kThreads * atomic::kUnroll);
  const dim3 grid = shape_grid(call, blocks, table_bytes);
  launch(fresh, atomic::add_values_kernel<Value, Sum>, grid, atomic::kThreads, 0, values, index,
         sums, layout, call, errors);
}

template <class Value, class Sum>
void add_streamed(const Value* values, const IndexView& index, Sum* sums, const RowLayout& layout,
                  const IndexRule& rule, int64_t table_bytes, bool fresh,
                  const IndexErrorSite& errors) {
  atomic::AtomicCall call = make_call(layout, rule, /*words=*/1);
  const atomic::StreamedTiles tiles(layout, sizeof(Value), current_device_limits().multiprocessors);
  const int64_t blocks = ceil_div(call.grid.chunk_words(), tiles.entries) * tiles.pieces;
  const dim3 grid = shape_grid(call, blocks, table_bytes);
  launch(fresh, atomic::add_streamed_kernel<Value, Sum>, grid, atomic::kThreads,
         tiles.shared_bytes(sizeof(Value)), values, index, sums, layout, call, tiles, errors);
}

template <bool adjacent, class Value, class Sum>
void add_staged(const Value* values, const IndexView& index, Sum* sums, const RowLayout& layout,
                const IndexRule& rule, bool fresh, const IndexErrorSite& errors) {
  const auto bytes = static_cast<int>(layout.axis_size * sizeof(Sum));
  auto* kernel = atomic::add_staged_kernel<adjacent, Value, Sum>;
  allow_shared_bytes(kernel, bytes);
  // The larger the table, the fewer blocks share a multiprocessor.
  const int threads = bytes > 100 * 1024  ? atomic::kMostStagedThreads
                      : bytes > 24 * 1024 ? 512
                                          : 256;
  // Parts of a slab where slabs alone do not fill the GPU, none so small that adding up the table
  // becomes a large part of its work.
  const int64_t wanted = 2 * current_device_limits().multiprocessors;
  const int64_t parts =
      std::clamp<int64_t>(ceil_div(wanted, layout.slabs()), 1,
                          std::max<int64_t>(layout.entries / (4 * layout.axis_size), 1));
  const int64_t part = ceil_div(ceil_div(layout.entries, parts), 4) * 4;
  const dim3 grid(static_cast<unsigned>(ceil_div(layout.entries, part)), grid_y(layout.slabs()));
  launch(fresh, kernel, grid, threads, bytes, values, index, sums, layout,
         make_call(layout, rule, /*words=*/1), part, fresh, errors);
}

template <int V, int kSpanned, class Value, class Sum>
void add_tiles(const Value* values, const IndexView& index, Sum* sums, const RowLayout& layout,
               const IndexRule& rule, int64_t table_bytes, bool fresh,
               const IndexErrorSite& errors) {
  atomic::AtomicCall call = make_call(layout, rule, /*words=*/1);
  const RowPieces split(layout.inner, V, /*most_lanes=*/32, atomic::kLeastLanes);
  const int64_t tile = split.groups(atomic::kThreads) * kSpanned;
  const int64_t blocks = ceil_div(call.grid.chunk_words(), tile) * split.pieces;
  const dim3 grid = shape_grid(call, blocks, table_bytes);
  auto* kernel = atomic::add_tiles_kernel<V, kSpanned, Value, Sum>;
  launch(fresh, kernel, grid, atomic::kThreads, 0, values, index, sums, layout, call, split,
         errors);
}

// Do the rows consist of vectors that one instruction adds, as far as addresses go?
template <class Value, class Sum>
bool have_vectors(const Value* values, const Sum* sums, const RowLayout& layout) {
  const int64_t vector = std::min<int64_t>(layout.inner, kTileVector);
  return std::is_same_v<Sum, float> && is_aligned(values, vector * sizeof(Value)) &&
         is_aligned(sums, vector * sizeof(Sum));
}

// Rows of whole vectors. Few entries are dealt out to more and shorter spans: the time of a small
// call is that of the loads of a span, which wait for each other.
template <class Value, class Sum>
void add_whole_rows(const Value* values, const IndexView& index, Sum* sums, const RowLayout& layout,
                    const IndexRule& rule, int64_t table_bytes, bool fresh,
                    const IndexErrorSite& errors) {
  constexpr int kWide = kTileVector;
  const RowPieces split(layout.inner, kWide, /*most_lanes=*/32, atomic::kLeastLanes);
  const int64_t blocks = layout.slabs() * split.pieces *
                         ceil_div(layout.entries, split.groups(atomic::kThreads) * kSpan);
  if (blocks < current_device_limits().multiprocessors) {
    add_tiles<kWide, kWindow>(values, index, sums, layout, rule, table_bytes, fresh, errors);
  } else {
    add_tiles<kWide, kSpan>(values, index, sums, layout, rule, table_bytes, fresh, errors);
  }
}

// Rows of one value, or of two or four floats.
template <bool adjacent, class Value, class Sum>
void add_short_rows(const Value* values, const IndexView& index, Sum* sums, const RowLayout& layout,
                    const IndexRule& rule, int64_t table_bytes, bool fresh,
                    const IndexErrorSite& errors) {
  if constexpr (std::is_same_v<Sum, float>) {
    if (layout.inner == 2) {
      return add_entries<adjacent, 2>(values, index, sums, layout, rule, table_bytes, fresh,
                                      errors);
    }
    if (layout.inner == 4) {
      return add_entries<adjacent, 4>(values, index, sums, layout, rule, table_bytes, fresh,
                                      errors);
    }
  }
  if (!adjacent || layout.inner != 1) fail_without_kernel("AtomicPath::kEntries");
  add_entries<true, 1>(values, index, sums, layout, rule, table_bytes, fresh, errors);
}

// Adds the values to sums of layout.slabs() * layout.axis_size rows.
template <class Value, class Sum>
void add_by_path(const Value* values, const IndexView& index, Sum* sums, const RowLayout& layout,
                 const IndexRule& rule, bool fresh, const IndexErrorSite& errors) {
  const bool adjacent = are_adjacent(values, sizeof(Value), index, layout);
  const AtomicPath path =
      choose_atomic_path(layout, sizeof(Sum), adjacent, have_vectors(values, sums, layout),
                         current_device_limits().shared_bytes);
  const int64_t bytes =
      layout.slabs() * layout.axis_size * layout.inner * static_cast<int64_t>(sizeof(Sum));
  switch (path) {
    case AtomicPath::kStaged:
      return adjacent ? add_staged<true>(values, index, sums, layout, rule, fresh, errors)
                      : add_staged<false>(values, index, sums, layout, rule, fresh, errors);
    case AtomicPath::kEntries:
      return adjacent
                 ? add_short_rows<true>(values, index, sums, layout, rule, bytes, fresh, errors)
                 : add_short_rows<false>(values, index, sums, layout, rule, bytes, fresh, errors);
    case AtomicPath::kValues:
      return add_values(values, index, sums, layout, rule, bytes, fresh, errors);
    case AtomicPath::kStreamed:
      return add_streamed(values, index, sums, layout, rule, bytes, fresh, errors);
    case AtomicPath::kTiles:
      if constexpr (std::is_same_v<Sum, float>) {
        return add_whole_rows(values, index, sums, layout, rule, bytes, fresh, errors);
      }
      break;
  }
  fail_without_kernel("AtomicPath::kTiles");
}

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
  // What has no slot is left out: an entry that is alone, and one that names no row, which was
  // recorded above.
  add_by_path(values, IndexView{{slots, sizeof(int32_t)}}, table, by_slot,
              IndexRule(IndexMode::kRaise, count), /*fresh=*/false, IndexErrorSite{});

  constexpr int kWide = kVectorSize<Value>;
  const bool wide = layout.inner % kWide == 0 && is_aligned(values, kVectorBytes);
  auto* write = wide ? few::write_kernel<kWide, Value, float> : few::write_kernel<1, Value, float>;
  TORCH_OPS_LAUNCH(write, grid_x(count * layout.inner / (wide ? kWide : 1), few::kThreads),
                   few::kThreads, 0, entries, slots, values, table, result);
}

}  // namespace

template <class Value>
void add_in_any_order(const ReduceCall<Value, SumOf<Value>>& call, bool fresh,
                      const IndexErrorSite& errors) {
  add_by_path(call.values, IndexView{call.index}, call.result, call.layout, call.rule, fresh,
              errors);
}

template <class Value>
void sum_few(const ReduceCall<Value, Value>& call, const IndexErrorSite& errors) {
  zero(call.result, call.result_count() * sizeof(Value));
  add_few(call.values, {IndexView{call.index}, call.layout, call.rule}, call.result, errors);
}

#define INSTANTIATE(T) \
  template void add_in_any_order<T>(const ReduceCall<T, SumOf<T>>&, bool, const IndexErrorSite&);
TORCH_OPS_FOR_EACH_SUMMED(INSTANTIATE)
template void sum_few(const ReduceCall<Float16, Float16>&, const IndexErrorSite&);
template void sum_few(const ReduceCall<BFloat16, BFloat16>&, const IndexErrorSite&);

}  // namespace torch_ops
