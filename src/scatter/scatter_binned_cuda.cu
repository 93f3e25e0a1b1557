#include <ATen/Dispatch.h>
#include <c10/cuda/CUDACachingAllocator.h>

#include "common/index_errors.h"
#include "common/launch.cuh"
#include "scatter/scatter.h"
#include "scatter/scatter_atomic_launch.cuh"
#include "scatter/scatter_binned.cuh"
#include "scatter/scatter_binning.h"
#include "scatter/scatter_sorted_launch.cuh"

namespace torch_ops {
namespace {

using namespace binned;

// A call, with its values as Value and its rows as D of them.
template <int D, class Value>
struct BinnedCall {
  const Value* values;
  IndexView index;
  Value* result;
  RowLayout layout;
  IndexRule rule;
  Binning binning;
  IndexErrorSite errors;

  // Sums the parts that `source` has, a block each.
  template <class Source>
  void sum(const Source& source, int64_t blocks, int64_t source_bytes, float* partials) const {
    auto* kernel = sum_kernel<D, Value, Source>;
    const auto bytes = static_cast<int>(table_bytes(binning.table_rows * D) + source_bytes);
    allow_shared_bytes(kernel, bytes);
    TORCH_OPS_LAUNCH(kernel, grid_x(blocks, 1), kSumThreads, bytes, source,
                     static_cast<uint32_t>(binning.table_rows), result, partials);
  }

  void join(const float* partials, const Joined& joined) const {
    constexpr int64_t kBlocks = 1024;  // How many tables are to be joined, the device knows.
    auto* kernel = join_kernel<D, Value>;
    const int64_t pieces = ceil_div(binning.table_rows * D, kJoinColumns);
    TORCH_OPS_LAUNCH(kernel, grid_x(std::min(binning.tables(layout) * pieces, kBlocks), 1),
                     kJoinColumns * kJoinGroups, 0, partials, joined, result);
  }

  template <class Kernel>
  static void allow_shared_bytes(Kernel* kernel, int bytes) {
    if (bytes <= 48 * 1024) return;  // what a kernel has unasked
    C10_CUDA_CHECK(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  }

  // Can index and values be read four entries at a time?
  bool adjacent() const {
    return atomic_launch::are_adjacent(values, std::min<int64_t>(D * sizeof(Value), 4), index,
                                       layout);
  }

  float* take_partials(sorted::Pieces& memory) const {
    return memory.take<float>(binning.most_partials(layout) * binning.table_rows * D);
  }

  // Tables that hold whole slabs.
  void sum_slabs() const {
    sorted::Pieces sizes{nullptr};
    take_partials(sizes);
    const c10::DataPtr memory = c10::cuda::CUDACachingAllocator::get()->allocate(sizes.bytes);
    auto* partials = static_cast<float*>(memory.get());
    using Source = SlabEntries<D, Value>;
    // Entries are kept where that leaves room for two blocks.
    const int64_t kept = Source::kept_bytes(binning.part_entries);
    const bool keep = 2 * (table_bytes(binning.table_rows * D) + kept + 1024) <=
                      current_device_limits().shared_bytes;
    const Source source{reinterpret_cast<const Vector<Value, D>*>(values),
                        index,
                        layout,
                        rule,
                        errors,
                        static_cast<uint32_t>(binning.parts),
                        static_cast<uint32_t>(binning.part_entries),
                        static_cast<uint32_t>(binning.slabs),
                        FastDivisor(static_cast<uint32_t>(
                            std::min<int64_t>(layout.entries, Binning::kPartEntries))),
                        adjacent(),
                        keep};
    sum(source, binning.tables(layout) * binning.parts, keep ? kept : 0, partials);
    if (binning.parts == 1) return;
    join(partials,
         {nullptr, nullptr, nullptr, static_cast<uint32_t>(binning.tables(layout)),
          static_cast<uint32_t>(binning.parts), /*bins=*/1, /*segments=*/1, binning.table_rows,
          layout.batch * layout.axis_size, static_cast<uint32_t>(binning.table_rows)});
  }

  // What a call with bins takes.
  template <class Word>
  struct Workspace {
    Word* values;
    uint16_t* rows;
    uint16_t* bounds;
    uint32_t* units;     // of cells; zeros at first,
    Counters* counters;  // as these
    Part* list;
    uint32_t* joins;
    Partials* partials;
    float* tables;

    Workspace(const BinnedCall& call, sorted::Pieces& memory) {
      const RowLayout& layout = call.layout;
      const Binning& binning = call.binning;
      const int64_t entries = layout.slabs() * binning.slab_entries(layout);
      const int64_t cells = binning.cells(layout);
      values = memory.take<Word>(entries);
      rows = memory.take<uint16_t>(entries);
      bounds = memory.take<uint16_t>(layout.slabs() * binning.tiles * (binning.bins + 1));
      units = memory.take<uint32_t>(cells);
      counters = memory.take<Counters>(1);
      list = memory.take<Part>(binning.most_parts(layout));
      joins = memory.take<uint32_t>(cells / binning.segments);
      partials = memory.take<Partials>(cells);
      tables = call.take_partials(memory);
    }
  };

  template <class Word>
  void sum_bins() const {
    sorted::Pieces sizes{nullptr};
    Workspace<Word>(*this, sizes);
    const c10::DataPtr memory = c10::cuda::CUDACachingAllocator::get()->allocate(sizes.bytes);
    sorted::Pieces pieces{static_cast<char*>(memory.get())};
    const Workspace<Word> work(*this, pieces);
    const int64_t cells = binning.cells(layout);
    const auto zeros = reinterpret_cast<char*>(work.list) - reinterpret_cast<char*>(work.units);
    C10_CUDA_CHECK(cudaMemsetAsync(work.units, 0, zeros, current_stream()));

    int row_shift = 0;
    while (int64_t{1} << row_shift < binning.table_rows) ++row_shift;
    const Bins bins{layout,
                    rule,
                    row_shift,
                    static_cast<int>(binning.bins),
                    static_cast<int>(binning.tiles),
                    static_cast<int>(binning.segments),
                    binning.slab_entries(layout),
                    adjacent()};
    static_assert(Tile<Word>::kEntries <= UINT16_MAX);
    TORCH_INTERNAL_ASSERT_DEBUG_ONLY(binning.tile_entries == Tile<Word>::kEntries);
    auto* bin_tiles = bin_tiles_kernel<Word>;
    const int tile_bytes = Tile<Word>::shared_bytes(bins.bins);
    allow_shared_bytes(bin_tiles, tile_bytes);
    TORCH_OPS_LAUNCH(bin_tiles, grid_x(layout.slabs() * binning.tiles, 1), kTileThreads, tile_bytes,
                     reinterpret_cast<const Word*>(values), index, bins, work.values, work.rows,
                     work.bounds, work.units, errors);
    TORCH_OPS_LAUNCH(list_parts_kernel, grid_x(cells, binned::kThreads), binned::kThreads, 0,
                     work.units, static_cast<uint32_t>(cells), static_cast<uint32_t>(binning.bins),
                     static_cast<uint32_t>(binning.segments), work.list, work.joins, work.partials,
                     work.counters);
    using Source = BinEntries<D, Value>;
    const Source source{reinterpret_cast<const Vector<Value, D>*>(work.values),
                        work.rows,
                        work.bounds,
                        work.list,
                        work.counters,
                        bins,
                        static_cast<uint32_t>(binning.tile_entries)};
    sum(source, binning.most_parts(layout), sizeof(typename Source::Shared), work.tables);
    join(work.tables, {work.counters, work.joins, work.partials, /*tables=*/0, /*parts=*/0,
                       static_cast<uint32_t>(binning.bins), static_cast<uint32_t>(binning.segments),
                       layout.axis_size, layout.batch * layout.axis_size,
                       static_cast<uint32_t>(binning.table_rows)});
  }

  void run() const {
    if (binning.bins == 0) return sum_slabs();
    constexpr int kBytes = D * sizeof(Value);
    if constexpr (kBytes == 2) {
      sum_bins<uint16_t>();
    } else {
      sum_bins<Vector<uint32_t, kBytes / 4>>();
    }
  }
};

template <int D, class Value>
void add_binned(const at::Tensor& values, const at::Tensor& index, const RowLayout& layout,
                const IndexRule& rule, const at::Tensor& result, const Binning& binning,
                const IndexErrorSite& errors) {
  BinnedCall<D, Value>{values.const_data_ptr<Value>(),
                       view_index(index),
                       result.mutable_data_ptr<Value>(),
                       layout,
                       rule,
                       binning,
                       errors}
      .run();
}

}  // namespace

bool can_bin_cuda(const at::Tensor& values, const RowLayout& layout) {
  const c10::cuda::CUDAGuard guard(values.device());
  const auto value_bytes = static_cast<int64_t>(values.element_size());
  return is_aligned(values.const_data_ptr(), layout.inner * value_bytes) &&
         choose_binning(layout, value_bytes, current_device_limits().shared_bytes).pays;
}

void scatter_add_binned_cuda(const char* op, const at::Tensor& values, const at::Tensor& index,
                             const RowLayout& layout, const IndexRule& rule,
                             const at::Tensor& result) {
  const c10::cuda::CUDAGuard guard(result.device());
  const IndexErrorSite errors = before_launch(op, index, layout, rule.mode());
  const Binning binning = choose_binning(layout, static_cast<int64_t>(values.element_size()),
                                         current_device_limits().shared_bytes);
  AT_DISPATCH_SWITCH(values.scalar_type(), "scatter_add",
                     AT_DISPATCH_CASE_REDUCED_FLOATING_TYPES([&] {
                       auto* const add = layout.inner == 1   ? add_binned<1, scalar_t>
                                         : layout.inner == 2 ? add_binned<2, scalar_t>
                                                             : add_binned<4, scalar_t>;
                       add(values, index, layout, rule, result, binning, errors);
                     }) AT_DISPATCH_CASE(at::kFloat, [&] {
                       auto* const add = layout.inner == 1   ? add_binned<1, float>
                                         : layout.inner == 2 ? add_binned<2, float>
                                                             : add_binned<4, float>;
                       add(values, index, layout, rule, result, binning, errors);
                     }));
  after_launch();
}

}  // namespace torch_ops
