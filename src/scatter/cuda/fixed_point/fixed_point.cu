#include <algorithm>
#include <optional>
#include <type_traits>

#include "common/cuda/launch.cuh"
#include "common/cuda/scratch.h"
#include "scatter/cuda/fixed_point/join.cuh"
#include "scatter/cuda/fixed_point/tables.cuh"
#include "scatter/sum/ways.cuh"

namespace torch_ops {
namespace {

using namespace fixed_point;

// A call, with its values as Value and its rows as D of them.
template <int D, class Value>
struct FixedCall {
  const Value* values;
  IndexView index;
  Value* result;
  RowLayout layout;
  IndexRule rule;
  FixedCut cut;
  IndexErrorSite errors;

  using Word = std::conditional_t<D * sizeof(Value) == 2, uint16_t,
                                  Vector<uint32_t, std::max<int>(D * sizeof(Value) / 4, 1)>>;

  void run() const {
    static_assert(sizeof(Part) == FixedCut::kPartBytes);
    static_assert(sizeof(Partials) == FixedCut::kPartialsBytes);
    static_assert(sizeof(Counters) == FixedCut::kCountersBytes);
    const FixedCut::Scratch begin = cut.scratch(layout.entries, D * sizeof(Value), D);
    const DeviceScratch memory(begin.bytes);
    char* const base = static_cast<char*>(memory.get());
    for (int64_t slab = 0; slab < layout.slabs(); slab += cut.slabs_at_once) {
      const int64_t slabs = std::min(cut.slabs_at_once, layout.slabs() - slab);
      if (cut.bins > 0) {
        sum_bins(slab, slabs, begin, base);
      } else {
        sum_slabs(slab, slabs, reinterpret_cast<float*>(base + begin.tables));
      }
    }
  }

 private:
  // Tables that contain whole slabs.
  void sum_slabs(int64_t first_slab, int64_t slabs, float* partials) const {
    using Source = SlabEntries<D, Value>;
    const Source source{
        reinterpret_cast<const Vector<Value, D>*>(values),
        index,
        layout,
        rule,
        errors,
        first_slab,
        layout.slabs() - 1,
        static_cast<uint32_t>(cut.parts),
        static_cast<uint32_t>(cut.slabs),
        FastDivisor(static_cast<uint32_t>(std::min(layout.entries, FixedCut::kPartEntries))),
        adjacent(),
        cut.keeps,
        static_cast<uint32_t>(cut.kept_entries)};
    const int64_t tables = ceil_div(slabs, cut.slabs);
    const int64_t kept_bytes = cut.keeps ? cut.kept_bytes(D * sizeof(Value)) : 0;
    sum(source, tables * cut.parts, kept_bytes, partials);
    if (cut.parts == 1) return;
    join(partials, {nullptr, nullptr, nullptr, static_cast<uint32_t>(tables),
                    static_cast<uint32_t>(cut.parts), /*bins=*/1, /*segments=*/1, layout.axis_size,
                    first_slab, static_cast<uint32_t>(cut.table_rows)});
  }

  void sum_bins(int64_t first_slab, int64_t slabs, const FixedCut::Scratch& begin,
                char* base) const {
    auto* sorted_values = reinterpret_cast<Word*>(base + begin.values);
    auto* sorted_rows = reinterpret_cast<uint16_t*>(base + begin.rows);
    auto* bounds = reinterpret_cast<uint16_t*>(base + begin.bounds);
    auto* joins = reinterpret_cast<uint32_t*>(base + begin.joins);
    auto* partials = reinterpret_cast<Partials*>(base + begin.partials);
    auto* tables = reinterpret_cast<float*>(base + begin.tables);
    const int64_t cells = slabs * cut.cells();
    const int64_t parts = slabs * cut.most_parts(layout.entries);
    const int64_t bytes = parts * sizeof(Part) + sizeof(Counters) + cells * sizeof(uint32_t);
    const DeviceScratch zeros(bytes);
    zero(zeros.get(), bytes, /*leave_shared=*/true);
    auto* list = static_cast<Part*>(zeros.get());
    auto* counters = reinterpret_cast<Counters*>(list + parts);
    auto* units = reinterpret_cast<uint32_t*>(counters + 1);
    int row_shift = 0;
    while (int64_t{1} << row_shift < cut.table_rows) ++row_shift;
    const Bins bins{layout,
                    rule,
                    row_shift,
                    static_cast<int>(cut.bins),
                    static_cast<int>(cut.tiles),
                    static_cast<int>(cut.segments),
                    cut.slab_entries(layout.entries),
                    first_slab,
                    adjacent()};
    if (cut.tile_entries != Tile<Word>::kEntries) fail_without_kernel("FixedCut::tile_entries");
    constexpr bool kFolds = D == 1 || std::is_same_v<Value, float>;
    auto* bin_tiles = bin_tiles_kernel<Word, std::conditional_t<kFolds, Value, void>>;
    const int tile_bytes = Tile<Word>::shared_bytes(bins.bins);
    allow_shared_bytes(bin_tiles, tile_bytes);
    launch_early(bin_tiles, grid_x(slabs * cut.tiles, 1), kTileThreads, tile_bytes,
                 reinterpret_cast<const Word*>(values), index, bins, sorted_values, sorted_rows,
                 bounds, units, errors);
    launch_early(list_parts_kernel, grid_x(cells, kThreads), kThreads, 0, units,
                 static_cast<uint32_t>(cells), static_cast<uint32_t>(cut.bins),
                 static_cast<uint32_t>(cut.segments), static_cast<uint32_t>(cut.part_units), list,
                 static_cast<uint32_t>(parts), joins, static_cast<uint32_t>(slabs * cut.bins),
                 partials, counters);
    using Source = BinEntries<D, Value>;
    const Source source{reinterpret_cast<const Vector<Value, D>*>(sorted_values),
                        sorted_rows,
                        bounds,
                        list,
                        bins,
                        static_cast<uint32_t>(cut.tile_entries)};
    sum(source, parts, sizeof(typename Source::Shared), tables);
    join(tables, {counters, joins, partials, static_cast<uint32_t>(slabs * cut.bins),
                  /*parts=*/0, static_cast<uint32_t>(cut.bins), static_cast<uint32_t>(cut.segments),
                  layout.axis_size, first_slab, static_cast<uint32_t>(cut.table_rows)});
  }

  // Sums the parts that `source` has, a block each.
  template <class Source>
  void sum(const Source& source, int64_t blocks, int64_t source_bytes, float* partials) const {
    auto* kernel = sum_kernel<D, Value, Source>;
    const auto bytes = static_cast<int>(FixedCut::table_bytes(cut.table_rows * D) + source_bytes);
    allow_shared_bytes(kernel, bytes);
    const auto table_rows = static_cast<uint32_t>(cut.table_rows);
    launch(cut.bins > 0, kernel, grid_x(blocks, 1), kSumThreads, bytes, source, table_rows, result,
           partials);
  }

  void join(const float* partials, const Joined& joined) const {
    const int64_t most = tuning(current_device_limits()).fixed_point.join_blocks;
    const int64_t pieces = ceil_div(cut.table_rows * D, kJoinColumns);
    launch_early(join_kernel<D, Value>, grid_x(std::min(joined.tables * pieces, most), 1),
                 kJoinThreads, 0, partials, joined, result);
  }

  // Can index and values be read four entries at a time, those of every slab?
  bool adjacent() const {
    return layout.index_entry_stride == 1 && layout.entries % 4 == 0 &&
           (layout.batch == 1 || layout.index_batch_stride % 4 == 0) &&
           index.is_aligned_for_load4() &&
           is_aligned(values, std::min<int64_t>(4 * D * sizeof(Value), kVectorBytes));
  }
};

}  // namespace

template <class Value>
void sum_fixed(const ReduceCall<Value, Value>& call, const FixedCut& cut,
               const IndexErrorSite& errors) {
  // Kernels read whole rows. Another way would give other bits, so an array that begins elsewhere
  // is copied.
  const Value* values = call.values;
  std::optional<DeviceScratch> copy;
  if (!is_aligned(values, call.layout.inner * sizeof(Value))) {
    const int64_t bytes = call.values_count() * sizeof(Value);
    copy.emplace(bytes);
    TORCH_OPS_CUDA_CALL(
        cudaMemcpyAsync(copy->get(), values, bytes, cudaMemcpyDeviceToDevice, current_stream()));
    values = static_cast<const Value*>(copy->get());
  }
  const auto run = [&](auto width) {
    FixedCall<width(), Value>{
        values, IndexView{call.index}, call.result, call.layout, call.rule, cut, errors}
        .run();
  };
  switch (call.layout.inner) {
    case 1:
      return run(std::integral_constant<int, 1>());
    case 2:
      return run(std::integral_constant<int, 2>());
    case 4:
      return run(std::integral_constant<int, 4>());
  }
  fail_without_kernel("fixed point");
}

template void sum_fixed(const ReduceCall<float, float>&, const FixedCut&, const IndexErrorSite&);
template void sum_fixed(const ReduceCall<Float16, Float16>&, const FixedCut&,
                        const IndexErrorSite&);
template void sum_fixed(const ReduceCall<BFloat16, BFloat16>&, const FixedCut&,
                        const IndexErrorSite&);

}  // namespace torch_ops
