// What C++ has and NVRTC lacks, for snippets that are compiled for CUDA.
#pragma once
#include "scalar.h"

// The macros of <cmath> and <cstdint>. A quotient by zero would be computed by the GPU.
#define INFINITY __builtin_bit_cast(float, 0x7f800000)
#define NAN __builtin_bit_cast(float, 0x7fc00000)
#define HUGE_VAL double(INFINITY)
#define HUGE_VALF INFINITY
#define M_E 2.7182818284590452354
#define M_LOG2E 1.4426950408889634074
#define M_LOG10E 0.43429448190325182765
#define M_LN2 0.69314718055994530942
#define M_LN10 2.30258509299404568402
#define M_PI 3.14159265358979323846
#define M_PI_2 1.57079632679489661923
#define M_PI_4 0.78539816339744830962
#define M_1_PI 0.31830988618379067154
#define M_2_PI 0.63661977236758134308
#define M_2_SQRTPI 1.12837916709551257390
#define M_SQRT2 1.41421356237309504880
#define M_SQRT1_2 0.70710678118654752440
#define INT8_MAX 127
#define INT16_MAX 32767
#define INT32_MAX 2147483647
#define INT64_MAX 9223372036854775807LL
#define INT8_MIN (-INT8_MAX - 1)
#define INT16_MIN (-INT16_MAX - 1)
#define INT32_MIN (-INT32_MAX - 1)
#define INT64_MIN (-INT64_MAX - 1)
#define UINT8_MAX 255
#define UINT16_MAX 65535
#define UINT32_MAX 4294967295U
#define UINT64_MAX 18446744073709551615ULL

namespace torch_ops {
template <class A>
constexpr bool is_floating = Same<A, float>::value || Same<A, double>::value;

}  // namespace torch_ops

// Of a float and a double, NVRTC's functions of two arguments are ambiguous, where those of the C++
// library compute in double; min and max are of a float and an integer.
#define TORCH_OPS_MIXED(name)                                                                  \
  template <class A, class B,                                                                  \
            class = typename torch_ops::EnableIf<torch_ops::is_floating<A> &&                  \
                                                 torch_ops::is_floating<B>>::type>             \
  TORCH_OPS_FUNCTION double name(A a, B b) {                                                   \
    return name(static_cast<double>(a), static_cast<double>(b));                               \
  }
TORCH_OPS_MIXED(fmin) TORCH_OPS_MIXED(fmax) TORCH_OPS_MIXED(pow) TORCH_OPS_MIXED(atan2)
TORCH_OPS_MIXED(hypot) TORCH_OPS_MIXED(fmod) TORCH_OPS_MIXED(remainder) TORCH_OPS_MIXED(fdim)
TORCH_OPS_MIXED(nextafter)
#undef TORCH_OPS_MIXED

#define TORCH_OPS_MIN_MAX(name)                                                                \
  template <class A, class B,                                                                  \
            class = typename torch_ops::EnableIf<                                              \
                torch_ops::is_number<A> && torch_ops::is_number<B> &&                          \
                torch_ops::is_floating<A> != torch_ops::is_floating<B>>::type>                 \
  TORCH_OPS_FUNCTION decltype(A() + B()) name(A a, B b) {                                      \
    using C = decltype(A() + B());                                                             \
    return name(static_cast<C>(a), static_cast<C>(b));                                         \
  }
TORCH_OPS_MIN_MAX(min)
TORCH_OPS_MIN_MAX(max)
#undef TORCH_OPS_MIN_MAX

template <class A, class B, class C,
          class = typename torch_ops::EnableIf<
              torch_ops::is_number<A> && torch_ops::is_number<B> && torch_ops::is_number<C> &&
              (torch_ops::Same<A, double>::value || torch_ops::Same<B, double>::value ||
               torch_ops::Same<C, double>::value)>::type>
TORCH_OPS_FUNCTION double fma(A a, B b, C c) {
  return fma(static_cast<double>(a), static_cast<double>(b), static_cast<double>(c));
}
