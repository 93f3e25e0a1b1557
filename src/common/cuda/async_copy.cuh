// Copies from global to shared memory that a thread does not wait for: bytes in flight need no
// registers, so more of them fit a multiprocessor. No torch.
#pragma once

#include <cstdint>

namespace torch_ops {

// Copies sizeof(Word) bytes: 4, 8 or 16, both addresses aligned to it. Before compute
// capability 8.0 the thread waits after all.
template <class Word>
__device__ __forceinline__ void copy_async(Word* shared, const Word* global) {
  static_assert(sizeof(Word) == 4 || sizeof(Word) == 8 || sizeof(Word) == 16);
#if __CUDA_ARCH__ >= 800
  // Through the L1 cache: otherwise all multiprocessors would ask one slice of the L2 cache for a
  // row that most entries of an index name.
  const auto to = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(to), "l"(global), "n"(sizeof(Word))
               : "memory");
#else
  *shared = *global;
#endif
}

// Waits for all copies that this thread began. Those of other threads also need a __syncthreads().
__device__ __forceinline__ void wait_for_copies() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

}  // namespace torch_ops
