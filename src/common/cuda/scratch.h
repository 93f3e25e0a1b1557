// The host program's memory (host_program.h) for the time of a call. No torch.
#pragma once

#include <cstdint>
#include <memory>

#include "common/host/host_program.h"

namespace torch_ops {

// On the CPU. Aligned for vectors; its contents are undefined at first.
template <class T>
class Scratch {
 public:
  Scratch() = default;
  explicit Scratch(int64_t size)
      : memory_(static_cast<T*>(host_program().allocate(size * sizeof(T)))) {}
  T* get() const { return memory_.get(); }

 private:
  struct Free {
    void operator()(T* memory) const { host_program().release(memory); }
  };
  std::unique_ptr<T, Free> memory_;
};

// On the current device, for launches on the current stream during the time of a call.
class DeviceScratch {
 public:
  explicit DeviceScratch(int64_t bytes)
      : memory_(host_program().allocate_on_device(bytes > 0 ? bytes : 1)) {}
  void* get() const { return memory_.get(); }

 private:
  struct Free {
    void operator()(void* memory) const { host_program().release_on_device(memory); }
  };
  std::unique_ptr<void, Free> memory_;
};

}  // namespace torch_ops
