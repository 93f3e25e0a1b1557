// Arithmetic written once for the CPU and the GPU.
#pragma once

#ifdef __CUDACC__
#define TORCH_OPS_HOST_DEVICE __host__ __device__ __forceinline__
#else
// Forced inlining: in a loop compiled for AVX2, a call of a function compiled for any x86-64 would
// keep the loop from being vectorised.
#define TORCH_OPS_HOST_DEVICE inline __attribute__((always_inline))
#endif

// Between the parameters and the body of a lambda that is called in such a loop.
#define TORCH_OPS_INLINE_LAMBDA __attribute__((always_inline))

namespace torch_ops {

// The type in which an op computes on values of type T: float for the 16-bit formats, T itself for
// float and double. A type narrower than a float is assumed to be a 16-bit format, so this
// header needs the name of none.
template <bool kNarrow, class T>
struct ComputeTypeOf {
  using type = T;
};
template <class T>
struct ComputeTypeOf<true, T> {
  using type = float;
};
template <class T>
using ComputeType = typename ComputeTypeOf<(sizeof(T) < sizeof(float)), T>::type;

// The base of an op that computes in ComputeType, in contrast to one that picks a value unchanged.
struct ComputesInFloat {};

}  // namespace torch_ops
