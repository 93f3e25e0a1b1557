// The host's side of one record of bad index entries (common/indexing/index_error.h). No torch, and
// no calls of CUDA: kernels that still run keep nobody from taking an error.
#pragma once

#include <atomic>
#include <cstdint>

#include "common/indexing/index_error.h"

namespace torch_ops {

// Is never freed: kernels that run and graphs that were captured hold the slot's address.
class ErrorRecord {
 public:
  // `record` is the slot's, as the host sees it. All of both is zero but for the slot's pointer.
  ErrorRecord(IndexErrorSlot* slot, const IndexErrorRecord* record)
      : slot_(slot), record_(record) {}

  IndexErrorSlot* slot() const { return slot_; }

  // The errors that were raised so far: IndexErrorSite::raised of the launches from now on.
  uint32_t raised() const { return raised_.load(std::memory_order_acquire); }

  bool pending() const { return sequence() != raised(); }

  // What is pending. Launches from now on may record the next error, and those before record no
  // more. Of several threads one may call this at a time.
  IndexErrorRecord take() {
    const uint32_t taken = sequence();
    std::atomic_thread_fence(std::memory_order_acquire);
    const IndexErrorRecord record = *record_;
    raised_.store(taken, std::memory_order_release);
    return record;
  }

 private:
  uint32_t sequence() const { return *static_cast<const volatile uint32_t*>(&record_->sequence); }

  IndexErrorSlot* slot_;
  const IndexErrorRecord* record_;
  std::atomic<uint32_t> raised_{0};
};

}  // namespace torch_ops
