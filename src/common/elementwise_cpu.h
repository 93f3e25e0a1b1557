// Runs an elementwise op over at::parallel_for's threads.
#pragma once

#include <ATen/Version.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <string>
#include <type_traits>

#include "common/elementwise.h"
#include "common/float16.h"
#include "common/parallel.h"

namespace torch_ops {

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

template <class Op, class T, class... Inputs>
void map_cpu(Op op, const StridedWalk<1 + sizeof...(Inputs)>& walk, T* output,
             const Inputs*... inputs) {
  const Simd simd = cpu_simd();
  at::parallel_for(0, walk.numel, kElementsPerTask, [&](int64_t begin, int64_t end) {
    map_walk(simd, op, walk, begin, end, as_storage(output), as_storage(inputs)...);
  });
}

}  // namespace torch_ops
