// Elements of a small table from shared memory: how a call is cut into blocks, and when that is
// faster than reading the table in place. No torch.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/cuda/device_limits.h"
#include "common/layout/row_layout.h"

namespace torch_ops {

// A block copies the first `words` of its slab's table to shared memory, and serves one of `parts`
// equal shares of the slab's entries. The rest of the table is read from memory, through the L1
// cache: in shared memory it would leave no room for that.
struct Staging {
  static constexpr int kMostThreads = 1024;

  int64_t words;
  int64_t parts;
  int threads;  // a block
  bool pays;
};

// The unit of all costs is the time in which a multiprocessor serves one entry from shared memory.
// The constants fit 177 cases on an H200 (docs/internals/log.md): where they choose wrongly, calls
// take 0.7 % longer on average, and 12 % at worst.
inline Staging cut_staging(const RowLayout& layout, int64_t word_bytes,
                           const DeviceLimits& device) {
  constexpr int64_t kSmallTable = 48 * 1024;
  constexpr double kStart = 2000;         // of a launch
  constexpr double kCopiedBytes = 8;      // of a table, per unit
  constexpr double kUnstaged = 0.5;       // more for an entry that is not in shared memory
  constexpr double kMiss = 2.65;          // more for an entry read without the L1 cache
  constexpr double kCacheBytes = 131072;  // of the L1 cache that hold a table
  constexpr int64_t kFlatEntries = 384;   // of one slab at least that come to a multiprocessor

  const int64_t table = layout.axis_size * word_bytes;
  const bool whole = table <= device.shared_bytes;
  const int64_t staged = whole ? table : device.shared_bytes / 6 * 5 / 16 * 16;
  Staging staging{staged / word_bytes, 1,
                  staged > kSmallTable ? Staging::kMostThreads : Staging::kMostThreads / 2, false};
  if (2 * table > 5 * device.shared_bytes || layout.slabs() == 0) return staging;

  // All blocks at once if there are few slabs: a table is copied as few times as the GPU allows.
  const int64_t beside = std::min<int64_t>(2048 / staging.threads, device.shared_bytes / staged);
  const int64_t at_once = device.multiprocessors * beside;
  staging.parts = std::clamp<int64_t>(at_once / layout.slabs(), 1,
                                      std::max<int64_t>(layout.entries / kFlatEntries, 1));
  const int64_t blocks = layout.slabs() * staging.parts;
  const int64_t waves = (blocks + at_once - 1) / at_once;

  const double bytes = static_cast<double>(table);
  const double entries = static_cast<double>(layout.entries);
  const double each = entries * static_cast<double>(layout.slabs()) /
                      static_cast<double>(device.multiprocessors);  // entries of a multiprocessor
  const double idle = static_cast<double>(waves * at_once) / static_cast<double>(blocks);
  const double copies = static_cast<double>(waves * beside * staged) / kCopiedBytes;
  const double unstaged = kUnstaged * (1 - static_cast<double>(staged) / bytes);
  const double cost = kStart + copies + each * idle * (1 + unstaged);

  // In place: entries miss the L1 cache the first time that one reads a sector of the
  // table, and if the table exceeds that cache.
  const double of_slab =
      std::max<double>(entries / static_cast<double>(device.multiprocessors), kFlatEntries);
  const double first = std::min(bytes / 32 / of_slab, 1.0);
  const double misses = 1 - (1 - first) * std::min(kCacheBytes / bytes, 1.0);
  staging.pays = cost < each * (1 + kMiss * misses);
  return staging;
}

}  // namespace torch_ops
