// A sum on CUDA as the choice of a way sees it (choose.h). No torch, no CUDA.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/layout/row_layout.h"

namespace torch_ops {

// In bytes: of values; of what atomics add them up in; and of the result, which has either type.
struct SumProblem {
  RowLayout layout;
  int64_t value_bytes;
  int64_t sum_bytes;
  int64_t result_bytes;
  bool floats;
  bool repeatable;  // floats whose bits must be the same on every run
  bool in_place;    // added to the values in the result, in no fixed order
  bool planned;     // a plan has the entries in order
  bool adjacent;    // index and values can be read four entries at a time
  // Sums are floats, of which one instruction adds two or four at multiples of their size;
  // rows of so many, or the vectors of longer ones, begin there, and so do the values'.
  bool vectors;
  bool words;  // the result begins at a multiple of 4 bytes

  int64_t rows() const { return layout.slabs() * layout.axis_size; }
  int64_t entries() const { return layout.slabs() * layout.entries; }
  int64_t values() const { return entries() * layout.inner; }
  int64_t result_values() const { return rows() * layout.inner; }

  // Sums of 16-bit floats that stay floats.
  bool unrounded() const { return floats && result_bytes > value_bytes; }
  // By atomics, those that are not added up in the result itself need a table.
  int64_t table_bytes() const {
    return result_bytes == sum_bytes ? 0 : result_values() * sum_bytes;
  }
};

// The scratch that a call may use, in bytes: 16 per entry and row of the result and a tenth of
// the values, or 64 MB.
inline int64_t most_scratch(const RowLayout& layout, int64_t value_bytes) {
  constexpr int64_t kFree = 64 * 1000 * 1000;
  const int64_t rows = layout.slabs() * layout.axis_size;
  const int64_t values = layout.slabs() * layout.entries * layout.inner;
  return std::max(16 * (layout.batch * layout.entries + rows) + values * value_bytes / 10, kFree);
}

}  // namespace torch_ops
