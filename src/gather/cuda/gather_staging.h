// Elements of a small table from shared memory: how a call is cut into blocks, and when that is
// faster than reading the table in place. No torch.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/cuda/device_limits.h"
#include "common/layout/row_layout.h"

namespace torch_ops {

// A block copies its slab's table to shared memory, and serves one of `parts` equal shares of the
// slab's entries.
struct Staging {
  static constexpr int kMostThreads = 1024;

  int64_t parts;
  int threads;  // a block
  bool pays;
};

// The limits are those with the best choice for 3,300 calls on an H200 (docs/internals/log.md): the
// L1 cache serves smaller tables and fewer entries as well.
inline Staging cut_staging(const RowLayout& layout, int64_t word_bytes,
                           const DeviceLimits& device) {
  constexpr int64_t kLeastTable = 4 * 1024;
  constexpr int64_t kLeastEntries = 1 << 16;  // per multiprocessor
  constexpr int64_t kSmallTable = 48 * 1024;
  constexpr int64_t kPart = 384;  // entries of one slab at least that come to a multiprocessor

  if (layout.axis_size > device.shared_bytes / word_bytes) return {1, Staging::kMostThreads, false};
  const int64_t table = layout.axis_size * word_bytes, slabs = layout.slabs();
  const int threads = Staging::kMostThreads / (table > kSmallTable ? 1 : 2);
  const bool pays = table >= kLeastTable &&
                    slabs * layout.entries >= kLeastEntries * device.multiprocessors &&
                    4 * layout.entries >= 3 * layout.axis_size;
  if (!pays) return {1, threads, false};
  // All blocks at once if there are few slabs: a table is copied as few times as the GPU allows.
  const int64_t beside = std::min<int64_t>(2048 / threads, device.shared_bytes / table);
  const int64_t most = std::max<int64_t>(layout.entries / kPart, 1);
  return {std::clamp<int64_t>(device.multiprocessors * beside / slabs, 1, most), threads, true};
}

}  // namespace torch_ops
