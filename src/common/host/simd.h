// The instruction sets that CPU loops are compiled for. No torch.
#pragma once

#include <type_traits>

namespace torch_ops {

// The instructions that a loop may use; the caller knows what the CPU has.
enum class Simd {
  kBaseline,  // those that every CPU of the architecture has
  kAvx2,      // AVX2, FMA and F16C
  kAvx512,    // AVX-512 F, BW, DQ and VL too
};

#define TORCH_OPS_AVX2 __attribute__((target("avx2,fma,f16c")))
#define TORCH_OPS_AVX512 __attribute__((target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")))

// run(loop, arguments...) is loop(set, arguments...) in a function compiled for kSimd, where `set`
// is that as a constant. The loop is a TORCH_OPS_INLINE_LAMBDA.
template <Simd kSimd>
struct CompiledFor {
  // GCC keeps fewer of a loop's numbers in registers if there are others in its function.
  template <class Loop, class... Args>
  __attribute__((noinline)) static auto run(const Loop& loop, const Args&... args) {
    return loop(std::integral_constant<Simd, kSimd>(), args...);
  }
};

#ifdef __x86_64__
template <>
struct CompiledFor<Simd::kAvx2> {
  template <class Loop, class... Args>
  TORCH_OPS_AVX2 static auto run(const Loop& loop, const Args&... args) {
    return loop(std::integral_constant<Simd, Simd::kAvx2>(), args...);
  }
};

template <>
struct CompiledFor<Simd::kAvx512> {
  template <class Loop, class... Args>
  TORCH_OPS_AVX512 static auto run(const Loop& loop, const Args&... args) {
    return loop(std::integral_constant<Simd, Simd::kAvx512>(), args...);
  }
};
#endif

// The same for `simd`, or for kMost where wider vectors gain nothing.
template <Simd kMost = Simd::kAvx512, class Loop, class... Args>
auto with_simd([[maybe_unused]] Simd simd, const Loop& loop, const Args&... args) {
#ifdef __x86_64__
  if constexpr (kMost == Simd::kAvx512) {
    if (simd == Simd::kAvx512) return CompiledFor<Simd::kAvx512>::run(loop, args...);
  }
  if (simd != Simd::kBaseline) return CompiledFor<Simd::kAvx2>::run(loop, args...);
#endif
  return CompiledFor<Simd::kBaseline>::run(loop, args...);
}

}  // namespace torch_ops
