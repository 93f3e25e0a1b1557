// The instruction sets that CPU loops are compiled for. No torch.
#pragma once

namespace torch_ops {

// The instructions that a loop may use; the caller knows what the CPU has.
enum class Simd {
  kBaseline,  // those that every CPU of the architecture has
  kAvx2,      // AVX2, FMA and F16C
  kAvx512,    // AVX-512 F, BW, DQ and VL too
};

}  // namespace torch_ops
