// CUDA's mathematical functions of dual numbers: each with its value, by the very function that the
// plain snippet calls, and the rule of its derivative. Stands after dual/dual.h.
#pragma once
#include "dual/dual.h"

namespace torch_ops {

// The plain functions of the name, beside those of dual numbers.
#define TORCH_OPS_PLAIN(name) \
  namespace duals {           \
  using ::name;               \
  }
#define TORCH_OPS_PLAINS(name) TORCH_OPS_PLAIN(name) TORCH_OPS_PLAIN(name##f)

// name(a): y is the value, x the argument's value; the slope is an expression in both and in T,
// their type. It is differentiated in its turn where T is a Dual itself.
#define TORCH_OPS_UNARY(name, ...)                                       \
  TORCH_OPS_PLAINS(name)                                                 \
  namespace duals {                                                      \
  template <class A, int N>                                              \
  TORCH_OPS_FUNCTION const auto name(const Dual<A, N>& a) {                    \
    const A& x = a.v;                                                    \
    const auto y = name(x);                                              \
    using T = typename Plain<decltype(y)>::type;                         \
    return chain(y, a, __VA_ARGS__);                                     \
  }                                                                      \
  template <class A, int N>                                              \
  TORCH_OPS_FUNCTION const auto name##f(const Dual<A, N>& a) {                 \
    return name(Dual<typename Narrower<A>::type, N>(a));                 \
  }                                                                      \
  }

// The type of the same depth over float: what expf computes in.
template <class A>
struct Narrower {
  using type = float;
};
template <class T, int N>
struct Narrower<Dual<T, N>> {
  using type = Dual<typename Narrower<T>::type, N>;
};

constexpr double kPi = 3.14159265358979323846;
constexpr double kLn2 = 0.69314718055994530942;
constexpr double kLn10 = 2.30258509299404568402;
constexpr double kTwoBySqrtPi = 1.12837916709551257390;
constexpr double kOneBySqrt2Pi = 0.39894228040143267794;

// -1, 0, 1, or NaN of NaN.
template <class A>
TORCH_OPS_FUNCTION A sign_of(const A& x) {
  return x > 0 ? A(1) : x < 0 ? A(-1) : x == 0 ? A(0) : x;
}

TORCH_OPS_UNARY(sqrt, T(0.5) / y)
TORCH_OPS_UNARY(rsqrt, T(-0.5) * y / x)
TORCH_OPS_UNARY(cbrt, T(1) / (T(3) * y * y))
TORCH_OPS_UNARY(rcbrt, -y / (T(3) * x))
TORCH_OPS_UNARY(exp, y)
TORCH_OPS_UNARY(exp2, T(kLn2) * y)
TORCH_OPS_UNARY(exp10, T(kLn10) * y)
TORCH_OPS_UNARY(expm1, exp(x))
TORCH_OPS_UNARY(log, T(1) / x)
TORCH_OPS_UNARY(log2, T(1 / kLn2) / x)
TORCH_OPS_UNARY(log10, T(1 / kLn10) / x)
TORCH_OPS_UNARY(log1p, T(1) / (T(1) + x))
// Each the slope of the other: the first of a pair is declared before the second is defined.
namespace duals {
template <class A, int N>
TORCH_OPS_FUNCTION const auto cos(const Dual<A, N>& a);
template <class A, int N>
TORCH_OPS_FUNCTION const auto cosh(const Dual<A, N>& a);
template <class A, int N>
TORCH_OPS_FUNCTION const auto cospi(const Dual<A, N>& a);
}  // namespace duals
TORCH_OPS_PLAINS(cos)
TORCH_OPS_PLAINS(cosh)
TORCH_OPS_PLAINS(cospi)
TORCH_OPS_UNARY(sin, cos(x))
TORCH_OPS_UNARY(cos, -sin(x))
TORCH_OPS_UNARY(tan, T(1) + y * y)
TORCH_OPS_UNARY(asin, rsqrt((T(1) - x) * (T(1) + x)))
TORCH_OPS_UNARY(acos, -rsqrt((T(1) - x) * (T(1) + x)))
TORCH_OPS_UNARY(atan, T(1) / (T(1) + x * x))
TORCH_OPS_UNARY(sinh, cosh(x))
TORCH_OPS_UNARY(cosh, sinh(x))
TORCH_OPS_UNARY(tanh, (T(1) - y) * (T(1) + y))
TORCH_OPS_UNARY(asinh, rsqrt(T(1) + x * x))
TORCH_OPS_UNARY(acosh, rsqrt((x - T(1)) * (x + T(1))))
TORCH_OPS_UNARY(atanh, T(1) / ((T(1) - x) * (T(1) + x)))
TORCH_OPS_UNARY(sinpi, T(kPi) * cospi(x))
TORCH_OPS_UNARY(cospi, T(-kPi) * sinpi(x))
TORCH_OPS_UNARY(erf, T(kTwoBySqrtPi) * exp(-x * x))
TORCH_OPS_UNARY(erfc, T(-kTwoBySqrtPi) * exp(-x * x))
TORCH_OPS_UNARY(normcdf, T(kOneBySqrt2Pi) * exp(T(-0.5) * x * x))
#ifdef __CUDACC_RTC__  // which a C++ compiler's library has not
TORCH_OPS_UNARY(erfcx, T(2) * x * y - T(kTwoBySqrtPi))
TORCH_OPS_UNARY(erfinv, T(1 / kTwoBySqrtPi) * exp(y * y))
TORCH_OPS_UNARY(erfcinv, T(-1 / kTwoBySqrtPi) * exp(y * y))
TORCH_OPS_UNARY(normcdfinv, T(1 / kOneBySqrt2Pi) * exp(T(0.5) * y * y))
#endif
TORCH_OPS_UNARY(fabs, sign_of(x))
// Constant between their steps.
TORCH_OPS_UNARY(floor, T(0))
TORCH_OPS_UNARY(ceil, T(0))
TORCH_OPS_UNARY(trunc, T(0))
TORCH_OPS_UNARY(round, T(0))
TORCH_OPS_UNARY(rint, T(0))
TORCH_OPS_UNARY(nearbyint, T(0))
TORCH_OPS_UNARY(logb, T(0))

TORCH_OPS_PLAIN(abs)
namespace duals {
template <class T, int N>
TORCH_OPS_FUNCTION Dual<T, N> abs(const Dual<T, N>& a) {
  return fabs(a);
}
}  // namespace duals

// The derivative of lgamma. Written for any T, so that its own derivatives follow.
// Recurrence up to 10, then the asymptotic series; below 1/2 the reflection formula.
// M. Abramowitz, I. A. Stegun, "Handbook of Mathematical Functions", 6.3.5, 6.3.7, 6.3.18.
template <class T>
TORCH_OPS_FUNCTION T digamma(T x) {
  T result = T(0);
  if (x < 0.5f) {
    result = T(-kPi) * cospi(x) / sinpi(x);
    x = T(1) - x;
  }
  while (x < 10.0f) {
    result -= T(1) / x;
    x += T(1);
  }
  const T z = T(1) / (x * x);
  const T series =
      z * (T(1.0 / 12) -
           z * (T(1.0 / 120) -
                z * (T(1.0 / 252) -
                     z * (T(1.0 / 240) - z * (T(1.0 / 132) - z * (T(691.0 / 32760) - z / T(12)))))));
  return result + log(x) - T(0.5) / x - series;
}
TORCH_OPS_UNARY(lgamma, digamma(x))
TORCH_OPS_UNARY(tgamma, y * digamma(x))

// Of the value alone.
#define TORCH_OPS_PREDICATE(name)                      \
  TORCH_OPS_PLAIN(name)                                \
  namespace duals {                                    \
  template <class T, int N>                            \
  TORCH_OPS_FUNCTION bool name(const Dual<T, N>& a) { \
    return name(a.v);                                  \
  }                                                    \
  }
TORCH_OPS_PREDICATE(isnan)
TORCH_OPS_PREDICATE(isinf)
TORCH_OPS_PREDICATE(isfinite)
TORCH_OPS_PREDICATE(signbit)

// Two arguments. A number beside a Dual is a Dual without derivatives, but of the number's own type
// in the value's computation: pow(float, int) is not pow(float, float).
template <class A>
struct Constant {
  A v;
};
template <class T, int N>
TORCH_OPS_FUNCTION const Dual<T, N>& wrapped(const Dual<T, N>& a) {
  return a;
}
template <class A, class = typename EnableIf<is_plain<A>>::type>
TORCH_OPS_FUNCTION Constant<A> wrapped(A a) {
  return {a};
}
template <class Y, class T, int N, class G, class B, class H>
TORCH_OPS_FUNCTION Dual<Y, N> chain(const Y& y, const Dual<T, N>& a, const G& by_a,
                                    const Constant<B>&, const H&) {
  return chain(y, a, by_a);
}
template <class Y, class A, class G, class T, int N, class H>
TORCH_OPS_FUNCTION Dual<Y, N> chain(const Y& y, const Constant<A>&, const G&, const Dual<T, N>& b,
                                    const H& by_b) {
  return chain(y, b, by_b);
}
// For functions whose value takes one type.
template <class A, class B>
using Common = typename Plain<decltype(A() + B())>::type;

// name(a, b): u and w are the arguments' values, y the result's; by_u and by_w the slopes, in
// expressions of T, the result's type.
#define TORCH_OPS_BINARY_OF(name, float_name, by_u, by_w)                                      \
  template <class A, class B>                                                                  \
  TORCH_OPS_FUNCTION auto float_name##_rule(const A& a, const B& b) {                          \
    const auto& u = a.v;                                                                       \
    const auto& w = b.v;                                                                       \
    const auto y = name(u, w);                                                                 \
    using T = typename Plain<decltype(y)>::type;                                               \
    return chain(y, a, by_u, b, by_w);                                                         \
  }                                                                                            \
  namespace duals {                                                                            \
  TORCH_OPS_TWO_DUALS TORCH_OPS_FUNCTION const auto name(const Dual<A, N>& a, const Dual<B, N>& b) { \
    return float_name##_rule(a, b);                                                            \
  }                                                                                            \
  TORCH_OPS_NUMBER_ON_RIGHT TORCH_OPS_FUNCTION const auto name(const Dual<T, N>& a, B b) {           \
    return float_name##_rule(a, wrapped(b));                                                   \
  }                                                                                            \
  TORCH_OPS_NUMBER_ON_LEFT TORCH_OPS_FUNCTION const auto name(A a, const Dual<T, N>& b) {            \
    return float_name##_rule(wrapped(a), b);                                                   \
  }                                                                                            \
  }
#define TORCH_OPS_BINARY(name, by_u, by_w)                                                     \
  TORCH_OPS_PLAINS(name)                                                                       \
  TORCH_OPS_BINARY_OF(name, name, by_u, by_w)                                                  \
  namespace duals {                                                                            \
  template <class A, class B, int N>                                                           \
  TORCH_OPS_FUNCTION const auto name##f(const Dual<A, N>& a, const Dual<B, N>& b) {                  \
    return name(Dual<typename Narrower<A>::type, N>(a), Dual<typename Narrower<B>::type, N>(b)); \
  }                                                                                            \
  TORCH_OPS_NUMBER_ON_RIGHT TORCH_OPS_FUNCTION const auto name##f(const Dual<T, N>& a, B b) {        \
    return name(Dual<typename Narrower<T>::type, N>(a), static_cast<float>(b));                \
  }                                                                                            \
  TORCH_OPS_NUMBER_ON_LEFT TORCH_OPS_FUNCTION const auto name##f(A a, const Dual<T, N>& b) {         \
    return name(static_cast<float>(a), Dual<typename Narrower<T>::type, N>(b));                \
  }                                                                                            \
  }

// x^0 is constant, also at x = 0; 0^w is constant where w is positive.
template <class T, class A, class B>
TORCH_OPS_FUNCTION T pow_by_base(const A& u, const B& w) {
  return w == 0 ? T(0) : T(w * pow(u, w - 1));
}
template <class T, class A>
TORCH_OPS_FUNCTION T pow_by_exponent(const A& u, const T& y, bool constant) {
  return constant ? T(0) : T(y * log(u));
}
TORCH_OPS_BINARY(pow, (pow_by_base<T>(u, w)),
                 (pow_by_exponent<T>(T(u), y, u == 0 && w >= 0)))
// 0 at the origin.
template <class T>
TORCH_OPS_FUNCTION T atan2_slope(const T& side, const T& u, const T& w) {
  const T square = u * u + w * w;
  return square == 0 ? T(0) : T(side / square);
}
TORCH_OPS_BINARY(atan2, (atan2_slope<T>(T(w), T(u), T(w))), (atan2_slope<T>(-T(u), T(u), T(w))))
TORCH_OPS_BINARY(hypot, T(u) / y, T(w) / y)
TORCH_OPS_BINARY(rhypot, -y * y * y * T(u), -y * y * y * T(w))
TORCH_OPS_BINARY(fmod, T(1), T(-trunc(T(u) / T(w))))
TORCH_OPS_BINARY(remainder, T(1), T(-rint(T(u) / T(w))))
TORCH_OPS_BINARY(fdim, T(u > w ? 1 : 0), T(u > w ? -1 : 0))
// Of two equal arguments the first, of min and max half of each; of a number and a NaN the number.
TORCH_OPS_BINARY(fmin, T(u <= w || w != w ? 1 : 0), T(u <= w || w != w ? 0 : 1))
TORCH_OPS_BINARY(fmax, T(u >= w || w != w ? 1 : 0), T(u >= w || w != w ? 0 : 1))
TORCH_OPS_PLAIN(min)
TORCH_OPS_PLAIN(max)
TORCH_OPS_BINARY_OF(min, min, T(u == w ? 0.5 : u < w || w != w ? 1 : 0),
                    T(u == w ? 0.5 : u < w || w != w ? 0 : 1))
TORCH_OPS_BINARY_OF(max, max, T(u == w ? 0.5 : u > w || w != w ? 1 : 0),
                    T(u == w ? 0.5 : u > w || w != w ? 0 : 1))
TORCH_OPS_BINARY(copysign, T(u == 0 ? 0 : signbit(u) == signbit(w) ? 1 : -1), T(0))

// ldexp and scalbn: a factor that is a power of two.
#define TORCH_OPS_SCALE(name)                                               \
  TORCH_OPS_PLAIN(name)                                                     \
  namespace duals {                                                         \
  template <class A, int N>                                                 \
  TORCH_OPS_FUNCTION Dual<A, N> name(const Dual<A, N>& a, int exponent) {  \
    Tangents<A, N> d;                                                       \
    for (int k = 0; k < N; ++k) d.of[k] = name(a.d.of[k], exponent);        \
    return {A(name(a.v, exponent)), d};                                     \
  }                                                                         \
  }
TORCH_OPS_SCALE(ldexp)
TORCH_OPS_SCALE(scalbn)

// A part of the value besides the one that is returned.
TORCH_OPS_PLAIN(modf)
TORCH_OPS_PLAIN(frexp)
TORCH_OPS_PLAIN(remquo)
namespace duals {
template <class T, int N>
TORCH_OPS_FUNCTION Dual<T, N> modf(const Dual<T, N>& a, Dual<T, N>* whole) {
  T part;
  const T fraction = modf(a.v, &part);
  *whole = part;
  return {fraction, a.d};
}
template <class T, int N>
TORCH_OPS_FUNCTION Dual<T, N> frexp(const Dual<T, N>& a, int* exponent) {
  const T fraction = frexp(a.v, exponent);
  Tangents<T, N> d;
  for (int k = 0; k < N; ++k) d.of[k] = ldexp(a.d.of[k], -*exponent);
  return {fraction, d};
}
template <class A, class B,
          class = typename EnableIf<!is_plain<A> || !is_plain<B>>::type>
TORCH_OPS_FUNCTION auto remquo(const A& a, const B& b, int* quotient) {
  using torch_ops::primal;
  remquo(primal(a), primal(b), quotient);
  return remainder(a, b);
}
}  // namespace duals

// fma(a, b, c), any of which may be numbers.
TORCH_OPS_PLAINS(fma)
template <class A>
TORCH_OPS_FUNCTION A tangent_of(const Constant<A>&, int) {
  return A(0);
}
template <class T, int N>
TORCH_OPS_FUNCTION T tangent_of(const Dual<T, N>& a, int k) {
  return a.d.of[k];
}
template <class A>
struct Count {
  static constexpr int value = 0;
};
template <class T, int N>
struct Count<Dual<T, N>> {
  static constexpr int value = N;
};
template <class A, class B, class C>
constexpr int tangents_in =
    Count<A>::value ? Count<A>::value : Count<B>::value ? Count<B>::value : Count<C>::value;
template <int N, class A, class B, class C>
TORCH_OPS_FUNCTION auto fma_rule(const A& a, const B& b, const C& c) {
  TORCH_OPS_DUAL(fma(a.v, b.v, c.v),
                 scaled(tangent_of(a, k), b.v) + scaled(tangent_of(b, k), a.v) + tangent_of(c, k))
}
template <class A>
TORCH_OPS_FUNCTION float narrowed(const A& a) {
  return static_cast<float>(a);
}
template <class T, int N>
TORCH_OPS_FUNCTION auto narrowed(const Dual<T, N>& a) {
  return Dual<typename Narrower<T>::type, N>(a);
}
namespace duals {
template <class A, class B, class C,
          class = typename EnableIf<(tangents_in<A, B, C> > 0)>::type>
TORCH_OPS_FUNCTION const auto fma(const A& a, const B& b, const C& c) {
  return fma_rule<tangents_in<A, B, C>>(wrapped(a), wrapped(b), wrapped(c));
}
template <class A, class B, class C,
          class = typename EnableIf<(tangents_in<A, B, C> > 0)>::type>
TORCH_OPS_FUNCTION const auto fmaf(const A& a, const B& b, const C& c) {
  return fma(narrowed(a), narrowed(b), narrowed(c));
}

}  // namespace duals

TORCH_OPS_PLAINS(sincos)
namespace duals {
template <class T, int N>
TORCH_OPS_FUNCTION void sincos(const Dual<T, N>& a, Dual<T, N>* sine, Dual<T, N>* cosine) {
  *sine = sin(a);
  *cosine = cos(a);
}
template <class T, int N>
TORCH_OPS_FUNCTION void sincosf(const Dual<T, N>& a, Dual<T, N>* sine, Dual<T, N>* cosine) {
  *sine = sinf(a);
  *cosine = cosf(a);
}
}  // namespace duals

}  // namespace torch_ops
