// A kernel that begins while the previous one in the stream is ending (CUDA's programmatic
// dependent launch, from compute capability 9.0 on): this hides the time of its launch, and of its
// first loads. `launch_early` (common/cuda/launch.cuh) launches one. No torch.
#pragma once

namespace torch_ops {

// Waits until the previous kernel has ended and its writes are visible. A kernel that is launched
// early must call this in each thread that accesses memory which the previous one writes or reads,
// before the access; and in at least one thread: later kernels wait only for this one. Memory
// that the previous one wrote must not be read through `const __restrict__`, as if it had always
// been there. Costs almost nothing the second time, or if the kernel was launched as usual.
__device__ __forceinline__ void wait_for_kernel_before() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Lets the next kernel of the stream begin, if it is launched early, once all blocks have called
// this or ended.
__device__ __forceinline__ void let_next_kernel_begin() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace torch_ops
