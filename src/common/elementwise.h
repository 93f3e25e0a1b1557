// The CPU loop of an elementwise op: output[i] = op(inputs[i]...) for i in [begin, end), where the
// output may be one of the inputs. Compile it with -fno-trapping-math (see setup.py): else GCC
// vectorises no loop that chooses between two results.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#ifdef __x86_64__
#include <immintrin.h>
#endif

#include "common/float16.h"
#include "common/host_device.h"

namespace torch_ops {

// The instructions that a loop may use; whoever calls it knows what the CPU has.
enum class Simd {
  kBaseline,  // those that every CPU of the architecture has
  kAvx2,      // AVX2, FMA and F16C
  kAvx512,    // AVX-512 F, BW, DQ and VL too
};

#define TORCH_OPS_AVX2 __attribute__((target("avx2,fma,f16c")))
#define TORCH_OPS_AVX512 __attribute__((target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")))

template <class Op, class T, class... Inputs>
TORCH_OPS_HOST_DEVICE void map_loop(Op op, int64_t begin, int64_t end, T* output,
                                    const Inputs*... inputs) {
  for (int64_t i = begin; i < end; ++i) output[i] = op(inputs[i]...);
}

template <class Op, class T, class... Inputs>
void map_range_baseline(Op op, int64_t begin, int64_t end, T* output, const Inputs*... inputs) {
  map_loop(op, begin, end, output, inputs...);
}

#ifdef __x86_64__
template <class Op, class T, class... Inputs>
TORCH_OPS_AVX2 void map_range_avx2(Op op, int64_t begin, int64_t end, T* output,
                                   const Inputs*... inputs) {
  map_loop(op, begin, end, output, inputs...);
}

template <class Op, class T, class... Inputs>
TORCH_OPS_AVX512 void map_range_avx512(Op op, int64_t begin, int64_t end, T* output,
                                       const Inputs*... inputs) {
  map_loop(op, begin, end, output, inputs...);
}

// F16C's conversions, in half the time or less of Float16's own; compilers do not make them of a
// loop.
TORCH_OPS_AVX2 inline void widen(const Float16* source, int64_t n, float* result) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(source + i));
    _mm256_storeu_ps(result + i, _mm256_cvtph_ps(halves));
  }
  for (; i < n; ++i) result[i] = _cvtsh_ss(source[i].bits);
}

TORCH_OPS_AVX2 inline void narrow(const float* source, int64_t n, Float16* result) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m256 floats = _mm256_loadu_ps(source + i);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(result + i),
                     _mm256_cvtps_ph(floats, _MM_FROUND_TO_NEAREST_INT));
  }
  for (; i < n; ++i) result[i].bits = _cvtss_sh(source[i], _MM_FROUND_TO_NEAREST_INT);
}

constexpr int64_t kWidenedBlock = 512;  // its floats stay in the first-level cache

struct Widened {
  float values[kWidenedBlock];

  Widened(const Float16* source, int64_t n) { widen(source, n, values); }
};
#endif

template <class Op, class T, class... Inputs>
void map_range([[maybe_unused]] Simd simd, Op op, int64_t begin, int64_t end, T* output,
               const Inputs*... inputs) {
#ifdef __x86_64__
  if constexpr (std::is_same_v<T, Float16> && std::is_base_of_v<ComputesInFloat, Op>) {
    if (simd != Simd::kBaseline) {
      float results[kWidenedBlock];
      for (int64_t first = begin; first < end; first += kWidenedBlock) {
        const int64_t n = std::min(kWidenedBlock, end - first);
        map_range(simd, op, 0, n, results, Widened(inputs + first, n).values...);
        narrow(results, n, output + first);
      }
      return;
    }
  }
  if (simd == Simd::kAvx512) return map_range_avx512(op, begin, end, output, inputs...);
  if (simd == Simd::kAvx2) return map_range_avx2(op, begin, end, output, inputs...);
#endif
  map_range_baseline(op, begin, end, output, inputs...);
}

}  // namespace torch_ops
