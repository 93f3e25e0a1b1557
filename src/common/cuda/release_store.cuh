// A store that the host sees only after all that the thread has written before. No torch.
#pragma once

#include <cstdint>

namespace torch_ops {

// What cuda::atomic_ref does. Its header would add 3 s to each of the 25 files that include this
// one.
__device__ __forceinline__ void store_release(uint32_t* to, uint32_t value) {
  asm volatile("st.release.sys.u32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
}

}  // namespace torch_ops
