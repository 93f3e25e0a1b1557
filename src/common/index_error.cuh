// How a kernel tells that it met an index entry out of range: in memory that the host can read
// without waiting for the GPU. The host's side is in index_errors.h. No torch.
#pragma once

#include <cstdint>
#include <cuda/atomic>

namespace torch_ops {

constexpr int kMaxNamedRank = 8;  // an index of more axes is named by its flat position alone

struct IndexErrorSlot;

// What a launch hands to its kernels: where to record, and what the host needs for the message.
struct IndexErrorSite {
  IndexErrorSlot* slot;  // null: nothing is recorded
  const char* op;        // a string that lives as long as the process: the host reads it back
  int64_t axis_size;
  int64_t outer;  // of the rows that record_bad_entry counts
  int64_t entries;
  int64_t rank;  // of the index; sizes are filled where it is at most kMaxNamedRank
  int64_t sizes[kMaxNamedRank];
  int64_t coordinates;  // of an entry that is a point; 0 for one that is a number
  int64_t from_end;     // 1: -1 is the last row, and so on; a number is recorded as it was resolved
  uint32_t raised;      // errors of this slot that the host had raised when it made the launch
};

// In the host's memory, mapped to the device.
struct IndexErrorRecord {
  IndexErrorSite site;
  int64_t row;
  int64_t value;
  int64_t coordinate;  // of a point: which one, and the axis that it counts along
  int64_t axis;
  uint32_t sequence;  // how many errors were recorded here so far; written last
};

// In the device's memory: compare-and-swap on the host's memory would need PCIe atomics.
struct IndexErrorSlot {
  uint32_t claimed;   // how many errors there were: a launch records where that is its `raised`
  uint32_t sequence;  // of the last record
  IndexErrorRecord* record;
};

// The place of the highest bit that is set.
__device__ __forceinline__ uint32_t last_bit(uint32_t bits) { return 31 - __clz(bits); }

// Which of a point's coordinates is out of range, and of which axis.
struct BadCoordinate {
  int64_t number;
  int64_t axis;
  int64_t axis_size;
};

// Records an entry out of range, `value`, which belongs to `row` of [batch, outer, entries]. Of all
// threads that come here until the host has raised the error, one writes the record; a million of
// them cost a read each and no atomics. Threads of a launch that was made before the host raised an
// error record nothing after that. It is small, so that a kernel that never comes here pays no
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
    record->coordinate = coordinate->number;
    record->axis = coordinate->axis;
    record->site.axis_size = coordinate->axis_size;
  }
  // The host must not see the number before what it stands for. A store that releases, and not
  // __threadfence_system(): beside that, nvcc makes atomicAdd()s without a result, which the same
  // kernel may have, ones with a result.
  cuda::atomic_ref<uint32_t, cuda::thread_scope_system>(record->sequence)
      .store(++slot->sequence, cuda::memory_order_release);
}

}  // namespace torch_ops
