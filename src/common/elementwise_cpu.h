// Runs an elementwise op over threads, in the instruction set that there is.
#pragma once

#ifndef TORCH_OPS_WITHOUT_TORCH
#include <ATen/Version.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <string>
#endif

#include <type_traits>

#include "common/elementwise.h"
#include "common/float16.h"
#include "common/parallel.h"

namespace torch_ops {

#ifdef TORCH_OPS_WITHOUT_TORCH
// What the CPU has.
inline Simd cpu_simd() {
#ifdef __x86_64__
  static const Simd simd = [] {
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                      __builtin_cpu_supports("f16c");
    const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    return !avx2 ? Simd::kBaseline : avx512 ? Simd::kAvx512 : Simd::kAvx2;
  }();
  return simd;
#else
  return Simd::kBaseline;
#endif
}

// Values are of storage types already.
template <class T>
T* as_storage(T* values) {
  return values;
}
#else
// torch's own choice: what the CPU has, or less where the environment's ATEN_CPU_CAPABILITY
// (default, avx2, avx512) says so.
inline Simd cpu_simd() {
  static const Simd simd = [] {
    const std::string capability = at::get_cpu_capability();
    if (capability == "AVX512") return Simd::kAvx512;
    return capability == "AVX2" ? Simd::kAvx2 : Simd::kBaseline;
  }();
  return simd;
}

// The same 16-bit values as a type of which the kernels know the bits.
template <class T>
auto* as_storage(T* values) {
  if constexpr (std::is_same_v<std::remove_const_t<T>, c10::Half>) {
    using Storage = std::conditional_t<std::is_const_v<T>, const Float16, Float16>;
    return reinterpret_cast<Storage*>(values);
  } else if constexpr (std::is_same_v<std::remove_const_t<T>, c10::BFloat16>) {
    using Storage = std::conditional_t<std::is_const_v<T>, const BFloat16, BFloat16>;
    return reinterpret_cast<Storage*>(values);
  } else {
    return values;
  }
}
#endif

template <class Op, class T, class... Inputs>
void map_cpu(Op op, const StridedWalk<1 + sizeof...(Inputs)>& walk, T* output,
             const Inputs*... inputs) {
  const Simd simd = cpu_simd();
  parallel_for(walk.numel, kElementsPerTask, [&](int64_t begin, int64_t end) {
    map_walk(simd, op, walk, begin, end, as_storage(output), as_storage(inputs)...);
  });
}

}  // namespace torch_ops
