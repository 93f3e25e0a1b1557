// Which of gather's kernels takes a call: decided from sizes alone. No torch.
#pragma once

#include <cstdint>

#include "common/row_layout.h"

namespace torch_ops {

enum class GatherPath {
  kRows,    // a lane copies a word of a row: coalesced however long the rows are
  kPacked,  // words of one or two bytes: a lane fills four bytes of the output
  kStaged,  // elements of a small table: it is held in shared memory
};

constexpr int64_t kMaxRowWords = int64_t{1} << 30;  // that a grid walks at once

// `layout` counts words of `word_bytes`, the widest in which the rows can be moved. A block may
// have `shared_bytes` of shared memory.
inline GatherPath choose_gather_path(const RowLayout& layout, int64_t word_bytes,
                                     int64_t shared_bytes) {
  // Staging reads the table once a block: worth it where a slab picks more than it holds.
  const bool small = layout.axis_size * word_bytes <= shared_bytes;
  if (layout.inner == 1 && word_bytes <= 8 && small && layout.entries >= 4 * layout.axis_size) {
    return GatherPath::kStaged;
  }
  // Only the first path cuts very long rows into parts.
  const bool narrow = word_bytes <= 2 && layout.inner <= kMaxRowWords;
  return narrow ? GatherPath::kPacked : GatherPath::kRows;
}

}  // namespace torch_ops
