// In the place of the library's: what common/indexing/index_error.cuh takes of CUDA's C++, for a
// program that runs on the CPU. Threads there stand for those of a kernel.
#pragma once

#include <atomic>
#include <cstdint>

#define __device__
#define __forceinline__ inline
#define __clz __builtin_clz

inline uint32_t atomicCAS(uint32_t* at, uint32_t expected, uint32_t wanted) {
  std::atomic_ref(*at).compare_exchange_strong(expected, wanted);
  return expected;
}

namespace torch_ops {

inline void store_release(uint32_t* to, uint32_t value) {
  std::atomic_ref(*to).store(value, std::memory_order_release);
}

}  // namespace torch_ops
