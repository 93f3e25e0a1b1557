// How gathers and writes at points see their tensors, whatever their ranks. No torch.
#pragma once

#include <cstdint>

#include "common/indexing/index_mode.h"

namespace torch_ops {

constexpr int kMaxCoordinates = 16;
constexpr int kMaxPointAxes = 6;  // of the rows, and of a row, after joining
constexpr int64_t kNoBadPoint = INT64_MAX;

// One of a point's coordinates: an index into one axis of the table.
struct Coordinate {
  const void* data;
  int32_t entry_bytes;  // 1: uint8, 2: int16, 4: int32, 8: int64
  int32_t axis;         // that it counts along, for messages
  IndexRule rule;
  int64_t table_stride;
  int64_t strides[kMaxPointAxes];  // over the axes of the rows; 0 if it is broadcast
};

struct PointsAxis {
  int64_t size;
  int64_t table_stride;
  int64_t rows_stride;
};

//   rows [row axes, inner axes]   the rows that are gathered, or written
//
// Row r is in the table at the sum of its axes' strides and, for each coordinate, of the resolved
// entry times the coordinate's stride. The table and the rows may have any strides.
// There is at least one inner axis, of one element if necessary. Strides count elements.
struct PointsLayout {
  int64_t rows;
  int64_t inner;
  int32_t row_axes;
  int32_t inner_axes;
  int32_t coordinates;
  PointsAxis row_axis[kMaxPointAxes];
  PointsAxis inner_axis[kMaxPointAxes];
  Coordinate coordinate[kMaxCoordinates];

  // The innermost one; how a row is read in wide words depends on it.
  const PointsAxis& last_axis() const { return inner_axis[inner_axes - 1]; }
};

// An offset that no sum of strides reaches: a bad entry adds it. Offsets of elements are not
// negative and below 2^50, so that a sum with one or more of these is negative.
constexpr int64_t kBadOffset = -(int64_t{1} << 56);

}  // namespace torch_ops
