// A kernel's record of an index entry out of range: in memory that the host can read without
// waiting for the GPU. Kernels write it by index_error.cuh; the host's side is in index_errors.h.
// No torch, no CUDA.
#pragma once

#include <cstdint>

namespace torch_ops {

constexpr int kMaxNamedRank = 8;  // an index of more axes is named only by its flat position

struct IndexErrorSlot;

// The argument of a launch's kernels: where to record, and what the host needs for the message.
struct IndexErrorSite {
  IndexErrorSlot* slot;  // null: nothing is recorded
  const char* op;        // a string that lives as long as the process: the host reads it back
  int64_t axis_size;
  int64_t outer;  // of the rows that record_bad_entry counts
  int64_t entries;
  int64_t rank;  // of the index; sizes are filled if it is at most kMaxNamedRank
  int64_t sizes[kMaxNamedRank];
  // If entries are points, the axis that their first coordinate counts along; if numbers, -1.
  int64_t first_axis = -1;
  int64_t from_end;  // 1: -1 is the last row, and so on; a number is recorded as resolved
  uint32_t raised;   // errors of this slot that the host had raised when it made the launch
};

// In the host's memory, mapped to the device.
struct IndexErrorRecord {
  IndexErrorSite site;
  int64_t row;
  int64_t value;
  int64_t axis;       // that a point's coordinate counts along
  uint32_t sequence;  // how many errors were recorded here so far; written last
};

// In the device's memory: compare-and-swap on the host's memory would need PCIe atomics.
struct IndexErrorSlot {
  uint32_t claimed;   // how many errors there were: a launch records if that is its `raised`
  uint32_t sequence;  // of the last record
  IndexErrorRecord* record;
};

}  // namespace torch_ops
