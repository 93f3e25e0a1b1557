#include "common/host/parallel.h"
#include "common/indexing/index_array.h"
#include "index/points/kernels/index_kernels.h"
#include "index/points/kernels/index_launch.h"

namespace torch_ops::kernels {
namespace {

int64_t rows_per_task(const PointsLayout& layout) {
  return kElementsPerTask / std::max<int64_t>(layout.inner + layout.coordinates, 1);
}

// The first row with an error, in the form of locate_rows. The entries that the rows of an axis
// share are read for the first of them.
int64_t find_error(const PointsLayout& layout) {
  if (!layout.coordinate[0].rule.raises()) return kNoBadPoint;
  PointsLayout once = layout;
  for (int a = 0; a < layout.row_axes; ++a) {
    bool shared = true;
    for (int j = 0; j < layout.coordinates; ++j) {
      shared = shared && layout.coordinate[j].strides[a] == 0;
    }
    if (!shared) continue;
    once.rows /= layout.row_axis[a].size;
    once.row_axis[a].size = 1;
  }
  const int64_t bad =
      parallel_min(once.rows, rows_per_task(layout),
                   [&](int64_t begin, int64_t end) { return find_bad_point(once, begin, end); });
  if (bad == kNoBadPoint) return bad;
  int64_t rest = bad / kMaxCoordinates, row = 0, rows = 1;  // numbered in `once`, in `layout`
  for (int a = layout.row_axes; a-- > 0;) {
    row += rest % once.row_axis[a].size * rows;
    rest /= once.row_axis[a].size;
    rows *= layout.row_axis[a].size;
  }
  return row * kMaxCoordinates + bad % kMaxCoordinates;
}

}  // namespace

int64_t gather_points(OnCpu on, const void* table, int64_t element_bytes,
                      const PointsLayout& layout, const FillPattern& fill, void* rows) {
  const HostScope scope(on.program);
  if (layout.rows == 0) return kNoBadPoint;
  // If there is nothing to copy, the index must still be valid.
  if (layout.inner == 0) return find_error(layout);
  return dispatch_size(element_bytes, [&](auto word) {
    using Word = decltype(word);
    const int64_t bad =
        parallel_min(layout.rows, rows_per_task(layout), [&](int64_t begin, int64_t end) {
          return torch_ops::gather_points(static_cast<const Word*>(table), static_cast<Word*>(rows),
                                          layout, fill.word<Word>(), begin, end);
        });
    return only_errors(bad, layout);
  });
}

int64_t put_points(OnCpu on, void* table, int64_t element_bytes, const PointsLayout& layout,
                   const void* rows) {
  const HostScope scope(on.program);
  if (layout.rows == 0) return kNoBadPoint;
  const bool few = layout.inner > 0 && layout.rows <= kFewPoints &&
                   layout.rows * layout.inner <= kElementsPerTask;
  if (!few) {
    const int64_t bad = find_error(layout);
    if (bad != kNoBadPoint || layout.inner == 0) return bad;
  }
  return dispatch_size(element_bytes, [&](auto word) {
    using Word = decltype(word);
    auto* to = static_cast<Word*>(table);
    const auto* from = static_cast<const Word*>(rows);
    if (few) return put_few_points(to, from, layout);
    parallel_for(
        layout.rows, std::max<int64_t>(rows_per_task(layout), 1),
        [&](int64_t begin, int64_t end) { torch_ops::put_points(to, from, layout, begin, end); });
    return kNoBadPoint;
  });
}

template <class Offset>
int64_t write_offsets(OnCpu on, const PointsLayout& layout, Offset none, Offset* offsets) {
  const HostScope scope(on.program);
  const int64_t bad = parallel_min(layout.rows, kElementsPerTask, [&](int64_t begin, int64_t end) {
    return torch_ops::write_offsets(offsets, layout, none, begin, end);
  });
  return only_errors(bad, layout);
}
template int64_t write_offsets(OnCpu, const PointsLayout&, int32_t, int32_t*);
template int64_t write_offsets(OnCpu, const PointsLayout&, int64_t, int64_t*);

}  // namespace torch_ops::kernels
