// The launches of segments' reductions.
#include "segments/cuda/segments.cuh"

#include "common/cuda/launch.cuh"
#include "common/cuda/scratch.h"
#include "scatter/cuda/best/best.cuh"
#include "scatter/cuda/sorted/sorted_launch.cuh"
#include "segments/segments_launch.h"

namespace torch_ops {
namespace {

using segments::Offsets;

// In what the values of a segment are joined, V columns of them; and of what a kernel is told.
template <SegmentRule kRule, class Value, class Id>
struct TotalOf {
  template <int V>
  using type = Sums<V, std::conditional_t<sizeof(Value) == 2, float, Value>,
                    Better<kRule == SegmentRule::kLargest>>;
};
template <class Value, class Id>
struct TotalOf<SegmentRule::kSum, Value, Id> {
  template <int V>
  using type = Sums<V, SumOf<Value>>;
};
template <class Value, class Id>
struct TotalOf<SegmentRule::kMean, Value, Id> {
  template <int V>
  using type = segments::Means<V, SumOf<Value>>;
};
template <class Value, class Id>
struct TotalOf<SegmentRule::kProd, Value, Id> {
  template <int V>
  using type = Sums<V, SumOf<Value>, Times>;
};
template <class Value, class Id>
struct TotalOf<SegmentRule::kWhereLargest, Value, Id> {
  template <int V>
  using type = sorted::Best<V, Value, Id>;
};
template <class Value, class Id>
struct TotalOf<SegmentRule::kWhereSmallest, Value, Id>
    : TotalOf<SegmentRule::kWhereLargest, Value, Id> {};

// Calls use(shape, offsets) in the narrowest type that numbers entries, offsets and values per row.
template <class Use>
void with_offsets(const IndexArray& offsets, const RowLayout& layout, Use&& use) {
  RowLayout counted = layout;
  counted.axis_size += 1;
  with_shape(counted, [&](auto shape) {
    using Id = decltype(shape.no_row);
    shape = {layout.batch, layout.outer, layout.entries, layout.axis_size, layout.inner};
    use(shape, Offsets<Id>{IndexView{offsets}, layout.index_batch_stride, layout.index_entry_stride,
                           layout.entries, static_cast<Id>(layout.batch),
                           static_cast<Id>(layout.outer), static_cast<Id>(layout.axis_size)});
  });
}

template <class Total, class Value, class Result, class Id>
void total_segments(const Value* values, Result* result, const sorted::Shape<Id>& shape,
                    const Offsets<Id>& offsets, typename Total::Options options) {
  const RowPieces split(shape.inner, Total::kColumns);
  const int64_t tiles = shape.tiles(split.lanes);
  Id *firsts, *lasts;
  typename Total::Part* partials;
  const auto take = [&](sorted::Pieces memory) {
    firsts = memory.take<Id>(tiles);
    lasts = memory.take<Id>(tiles);
    partials = memory.take<typename Total::Part>(2 * tiles * shape.outer * shape.inner);
    return memory.bytes;
  };
  const DeviceScratch memory(take({nullptr}));
  take({static_cast<char*>(memory.get())});
  const segments::TileEdges<Id> edges{firsts, lasts, offsets};
  auto* sum_tiles = segments::tiles_kernel<Total, Value, Result, Id>;
  TORCH_OPS_LAUNCH(sum_tiles, dim3(grid_x(tiles * split.pieces, 1), grid_y(shape.outer)),
                   kRunThreads, 0, values, result, partials, firsts, lasts, edges, shape, split,
                   options);
  join_tiles<Total>(edges, partials, result, shape, tiles);
}

}  // namespace

namespace kernels {

template <SegmentRule kRule, class Value, class Result>
void reduce_segments(OnCuda on, const SegmentCall<Value, Result>& call,
                     const IndexErrorSite& errors) {
  const HostScope scope(on.program);
  if (call.result_count() == 0) return;
  with_offsets(call.offsets, call.layout, [&](const auto& shape, const auto& offsets) {
    using Id = std::decay_t<decltype(shape.no_row)>;
    constexpr bool kPlaces = kRule >= SegmentRule::kWhereLargest;
    // A lane reads 16 bytes, but no more than 16 bytes of results.
    constexpr int kWide = kPlaces ? std::min(kVectorSize<Value>, 4) : kVectorSize<Result>;
    const auto total = [&](auto columns) {
      using Total = typename TotalOf<kRule, Value, Id>::template type<columns()>;
      typename Total::Options options{};
      if constexpr (kPlaces) options.largest = kRule == SegmentRule::kWhereLargest;
      if (call.values_count() > 0) {
        total_segments<Total>(call.values, call.result, shape, offsets, options);
      }
      fill_rest<columns()>(segments::FilledRows<Id>{offsets, errors}, call.result, shape,
                           nothing_there<kRule, Result>(call.layout));
    };
    if (shape.inner % kWide == 0 && is_aligned(call.values, kWide * sizeof(Value))) {
      total(std::integral_constant<int, kWide>());
    } else {
      total(std::integral_constant<int, 1>());
    }
  });
}

template <class Out>
void find_segments(OnCuda on, const IndexArray& offsets, const RowLayout& layout, Out* ids,
                   const IndexErrorSite& errors) {
  const HostScope scope(on.program);
  if (layout.batch == 0) return;
  with_offsets(offsets, layout, [&](const auto& shape, const auto& all) {
    using Id = std::decay_t<decltype(shape.no_row)>;
    auto* find = segments::ids_kernel<Id, Out>;
    const int64_t blocks =
        std::max<int64_t>(ceil_div(layout.batch * layout.entries, segments::kIdTile), 1);
    TORCH_OPS_LAUNCH(find, grid_x(blocks, 1), kRunThreads, 0, segments::FilledRows<Id>{all, errors},
                     ids);
  });
}

template <class Out>
void find_offsets(OnCuda on, const IndexArray& index, const RowLayout& layout, Out* offsets,
                  const IndexErrorSite& errors) {
  const HostScope scope(on.program);
  const int64_t work = layout.batch * std::max(layout.entries, layout.axis_size + 1);
  if (work == 0) return;
  TORCH_OPS_LAUNCH(segments::offsets_kernel<Out>, grid_x(work, kThreads), kThreads, 0,
                   IndexView{index}, layout, offsets, errors);
}

#define TORCH_OPS_SEGMENTS(RULE, T, RESULT)                                               \
  template void reduce_segments<SegmentRule::RULE>(OnCuda, const SegmentCall<T, RESULT>&, \
                                                   const IndexErrorSite&);
TORCH_OPS_FOR_EACH_SEGMENTS(TORCH_OPS_FOR_EACH_FLOAT)

#define INSTANTIATE(Out)                                                         \
  template void find_segments(OnCuda, const IndexArray&, const RowLayout&, Out*, \
                              const IndexErrorSite&);                            \
  template void find_offsets(OnCuda, const IndexArray&, const RowLayout&, Out*,  \
                             const IndexErrorSite&);
INSTANTIATE(int32_t)
INSTANTIATE(int64_t)

}  // namespace kernels
}  // namespace torch_ops
