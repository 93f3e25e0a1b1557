// A kernel that begins while the one before it in the stream still ends (CUDA's programmatic
// dependent launch, from compute capability 9.0 on): the time of its launch, and of what it loads
// first, is hidden. `launch_early` (common/cuda/launch.cuh) launches one. No torch.
#pragma once

namespace torch_ops {

// Waits until the kernel before this one has ended and what it wrote can be seen. A kernel that is
// launched early must call this in each thread that touches what the one before it writes or reads,
// before it does; and in one thread at least: what comes after it waits for no other kernel. What
// the one before wrote must not be read by way of `const __restrict__`, as if it had always been
// there. Costs next to nothing the second time, or where the kernel was launched as usual.
__device__ __forceinline__ void wait_for_kernel_before() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Lets the next kernel of the stream begin, if it is launched early, once all blocks have come here
// or ended.
__device__ __forceinline__ void let_next_kernel_begin() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace torch_ops
