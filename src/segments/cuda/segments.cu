// The launches of segments' reductions.
#include "segments/cuda/segments.cuh"

#include "common/cuda/launch.cuh"
#include "common/cuda/scratch.h"
#include "common/elementwise/joins.h"
#include "scatter/cuda/best/best.cuh"
#include "scatter/cuda/sorted/sorted_launch.cuh"
#include "segments/cuda/softmax_totals.cuh"
#include "segments/segments_launch.h"
#include "segments/softmax_launch.h"

namespace torch_ops {
namespace {

using segments::Id;
using segments::LongRows;
using segments::RowSplit;

constexpr int64_t kMostBlocks = 1024;     // of what long segments take, and about as many chunks
constexpr int kRunEntries = 16;           // of a run of segments, about, at most
constexpr int64_t kFewThreads = 1 << 17;  // that keep memory busy: half of what an H200 can hold
constexpr int64_t kWayEntries = 16;       // of a group, where there are more threads
constexpr int64_t kMostAverage = 200;     // of a group, if segments of this length are not listed
constexpr int kMediumLanes = 8;           // of rows whose medium segments are the work of a warp
constexpr int64_t kAloneBlocks = 1024;    // one for each segment, however long, at most, ...
constexpr int64_t kAloneEntries = 256;    // ... if a group of the longest cannot have more, ...
constexpr int64_t kOnlyEntries = 64;      // ... nor more than this for each of the segments
constexpr int64_t kBlocks = 4096;         // one for each segment that is not on a list, at most

// In what the values of a segment are joined, V columns of them; and of what a kernel is told.
template <SegmentRule kRule, class Value>
struct TotalOf {
  template <int V>
  using type = Sums<V, std::conditional_t<sizeof(Value) == 2, float, Value>,
                    Better<kRule == SegmentRule::kLargest>>;
};
template <class Value>
struct TotalOf<SegmentRule::kSum, Value> {
  template <int V>
  using type = std::conditional_t<std::is_integral_v<Value>, Sums<V, SumOf<Value>>,
                                  segments::Means<V, SumOf<Value>>>;
};
template <class Value>
struct TotalOf<SegmentRule::kMean, Value> : TotalOf<SegmentRule::kSum, Value> {};
template <class Value>
struct TotalOf<SegmentRule::kProd, Value> {
  template <int V>
  using type = Sums<V, SumOf<Value>, Times>;
};
template <class Value>
struct TotalOf<SegmentRule::kWhereLargest, Value> {
  template <int V>
  using type = sorted::Best<V, Value, Id>;
};
template <class Value>
struct TotalOf<SegmentRule::kWhereSmallest, Value> : TotalOf<SegmentRule::kWhereLargest, Value> {};

// Memory in pieces, each aligned to 256 bytes. With base == nullptr only the sizes matter.
struct Pieces {
  char* base;
  size_t bytes = 0;

  template <class T>
  T* take(int64_t count) {
    T* piece = reinterpret_cast<T*>(base + bytes);
    bytes += (count * sizeof(T) + 255) / 256 * 256;
    return piece;
  }
};

// How the threads of a call share its rows.
struct SegmentLaunch {
  RowPieces columns;
  RowSplit split;
  int threads;  // of a block
  bool may_be_long;
  LongRows longs;
  void* partials;  // of the chunks of long segments

  unsigned row_blocks(int64_t rows) const {
    const int groups = threads >> (split.lane_bits + split.way_bits);
    return grid_x(ceil_div(rows, split.run) * split.pieces, groups);
  }

  // Memory for long segments, the totals of a chunk taking `bytes`; returns how much there is.
  int64_t take(Pieces memory, int64_t bytes) {
    longs.counters = memory.take<unsigned long long>(2);
    longs.items = memory.take<LongRows::Item>(longs.most_items);
    longs.mediums = memory.take<Id>(longs.most_items);
    partials = memory.take<char>(longs.most_chunks * bytes);
    return memory.bytes;
  }
};

// A lane has `lane_columns` columns of a row. In which order values are joined depends on `order`,
// the pieces that rows would have whatever the address of the values.
SegmentLaunch launch_of(const RowLayout& layout, int lane_columns, const RowPieces& order) {
  using namespace segments;
  const RowPieces columns(layout.inner, lane_columns, order.lanes, order.lanes);
  const int64_t rows = layout.slabs() * layout.axis_size;
  // More groups to a segment have it sooner, but every warp takes a while to begin.
  const auto average_exceeds = [&](int64_t entries) {
    return entries * layout.axis_size < layout.entries;
  };
  int64_t ways = 1;
  while (ways * columns.lanes < 32 && average_exceeds(ways * kRowUnroll) &&
         (rows * order.pieces * columns.lanes * ways < kFewThreads ||
          average_exceeds(ways * kWayEntries))) {
    ways *= 2;
  }
  // Several segments in turn mean fewer waits for memory, but longer ones for the lanes that have
  // those with the most entries; the fewer lanes, the more of the time such waits are.
  int64_t run = 1;
  while (ways == 1 && columns.lanes >= kRunLanes && run < kMostRun &&
         rows * order.pieces * columns.lanes >= 2 * run * kFewThreads &&
         2 * run * layout.entries <= std::min(columns.lanes, kRunEntries) * layout.axis_size) {
    run *= 2;
  }
  LongRows longs{};
  longs.limit = run > 1 ? 2 * kAlone / run : kAlone * ways;
  // Segments up to 1.5 times the average are not listed where their groups keep memory busy.
  if (rows * order.pieces * columns.lanes * ways >= kFewThreads / 2 &&
      !average_exceeds(kMostAverage * ways)) {
    longs.limit = std::max(longs.limit, 3 * layout.entries / (2 * layout.axis_size));
  }
  // Few segments have a block each. However long they are, if that is soon done: one launch instead
  // of three. Else if many would be listed that a block soon totals: the more blocks, the longer
  // segments pay, but few blocks leave most of the GPU idle.
  int threads = kShortThreads;
  const int64_t block_ways = kRowThreads / columns.lanes;
  const int64_t blocks = rows * order.pieces;
  const bool is_alone = layout.entries > longs.limit && blocks <= kAloneBlocks &&
                        layout.entries <= std::min(kAloneEntries, kOnlyEntries * rows) * block_ways;
  if (is_alone || (blocks <= kBlocks &&
                   average_exceeds(std::max<int64_t>(kAlone / 8, blocks / kAlone) * ways) &&
                   !average_exceeds(std::max<int64_t>(kAlone, blocks) * ways))) {
    ways = block_ways;
    threads = kRowThreads;
    longs.limit = is_alone ? layout.entries : kAlone * ways;
  }
  // A thread for each vector of a row, where lanes would be left without one.
  const int64_t vectors = layout.inner / lane_columns;
  const bool is_flat = ways == 1 && vectors < int64_t{columns.lanes} * columns.pieces;
  const int lanes = is_flat ? 1 : columns.lanes;
  const int pieces = is_flat ? static_cast<int>(vectors) : columns.pieces;

  // A warp beats a block at segments of which its lanes have few entries each.
  longs.medium = columns.lanes <= kMediumLanes ? 32 / columns.lanes * kAlone : 0;
  const int64_t chunk_groups = kRowThreads / columns.lanes;
  const int64_t all_entries = layout.slabs() * layout.entries * order.pieces;
  const int64_t share = ceil_div(all_entries, kMostBlocks * chunk_groups);
  longs.chunk = chunk_groups * std::max<int64_t>(kChunkEntries, share);
  const bool may_be_long = layout.entries > longs.limit;
  if (may_be_long) {
    longs.most_items = layout.slabs() * (layout.entries / longs.limit);
    longs.most_chunks = layout.slabs() * ceil_div(layout.entries, longs.chunk) + longs.most_items;
  }
  const RowSplit split{__builtin_ctz(lanes), __builtin_ctz(ways), pieces, static_cast<int>(run)};
  return {columns, split, threads, may_be_long, longs, nullptr};
}

// Launches the kernels of a call, a SegmentRows. It takes them without their types, since there are
// many, and the compiler takes long over each.
void launch_segments(SegmentLaunch& launch, int64_t rows, const void* rows_kernel,
                     const void* chunks_kernel, void* call, IndexErrorSite errors) {
  void* of_rows[] = {call, &launch.split, &errors};
  void* of_chunks[] = {call, &launch.columns};
  const unsigned row_blocks = launch.row_blocks(rows);
  if (!launch.may_be_long) {
    TORCH_OPS_CUDA_CALL(
        cudaLaunchKernel(rows_kernel, row_blocks, launch.threads, of_rows, 0, current_stream()));
    return;
  }
  TORCH_OPS_LAUNCH(segments::clear_kernel, 1, 1, 0, launch.longs.counters);
  launch_early(rows_kernel, row_blocks, launch.threads, 0, of_rows);
  const int64_t blocks =
      std::min(launch.longs.most_chunks, kMostBlocks);  // also of medium segments
  launch_early(chunks_kernel, static_cast<unsigned>(blocks * launch.columns.pieces),
               segments::kRowThreads, 0, of_chunks);
}

// The rows of all segments.
template <class Total, class Value, class Result>
void total_segments(const SegmentCall<Value, Result>& call, typename Total::Options options,
                    Result empty, const RowPieces& order, const IndexErrorSite& errors) {
  using Part = typename Total::Part;
  const int64_t rows = call.layout.slabs() * call.layout.axis_size, inner = call.layout.inner;
  SegmentLaunch launch = launch_of(call.layout, Total::kColumns, order);
  const DeviceScratch memory(launch.take({nullptr}, inner * sizeof(Part)));
  launch.take({static_cast<char*>(memory.get())}, inner * sizeof(Part));
  const segments::Offsets offsets = segments::all_offsets(call.offsets, call.layout);
  segments::SegmentRows<Total, Value, Result> all{
      call.values, call.result,  static_cast<Part*>(launch.partials),
      offsets,     launch.longs, static_cast<Id>(rows),
      inner,       options,      empty};
  launch_segments(
      launch, rows, reinterpret_cast<const void*>(segments::rows_kernel<Total, Value, Result>),
      reinterpret_cast<const void*>(segments::chunks_kernel<Total, Value, Result>), &all, errors);
}

template <class Value>
struct ExpSumsOf {
  template <int V>
  using type = segments::ExpSums<V, ComputeType<Value>>;
};
template <class Value>
struct ProductSumsOf {
  template <int V>
  using type = segments::ProductSums<V, Value, ComputeType<Value>>;
};

// Of a plan's rows or of segments, with V columns of a lane where rows, values and `others`, which
// are of the same shape, allow.
template <class Of, class Value, class Result, class Options>
void total_rows(const RowTotals<Value, Result>& call, Options options, const Value* others) {
  constexpr int V = kVectorSize<ComputeType<Value>>;
  const RowLayout& layout = call.layout;
  const int64_t results = layout.slabs() * layout.axis_size * layout.inner;
  if (results == 0) return;
  if (layout.entries == 0) {  // a plan of nothing has null pointers
    TORCH_OPS_CUDA_CALL(
        cudaMemsetAsync(call.result, 0, results * sizeof(Result), current_stream()));
    return;
  }
  const bool is_whole = layout.inner % V == 0;
  const RowPieces order(layout.inner, is_whole ? V : 1);
  const auto total = [&](auto columns) {
    using Total = typename Of::template type<columns()>;
    if (call.plan.rows.data == nullptr) {
      const SegmentCall<Value, Result> segments{call.values, call.index, layout, call.result};
      total_segments<Total>(segments, options, Result{}, order, IndexErrorSite{});
    } else {
      with_shape(layout, [&](const auto& shape) {
        total_sorted<Total>(call.values, call.result, shape, planned_entries(call.plan, shape),
                            options, Result{});
      });
    }
  };
  const bool wide = is_whole && is_aligned(call.values, V * sizeof(Value)) &&
                    is_aligned(others, V * sizeof(Value));
  wide ? total(std::integral_constant<int, V>()) : total(std::integral_constant<int, 1>());
}

}  // namespace

namespace kernels {

template <SegmentRule kRule, class Value, class Result>
void reduce_segments(OnCuda on, const SegmentCall<Value, Result>& call,
                     const IndexErrorSite& errors) {
  const HostScope scope(on.program);
  if (call.result_count() == 0) return;
  constexpr bool kPlaces = kRule >= SegmentRule::kWhereLargest;
  // A lane reads 16 bytes, but no more than 16 bytes of results.
  constexpr int kWide = kPlaces ? std::min(kVectorSize<Value>, 4) : kVectorSize<Result>;
  const bool is_whole = call.layout.inner % kWide == 0;
  // Not of the pointer, on which no bit of the result is to depend.
  const RowPieces order(call.layout.inner, is_whole ? kWide : 1);
  const auto total = [&](auto columns) {
    using Total = typename TotalOf<kRule, Value>::template type<columns()>;
    typename Total::Options options{};
    if constexpr (kPlaces) {
      options = {kRule == SegmentRule::kWhereLargest, call.layout.entries};
    }
    if constexpr (segments::is_mean<Total>) options.divides = kRule == SegmentRule::kMean;
    total_segments<Total>(call, options, nothing_there<kRule, Result>(call.layout), order, errors);
  };
  const bool wide = is_whole && is_aligned(call.values, kWide * sizeof(Value));
  wide ? total(std::integral_constant<int, kWide>()) : total(std::integral_constant<int, 1>());
}

template <class Value>
void exp_sums(OnCuda on, const RowTotals<Value, ExpSum<ComputeType<Value>>>& call) {
  const HostScope scope(on.program);
  total_rows<ExpSumsOf<Value>>(call, segments::NoOptions{}, call.values);
}

template <class Value>
void product_sums(OnCuda on, const RowTotals<Value, ComputeType<Value>>& call,
                  const Value* others) {
  const HostScope scope(on.program);
  total_rows<ProductSumsOf<Value>>(call, segments::TwoArrays<Value>{call.values, others}, others);
}

#define TORCH_OPS_SEGMENTS(RULE, T, RESULT)                                               \
  template void reduce_segments<SegmentRule::RULE>(OnCuda, const SegmentCall<T, RESULT>&, \
                                                   const IndexErrorSite&);
TORCH_OPS_FOR_EACH_SEGMENTS(TORCH_OPS_FOR_EACH_FLOAT)

#define INSTANTIATE_TOTALS(T)                                                  \
  template void exp_sums(OnCuda, const RowTotals<T, ExpSum<ComputeType<T>>>&); \
  template void product_sums(OnCuda, const RowTotals<T, ComputeType<T>>&, const T*);
TORCH_OPS_FOR_EACH_FLOAT(INSTANTIATE_TOTALS)

}  // namespace kernels
}  // namespace torch_ops
