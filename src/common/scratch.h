// Memory on the CPU for the time of a call: of torch's allocator, or of malloc where
// TORCH_OPS_WITHOUT_TORCH is defined.
#pragma once

#include <cstdint>

#ifdef TORCH_OPS_WITHOUT_TORCH
#include <algorithm>
#include <cstdlib>
#include <memory>
#include <new>
#else
#include <c10/core/CPUAllocator.h>
#endif

namespace torch_ops {

// Aligned for vectors; its contents are nonsense at first.
template <class T>
class Scratch {
 public:
  Scratch() = default;
#ifdef TORCH_OPS_WITHOUT_TORCH
  explicit Scratch(int64_t size) {
    constexpr size_t kAlignment = 64;
    const size_t bytes = std::max<size_t>(size * sizeof(T), 1);
    memory_.reset(
        std::aligned_alloc(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment));
    if (memory_ == nullptr) throw std::bad_alloc();
  }
#else
  explicit Scratch(int64_t size) : memory_(c10::GetCPUAllocator()->allocate(size * sizeof(T))) {}
#endif
  T* get() const { return static_cast<T*>(memory_.get()); }

 private:
#ifdef TORCH_OPS_WITHOUT_TORCH
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  std::unique_ptr<void, Free> memory_;
#else
  c10::DataPtr memory_;
#endif
};

}  // namespace torch_ops
