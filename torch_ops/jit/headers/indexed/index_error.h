// How a generated kernel tells of an index entry out of range: what
// src/common/indexing/index_error.h and index_error.cuh are for compiled ones, with the same
// layout.
#pragma once
#include "scalar.h"

namespace torch_ops {

struct IndexErrorSlot;

struct IndexErrorSite {
  IndexErrorSlot* slot;
  const char* op;
  int64_t axis_size, outer, entries, rank;
  int64_t sizes[8];
  int64_t first_axis, from_end;
  uint32_t raised;
};

struct IndexErrorRecord {
  IndexErrorSite site;
  int64_t row, value, axis;
  uint32_t sequence;
};

struct IndexErrorSlot {
  uint32_t claimed, sequence;
  IndexErrorRecord* record;
};

static_assert(sizeof(IndexErrorSite) == 136 && sizeof(IndexErrorRecord) == 168,
              "the layout of src/common/indexing/index_error.h");

TORCH_OPS_FUNCTION void record_bad_entry(const IndexErrorSite& site, int64_t row, int64_t value) {
  IndexErrorSlot* const slot = site.slot;
  const uint32_t raised = site.raised;
  if (slot == nullptr || *static_cast<volatile uint32_t*>(&slot->claimed) != raised) return;
  if (atomicCAS(&slot->claimed, raised, raised + 1) != raised) return;
  IndexErrorRecord* const record = slot->record;
  const auto* const from = reinterpret_cast<const uint64_t*>(&site);
  auto* const to = reinterpret_cast<uint64_t*>(&record->site);
#pragma unroll 1
  for (int k = 0; k < static_cast<int>(sizeof(site) / sizeof(*to)); ++k) to[k] = from[k];
  record->row = row;
  record->value = value;
  // The host must not see the number before what it stands for.
  const uint32_t sequence = ++slot->sequence;
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(&record->sequence), "r"(sequence)
               : "memory");
}

}  // namespace torch_ops
