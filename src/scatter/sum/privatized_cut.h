// How scatter_add cuts a call to few rows per slab, of which each lane has its own sums
// (cuda/privatized/): from sizes and alignment alone. No torch.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>

#include "common/cuda/device_limits.h"
#include "common/host/ceil_div.h"
#include "scatter/sum/problem.h"
#include "scatter/sum/tuning.h"

namespace torch_ops {

// A block has a part of a slab's entries, in a strip of their columns. Groups of its lanes take
// entries in turn, each lane one column or a vector of them.
struct PrivatizedCut {
  static constexpr int kVector = 4;
  static constexpr int kAhead = 8;   // values, or vectors of them, that a lane reads at a time
  static constexpr int kNamed = 8;   // entries of the index that a thread reads at a time
  static constexpr int kBlocks = 2;  // per multiprocessor

  // Of a block, at most.
  static constexpr int threads_for(int vector) { return vector == 1 ? 512 : 256; }

  bool fits;     // otherwise this way cannot do the call, and nothing below has a meaning
  int vector;    // columns of a lane: 1 or kVector
  bool aligned;  // vectors can be loaded as such
  int threads;
  int lanes;  // of a group: they have the columns of a strip
  int64_t strips;
  int64_t parts;  // of a slab
  int64_t part_entries;
  int64_t table_bytes;  // of shared memory, of which the index needs some more
  int64_t shared_bytes;
  int64_t scratch;  // for the sums of parts, if there are several

  int groups() const { return threads / lanes; }
};

// The threads of a block, and what they need of shared memory. False if there is no room for
// enough.
inline bool fill_block(PrivatizedCut& cut, int vector, const SumProblem& problem,
                       const DeviceLimits& device) {
  constexpr int64_t kOwnBytes = 1024;  // which every block needs
  const int64_t most_bytes = device.shared_bytes / PrivatizedCut::kBlocks - kOwnBytes;
  // One more row for entries that name none.
  const int64_t table_bytes = (problem.layout.axis_size + 1) * vector * problem.sum_bytes;
  const int64_t bytes = table_bytes + PrivatizedCut::kNamed * int64_t{sizeof(uint16_t)};
  const int64_t most = most_bytes / bytes / 32 * 32;
  cut.vector = vector;
  cut.threads = static_cast<int>(std::min<int64_t>(most, PrivatizedCut::threads_for(vector)));
  cut.table_bytes = cut.threads * table_bytes;
  cut.shared_bytes = cut.threads * bytes;
  return cut.threads >= tuning(device).privatized.least_threads;
}

inline PrivatizedCut cut_privatized(const SumProblem& problem, const DeviceLimits& device) {
  const PrivatizedTuning& tuned = tuning(device).privatized;
  const RowLayout& layout = problem.layout;
  PrivatizedCut cut{};
  if (layout.entries == 0 || problem.result_values() == 0) return cut;
  // Not by alignment, on which the bits of the sums would depend then.
  const bool wide = problem.floats && problem.sum_bytes == sizeof(float) &&
                    layout.inner % PrivatizedCut::kVector == 0 &&
                    fill_block(cut, PrivatizedCut::kVector, problem, device);
  if (!wide && !fill_block(cut, 1, problem, device)) return cut;
  cut.aligned = problem.vectors;
  const int64_t vectors = layout.inner / cut.vector;
  cut.lanes = static_cast<int>(ceil_div(vectors, ceil_div(vectors, cut.threads)));
  cut.strips = ceil_div(vectors, cut.lanes);

  // As many blocks as run at once, or a multiple of that with few idle at the end. If the bits of
  // the sums must be the same on every run, they depend on a slab alone.
  const int64_t blocks = (problem.repeatable ? 1 : layout.slabs()) * cut.strips;
  const int64_t at_once = PrivatizedCut::kBlocks * device.multiprocessors;
  int64_t parts = 1;
  for (int64_t waves = 1; waves <= 4; ++waves) {
    parts = std::max<int64_t>(waves * at_once / blocks, 1);
    if (10 * blocks * parts >= 9 * waves * at_once) break;
  }
  // Entries per row of a part: for which the sums of parts take a tenth of the values' bytes, as
  // far as scratch memory is not free.
  const int64_t sparing = ceil_div(10 * problem.sum_bytes, problem.value_bytes);
  const auto divide = [&](int64_t per_row) {
    const int64_t least = std::max(cut.groups() * tuned.thread_entries, per_row * layout.axis_size);
    const int64_t worth = std::clamp<int64_t>(layout.entries / least, 1, parts);
    cut.part_entries = ceil_div(layout.entries, worth);
    cut.parts = ceil_div(layout.entries, cut.part_entries);
    cut.scratch = cut.parts > 1 ? cut.parts * problem.result_values() * problem.sum_bytes : 0;
  };
  divide(problem.repeatable ? sparing : tuned.entries_per_partial);
  if (cut.scratch > most_scratch(layout, problem.value_bytes)) divide(sparing);

  // The kernel counts the values and the index of a part in 32 bits.
  const int64_t step = std::max(layout.inner, std::abs(layout.index_entry_stride));
  cut.fits = cut.part_entries <= INT32_MAX / 2 / step && cut.strips <= 65535 &&
             layout.slabs() * cut.parts <= INT32_MAX;
  return cut;
}

}  // namespace torch_ops
