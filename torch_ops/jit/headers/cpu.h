// What CUDA C++ has and standard C++ lacks, for snippets that are compiled for the CPU.
#pragma once
#ifdef TORCH_OPS_WITHOUT_STD  // torch_ops/jit/building/compilation.py defines it
// No Bessel functions and their like: their headers take a third of the time of a small kernel.
#include <cstddef>
#undef _GLIBCXX_USE_STD_SPEC_FUNCS
#endif
#include <cmath>

#include "scalar.h"
#include "vector_math.h"

extern "C" int printf(const char*, ...);  // <cstdio> would take longer to compile

#define __device__
#define __host__
#define __forceinline__ inline
#define __noinline__  // nothing, as it is within __attribute__((__noinline__)) of C++ libraries
#define __restrict__ __restrict

#define TORCH_OPS_STD(name) using std::name;
TORCH_OPS_STD(abs) TORCH_OPS_STD(fabs) TORCH_OPS_STD(sqrt) TORCH_OPS_STD(cbrt)
TORCH_OPS_STD(exp) TORCH_OPS_STD(exp2) TORCH_OPS_STD(expm1)
TORCH_OPS_STD(log) TORCH_OPS_STD(log2) TORCH_OPS_STD(log10) TORCH_OPS_STD(log1p)
TORCH_OPS_STD(logb) TORCH_OPS_STD(ilogb)
TORCH_OPS_STD(sin) TORCH_OPS_STD(cos) TORCH_OPS_STD(tan)
TORCH_OPS_STD(asin) TORCH_OPS_STD(acos) TORCH_OPS_STD(atan) TORCH_OPS_STD(atan2)
TORCH_OPS_STD(sinh) TORCH_OPS_STD(cosh) TORCH_OPS_STD(tanh)
TORCH_OPS_STD(asinh) TORCH_OPS_STD(acosh) TORCH_OPS_STD(atanh)
TORCH_OPS_STD(erf) TORCH_OPS_STD(erfc) TORCH_OPS_STD(lgamma) TORCH_OPS_STD(tgamma)
TORCH_OPS_STD(floor) TORCH_OPS_STD(ceil) TORCH_OPS_STD(trunc) TORCH_OPS_STD(round)
TORCH_OPS_STD(rint) TORCH_OPS_STD(nearbyint) TORCH_OPS_STD(lround) TORCH_OPS_STD(llround)
TORCH_OPS_STD(lrint) TORCH_OPS_STD(llrint)
TORCH_OPS_STD(pow) TORCH_OPS_STD(hypot) TORCH_OPS_STD(fmod) TORCH_OPS_STD(remainder)
TORCH_OPS_STD(fdim) TORCH_OPS_STD(fma)
TORCH_OPS_STD(modf) TORCH_OPS_STD(frexp) TORCH_OPS_STD(remquo)
TORCH_OPS_STD(copysign) TORCH_OPS_STD(nextafter) TORCH_OPS_STD(ldexp) TORCH_OPS_STD(scalbn)
TORCH_OPS_STD(isnan) TORCH_OPS_STD(isinf) TORCH_OPS_STD(isfinite) TORCH_OPS_STD(signbit)
#undef TORCH_OPS_STD

namespace torch_ops {
template <class A>
struct HostFloat {  // what <cmath> computes in: double for integers
  using type = double;
};
template <>
struct HostFloat<float> {
  using type = float;
};
}  // namespace torch_ops

// A name of its own each, since newer C libraries declare some of these functions too.
#define rsqrt torch_ops_rsqrt
#define rsqrtf torch_ops_rsqrtf
#define rcbrt torch_ops_rcbrt
#define rcbrtf torch_ops_rcbrtf
#define exp10 torch_ops_exp10
#define exp10f torch_ops_exp10f
#define sinpi torch_ops_sinpi
#define sinpif torch_ops_sinpif
#define cospi torch_ops_cospi
#define cospif torch_ops_cospif
#define normcdf torch_ops_normcdf
#define normcdff torch_ops_normcdff
#define sincos torch_ops_sincos
#define sincosf torch_ops_sincosf
#define rhypot torch_ops_rhypot
#define rhypotf torch_ops_rhypotf
// The C library's are calls, which keep loops from being vectorised.
#define fmin torch_ops_fmin
#define fminf torch_ops_fminf
#define fmax torch_ops_fmax
#define fmaxf torch_ops_fmaxf

namespace torch_ops {
// The sine (odd) or cosine (even) of pi x, exact where x is a multiple of 1/2.
template <class F>
inline F sine_of_pi(F x, bool cosine) {
  const F turn = x - 2 * std::rint(x / 2);  // in [-1, 1]; exact
  const F quarter = std::rint(2 * turn);
  const F angle = F(3.14159265358979323846) * (turn - quarter / 2);
  if (!(std::isfinite(x))) return x - x;
  switch ((int(quarter) + (cosine ? 1 : 0)) & 3) {
    case 0:
      return std::sin(angle);
    case 1:
      return std::cos(angle);
    case 2:
      return -std::sin(angle);
    default:
      return -std::cos(angle);
  }
}
}  // namespace torch_ops

#define TORCH_OPS_UNARY(name, ...)                                                    \
  template <class A, class = typename torch_ops::EnableIf<torch_ops::is_number<A>>::type> \
  inline typename torch_ops::HostFloat<A>::type name(A value) {                       \
    using F = typename torch_ops::HostFloat<A>::type;                                 \
    const F x = static_cast<F>(value);                                                \
    return __VA_ARGS__;                                                               \
  }                                                                                   \
  inline float name##f(float value) { return name(value); }
TORCH_OPS_UNARY(torch_ops_rsqrt, F(1) / std::sqrt(x))
TORCH_OPS_UNARY(torch_ops_rcbrt, F(1) / std::cbrt(x))
TORCH_OPS_UNARY(torch_ops_exp10, std::pow(F(10), x))
TORCH_OPS_UNARY(torch_ops_sinpi, torch_ops::sine_of_pi(x, false))
TORCH_OPS_UNARY(torch_ops_cospi, torch_ops::sine_of_pi(x, true))
TORCH_OPS_UNARY(torch_ops_normcdf, F(0.5) * std::erfc(x * F(-0.70710678118654752440)))
#ifndef TORCH_OPS_WITHOUT_VECTOR_MATH
TORCH_OPS_UNARY(torch_ops_exp, torch_ops::math::exp(x))
TORCH_OPS_UNARY(torch_ops_log, torch_ops::math::log(x))
TORCH_OPS_UNARY(torch_ops_log1p, torch_ops::math::log1p(x))
TORCH_OPS_UNARY(torch_ops_tanh, torch_ops::math::tanh(x))
TORCH_OPS_UNARY(torch_ops_expm1, torch_ops::math::expm1(x))
TORCH_OPS_UNARY(torch_ops_erf, torch_ops::math::erf(x))
inline long double torch_ops_exp(long double x) { return std::exp(x); }
inline long double torch_ops_log(long double x) { return std::log(x); }
inline long double torch_ops_log1p(long double x) { return std::log1p(x); }
inline long double torch_ops_tanh(long double x) { return std::tanh(x); }
inline long double torch_ops_expm1(long double x) { return std::expm1(x); }
inline long double torch_ops_erf(long double x) { return std::erf(x); }
#define TORCH_OPS_ALSO_IN_STD(name) \
  namespace std {                   \
  using ::torch_ops_##name;         \
  using ::torch_ops_##name##f;      \
  }
TORCH_OPS_ALSO_IN_STD(exp) TORCH_OPS_ALSO_IN_STD(log)
TORCH_OPS_ALSO_IN_STD(log1p) TORCH_OPS_ALSO_IN_STD(tanh)
TORCH_OPS_ALSO_IN_STD(expm1) TORCH_OPS_ALSO_IN_STD(erf)
#undef TORCH_OPS_ALSO_IN_STD
#define exp torch_ops_exp
#define expf torch_ops_expf
#define log torch_ops_log
#define logf torch_ops_logf
#define log1p torch_ops_log1p
#define log1pf torch_ops_log1pf
#define tanh torch_ops_tanh
#define tanhf torch_ops_tanhf
#define expm1 torch_ops_expm1
#define expm1f torch_ops_expm1f
#define erf torch_ops_erf
#define erff torch_ops_erff
#endif
#undef TORCH_OPS_UNARY

inline float torch_ops_rhypot(float x, float y) { return 1 / std::hypot(x, y); }
inline double torch_ops_rhypot(double x, double y) { return 1 / std::hypot(x, y); }
inline float torch_ops_rhypotf(float x, float y) { return 1 / std::hypot(x, y); }
inline void torch_ops_sincos(float x, float* s, float* c) { *s = std::sin(x), *c = std::cos(x); }
inline void torch_ops_sincos(double x, double* s, double* c) { *s = std::sin(x), *c = std::cos(x); }
inline void torch_ops_sincosf(float x, float* s, float* c) { torch_ops_sincos(x, s, c); }

// CUDA's min and max are fmin and fmax on floats: of a NaN and a number they give the number.
#define TORCH_OPS_MIN_MAX(name, compare)                                                     \
  template <class A, class B,                                                                \
            class = typename torch_ops::EnableIf<torch_ops::is_number<A> &&                  \
                                                 torch_ops::is_number<B>>::type>             \
  inline decltype(A() + B()) name(A a, B b) {                                                \
    using C = decltype(A() + B());                                                           \
    const C x = static_cast<C>(a), y = static_cast<C>(b);                                    \
    return x compare y || y != y ? x : y;                                                    \
  }
TORCH_OPS_MIN_MAX(min, <)
TORCH_OPS_MIN_MAX(max, >)
#undef TORCH_OPS_MIN_MAX

// Of integers in double, as <cmath> has it.
#define TORCH_OPS_FMIN_FMAX(name, compare, sign)                                                 \
  template <class A, class B,                                                                    \
            class = typename torch_ops::EnableIf<torch_ops::is_number<A> &&                      \
                                                 torch_ops::is_number<B>>::type>                 \
  inline decltype(typename torch_ops::HostFloat<A>::type() +                                     \
                  typename torch_ops::HostFloat<B>::type()) name(A a, B b) {                     \
    return compare(static_cast<typename torch_ops::HostFloat<A>::type>(a),                       \
                   static_cast<typename torch_ops::HostFloat<B>::type>(b));                      \
  }                                                                                              \
  inline float name##f(float a, float b) { return compare(a, b); }                               \
  inline long double name(long double a, long double b) {                                        \
    return a sign b || b != b ? a : b;                                                           \
  }                                                                                              \
  namespace std {                                                                                \
  using ::name;                                                                                  \
  using ::name##f;                                                                               \
  }
TORCH_OPS_FMIN_FMAX(torch_ops_fmin, min, <)
TORCH_OPS_FMIN_FMAX(torch_ops_fmax, max, >)
#undef TORCH_OPS_FMIN_FMAX

// Raw outputs that several elements write to.
#define TORCH_OPS_ATOMIC(name, ...)                                                           \
  template <class A, class B>                                                                 \
  inline A name(A* at, B given) {                                                             \
    static_assert(!torch_ops::Same<A, const A>::value, "this array must be a raw output");    \
    const A value = static_cast<A>(given);                                                    \
    A seen, result;                                                                           \
    __atomic_load(at, &seen, __ATOMIC_RELAXED);                                               \
    do {                                                                                      \
      result = __VA_ARGS__;                                                                   \
    } while (!__atomic_compare_exchange(at, &seen, &result, true, __ATOMIC_RELAXED,           \
                                        __ATOMIC_RELAXED));                                   \
    return seen;                                                                              \
  }
TORCH_OPS_ATOMIC(atomicAdd, seen + value)
TORCH_OPS_ATOMIC(atomicSub, seen - value)
TORCH_OPS_ATOMIC(atomicMin, min(seen, value))
TORCH_OPS_ATOMIC(atomicMax, max(seen, value))
TORCH_OPS_ATOMIC(atomicAnd, seen & value)
TORCH_OPS_ATOMIC(atomicOr, seen | value)
TORCH_OPS_ATOMIC(atomicXor, seen ^ value)
TORCH_OPS_ATOMIC(atomicExch, value)
#undef TORCH_OPS_ATOMIC

template <class A, class B, class C>
inline A atomicCAS(A* at, B expected, C given) {
  A seen = static_cast<A>(expected), value = static_cast<A>(given);
  __atomic_compare_exchange(at, &seen, &value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
  return seen;
}
