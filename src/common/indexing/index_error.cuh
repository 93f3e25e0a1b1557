// How a kernel records an index entry out of range (index_error.h). No torch.
#pragma once

#include <cstdint>

#include "common/cuda/release_store.cuh"
#include "common/indexing/index_error.h"

namespace torch_ops {

// The place of the highest bit that is set.
__device__ __forceinline__ uint32_t last_bit(uint32_t bits) { return 31 - __clz(bits); }

// The axis for which a point's coordinate is out of range.
struct BadCoordinate {
  int64_t axis;
  int64_t axis_size;
};

// Records an entry out of range, `value`, which belongs to `row` of [batch, outer, entries]. Of all
// threads that call this until the host has raised the error, one writes the record; a million of
// them cost a read each and no atomics. Threads of a launch that was made before the host raised an
// error record nothing after that. It is small, so a kernel that never calls it uses no
// registers for it: the host does the divisions, and the copy is a loop. `coordinate` is null for
// an entry that is a number.
__device__ __forceinline__ void record_bad_entry(const IndexErrorSite& site, int64_t row,
                                                 int64_t value,
                                                 const BadCoordinate* coordinate = nullptr) {
  IndexErrorSlot* slot = site.slot;
  const uint32_t raised = site.raised;
  if (slot == nullptr || *static_cast<volatile uint32_t*>(&slot->claimed) != raised) return;
  if (atomicCAS(&slot->claimed, raised, raised + 1) != raised) return;
  IndexErrorRecord* record = slot->record;
  const auto* from = reinterpret_cast<const uint64_t*>(&site);
  auto* to = reinterpret_cast<uint64_t*>(&record->site);
#pragma unroll 1
  for (int i = 0; i < static_cast<int>(sizeof(site) / sizeof(*to)); ++i) to[i] = from[i];
  record->row = row;
  record->value = value;
  if (coordinate != nullptr) {
    record->axis = coordinate->axis;
    record->site.axis_size = coordinate->axis_size;
  }
  // The host must not see the number before the record. A store with release semantics, and not
  // __threadfence_system(): with that, nvcc turns atomicAdd()s without a result, which the same
  // kernel may have, into ones with a result.
  store_release(&record->sequence, ++slot->sequence);
}

}  // namespace torch_ops
