// How the contracts of gathers and writes at points call the kernel library, and raise the errors
// of entries in torch's words.
#pragma once

#include <ATen/core/Tensor.h>

#include "common/gather_family/index_errors.h"
#include "common/gather_family/indexing.h"
#include "common/indexing/index_array.h"
#include "common/torch/calls/call_kernels.h"
#include "index/points/kernels/index_launch.h"

namespace torch_ops::points {

// What an error says about an entry that names no row. Sizes are those of the points: the axes of
// the index arrays, broadcast, or of gather_nd's index except its last.
struct PointsSite {
  const char* op;  // a string that lives as long as the process
  at::IntArrayRef sizes;
  int64_t outer;    // how many times the rows pass over all points of a batch
  int64_t entries;  // points of a batch
  // The only array is named as the index of an op by rows: without the axis that it is for.
  bool of_rows = false;
};

inline int64_t read_entry(const Coordinate& coordinate, const PointsLayout& layout, int64_t row) {
  int64_t position = 0;
  for (int a = layout.row_axes; a-- > 0;) {
    position += row % layout.row_axis[a].size * coordinate.strides[a];
    row /= layout.row_axis[a].size;
  }
  return dispatch_index({coordinate.data, coordinate.entry_bytes}, [&](const auto* entries) {
    return static_cast<int64_t>(entries[position]);
  });
}

// Raises the error for `bad`, a result of a kernel on the CPU.
inline void check_bad(int64_t bad, const PointsLayout& layout, const PointsSite& site) {
  if (bad == kNoBadPoint) return;
  const int64_t row = bad / kMaxCoordinates, number = bad % kMaxCoordinates;
  const Coordinate& coordinate = layout.coordinate[number];
  const bool from_end = coordinate.rule.mode() == IndexMode::kFromEnd;
  const int64_t position = row / site.entries / site.outer * site.entries + row % site.entries;
  const std::string entry =
      site.of_rows ? indexing::name_entry(site.op, site.sizes, position)
                   : indexing::name_coordinate(site.sizes, position,
                                               coordinate.axis - layout.coordinate[0].axis,
                                               coordinate.axis, from_end);
  TORCH_CHECK_INDEX(false,
                    indexing::out_of_range_text(site.op, entry, read_entry(coordinate, layout, row),
                                                coordinate.rule.axis_size(), from_end));
}

// Calls launch(on, errors...) on `output`'s device, which is of the kind that On names. Raises
// IndexError if an entry is an error: on the CPU here, on CUDA at the next call, or at this one
// in sync mode (common/gather_family/index_errors.h).
template <class On, class Launch>
void call_at_points(const PointsLayout& layout, const PointsSite& site, const at::Tensor& output,
                    Launch&& launch) {
  with_kernels<On>(output, [&](auto on) {
    if constexpr (std::is_same_v<On, OnCpu>) {
      check_bad(launch(on), layout, site);
    } else {
      IndexErrorCall errors(/*wait=*/false);
      const IndexRule& rule = layout.coordinate[0].rule;  // all have one mode
      if (rule.raises()) errors.record();
      name_entries(errors.site, site.op, site.sizes, site.outer, site.entries);
      errors.site.first_axis = site.of_rows ? -1 : layout.coordinate[0].axis;
      errors.site.from_end = rule.mode() == IndexMode::kFromEnd;
      launch(on, static_cast<const IndexErrorSite&>(errors.site));
      errors.end();
    }
  });
}

}  // namespace torch_ops::points
