// Reductions of segments in the kernel library: segments_cpu.cpp and segments.cu. Nothing is
// checked but the values of offsets and index. No torch.
//
// A RowLayout has the segments as its axis, and the strides of the offsets as those of its index:
//   values  [batch, outer, entries, inner]   contiguous
//   offsets [batch, segments + 1]            any strides
//   result  [batch, outer, segments, inner]  contiguous
// Segment s of batch b has the entries from offsets[b, s] up to offsets[b, s + 1]. Each offset must
// be between 0 and entries: where one is not, a function for the CPU returns the position of the
// first, and one for CUDA records one. Where one is smaller than the one before, which rows are
// written is undefined; nothing is written elsewhere.
#pragma once

#include <cstdint>

#include "common/host/host_program.h"
#include "common/indexing/index_array.h"
#include "common/indexing/index_error.h"
#include "common/layout/row_layout.h"
#include "scatter/scatter_launch.h"

namespace torch_ops {

// What becomes of a segment's values. Means are of floats.
enum class SegmentRule { kSum, kMean, kProd, kLargest, kSmallest, kWhereLargest, kWhereSmallest };

template <class Value, class Result>
struct SegmentCall {
  const Value* values;
  IndexArray offsets;
  RowLayout layout;
  Result* result;

  int64_t result_count() const { return layout.slabs() * layout.axis_size * layout.inner; }
};

// The offsets as an index whose entries are checked.
inline RowLayout offsets_layout(const RowLayout& layout) {
  RowLayout offsets = layout;
  offsets.outer = 1;
  offsets.entries = layout.axis_size + 1;
  offsets.axis_size = layout.entries + 1;
  return offsets;
}

// The result of a segment without entries.
template <SegmentRule kRule, class Result>
Result nothing_there(const RowLayout& layout) {
  if constexpr (kRule >= SegmentRule::kWhereLargest) return layout.entries;
  return static_cast<Result>(kRule == SegmentRule::kProd ? 1.0f : 0.0f);
}

namespace kernels {

// Writes the result of every segment; of one without entries 1 for products, layout.entries for
// places, and else 0. The same bits on every run. Result is Value, or int64_t for the place of the
// first largest or smallest value among the entries. On CUDA largest and smallest values are of
// floats; places are of all types.
template <SegmentRule kRule, class Value, class Result>
TORCH_OPS_KERNELS_API int64_t reduce_segments(OnCpu on, const SegmentCall<Value, Result>& call);
template <SegmentRule kRule, class Value, class Result>
TORCH_OPS_KERNELS_API void reduce_segments(OnCuda on, const SegmentCall<Value, Result>& call,
                                           const IndexErrorSite& errors);

// Writes the row of its segment to each entry, and zeros to one that is in none: `rows` are
// [batch, outer, segments, inner], and `result` is [batch, outer, entries, inner], of bytes.
TORCH_OPS_KERNELS_API int64_t repeat_rows(OnCpu on, const IndexArray& offsets,
                                          const RowLayout& layout, const char* rows, char* result);
TORCH_OPS_KERNELS_API void repeat_rows(OnCuda on, const IndexArray& offsets,
                                       const RowLayout& layout, const char* rows, char* result,
                                       const IndexErrorSite& errors);

// Writes which segment each of [batch, entries] belongs to; the number of segments for one that
// belongs to none. Id is int32_t or int64_t.
template <class Id>
TORCH_OPS_KERNELS_API int64_t find_segments(OnCpu on, const IndexArray& offsets,
                                            const RowLayout& layout, Id* ids);
template <class Id>
TORCH_OPS_KERNELS_API void find_segments(OnCuda on, const IndexArray& offsets,
                                         const RowLayout& layout, Id* ids,
                                         const IndexErrorSite& errors);

// Writes the offsets [batch, axis_size + 1] of the rows that an index in order names; of one that
// is in no order, some numbers between 0 and layout.entries. Id as above.
template <class Id>
TORCH_OPS_KERNELS_API int64_t find_offsets(OnCpu on, const IndexArray& index,
                                           const RowLayout& layout, Id* offsets);
template <class Id>
TORCH_OPS_KERNELS_API void find_offsets(OnCuda on, const IndexArray& index, const RowLayout& layout,
                                        Id* offsets, const IndexErrorSite& errors);

}  // namespace kernels
}  // namespace torch_ops

// Instances of reduce_segments: INSTANTIATE(rule, Value, Result). `ORDERED` is the list of types
// whose largest and smallest values are found.
#define TORCH_OPS_SEGMENTS_SUM(T) TORCH_OPS_SEGMENTS(kSum, T, T)
#define TORCH_OPS_SEGMENTS_PROD(T) TORCH_OPS_SEGMENTS(kProd, T, T)
#define TORCH_OPS_SEGMENTS_MEAN(T) TORCH_OPS_SEGMENTS(kMean, T, T)
#define TORCH_OPS_SEGMENTS_BEST(T)   \
  TORCH_OPS_SEGMENTS(kLargest, T, T) \
  TORCH_OPS_SEGMENTS(kSmallest, T, T)
#define TORCH_OPS_SEGMENTS_WHERE(T)             \
  TORCH_OPS_SEGMENTS(kWhereLargest, T, int64_t) \
  TORCH_OPS_SEGMENTS(kWhereSmallest, T, int64_t)
#define TORCH_OPS_FOR_EACH_SEGMENTS(ORDERED)         \
  TORCH_OPS_FOR_EACH_SUMMED(TORCH_OPS_SEGMENTS_SUM)  \
  TORCH_OPS_FOR_EACH_SUMMED(TORCH_OPS_SEGMENTS_PROD) \
  TORCH_OPS_FOR_EACH_FLOAT(TORCH_OPS_SEGMENTS_MEAN)  \
  ORDERED(TORCH_OPS_SEGMENTS_BEST)                   \
  TORCH_OPS_FOR_EACH_ORDERED(TORCH_OPS_SEGMENTS_WHERE)
