// mask_positions and masked_scatter in the kernel library: mask_cpu.cpp and mask_cuda.cu. No torch.
#pragma once

#include <cstdint>

#include "common/host/host_program.h"

namespace torch_ops::kernels {

// Writes where a mask is true to the front of `positions`, in order, as many as it has room for;
// the rest is not changed. Position is int32_t or int64_t.
template <class Position>
TORCH_OPS_KERNELS_API void mask_positions(OnCpu on, const bool* mask, int64_t entries,
                                          Position* positions, int64_t room);
template <class Position>
TORCH_OPS_KERNELS_API void mask_positions(OnCuda on, const bool* mask, int64_t entries,
                                          Position* positions, int64_t room);

// Writes `room` rows of `row_bytes` each, in order, to where a mask is true, and zeros elsewhere.
// On CUDA a cumulative sum and a gather do it.
TORCH_OPS_KERNELS_API void masked_scatter(OnCpu on, const bool* mask, int64_t entries,
                                          const char* rows, int64_t room, int64_t row_bytes,
                                          char* result);

}  // namespace torch_ops::kernels
