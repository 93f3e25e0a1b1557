// Operations of a warp's lanes together: all lanes must reach each of these. No torch.
#pragma once

#include <cstdint>

namespace torch_ops {

constexpr unsigned kAllLanes = 0xffffffffu;

// How many lanes have it.
__device__ __forceinline__ int count_lanes(bool has) {
  return __popc(__ballot_sync(kAllLanes, has));
}

// How many of `lanes`, a bit each, come before this one. (Other lanes need not call this.)
__device__ __forceinline__ int count_before(unsigned lanes) {
  return __popc(lanes & ((1u << threadIdx.x % 32) - 1));
}

// Adds to each lane's number those of the lanes before it.
template <class T>
__device__ __forceinline__ T scan_warp(T number) {
  const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const T other = __shfl_up_sync(kAllLanes, number, step);
    if (lane >= step) number += other;
  }
  return number;
}

// Gives each lane the sums of all, in an order that is the same for all.
template <int N, class T>
__device__ __forceinline__ void sum_warp(T (&numbers)[N]) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
#pragma unroll
    for (int n = 0; n < N; ++n) numbers[n] += __shfl_xor_sync(kAllLanes, numbers[n], step);
  }
}

}  // namespace torch_ops
