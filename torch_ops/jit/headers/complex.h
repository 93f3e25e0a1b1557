// Complex numbers in snippets, for NVRTC and for the host's compiler alike: thrust's interface, as
// CuPy's snippets have it, without CCCL's headers, which not every installation has.
#pragma once
#include "scalar.h"

namespace torch_ops {

template <class T>
struct complex {
  using value_type = T;
  T re, im;

  complex() = default;
  template <class A, class = typename EnableIf<is_number<A>>::type>
  TORCH_OPS_FUNCTION complex(const A& real) : re(static_cast<T>(real)), im(0) {}
  template <class A, class B, class = typename EnableIf<is_number<A> && is_number<B>>::type>
  TORCH_OPS_FUNCTION complex(const A& real, const B& imag)
      : re(static_cast<T>(real)), im(static_cast<T>(imag)) {}
  template <class U>
  TORCH_OPS_FUNCTION complex(const complex<U>& other)
      : re(static_cast<T>(other.re)), im(static_cast<T>(other.im)) {}

  TORCH_OPS_FUNCTION T real() const { return re; }
  TORCH_OPS_FUNCTION T imag() const { return im; }
  TORCH_OPS_FUNCTION void real(T value) { re = value; }
  TORCH_OPS_FUNCTION void imag(T value) { im = value; }

#define TORCH_OPS_ASSIGN(symbol)                                  \
  template <class A>                                              \
  TORCH_OPS_FUNCTION complex& operator symbol##=(const A & other) { \
    return *this = *this symbol other;                            \
  }
  TORCH_OPS_ASSIGN(+)
  TORCH_OPS_ASSIGN(-)
  TORCH_OPS_ASSIGN(*)
  TORCH_OPS_ASSIGN(/)
#undef TORCH_OPS_ASSIGN
};

// What two of them, or one and a number, are computed in.
template <class A, class B>
using ComplexOf = complex<decltype(A() + B())>;

template <class A>
TORCH_OPS_FUNCTION complex<A> operator+(const complex<A>& a) {
  return a;
}
template <class A>
TORCH_OPS_FUNCTION complex<A> operator-(const complex<A>& a) {
  return {-a.re, -a.im};
}
template <class A, class B>
TORCH_OPS_FUNCTION ComplexOf<A, B> operator+(const complex<A>& a, const complex<B>& b) {
  return {a.re + b.re, a.im + b.im};
}
template <class A, class B>
TORCH_OPS_FUNCTION ComplexOf<A, B> operator-(const complex<A>& a, const complex<B>& b) {
  return {a.re - b.re, a.im - b.im};
}
template <class A, class B>
TORCH_OPS_FUNCTION ComplexOf<A, B> operator*(const complex<A>& a, const complex<B>& b) {
  return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
}
// R. L. Smith, "Algorithm 116: Complex division", CACM 5 (1962): nothing overflows halfway.
template <class A, class B>
TORCH_OPS_FUNCTION ComplexOf<A, B> operator/(const complex<A>& a, const complex<B>& b) {
  using T = decltype(A() + B());
  const T c = b.re, d = b.im;
  if ((c < 0 ? -c : c) >= (d < 0 ? -d : d)) {
    if (c == 0 && d == 0) return {a.re / c, a.im / c};
    const T ratio = d / c, scale = 1 / (c + d * ratio);
    return {(a.re + a.im * ratio) * scale, (a.im - a.re * ratio) * scale};
  }
  const T ratio = c / d, scale = 1 / (c * ratio + d);
  return {(a.re * ratio + a.im) * scale, (a.im * ratio - a.re) * scale};
}
template <class A, class B>
TORCH_OPS_FUNCTION bool operator==(const complex<A>& a, const complex<B>& b) {
  return a.re == b.re && a.im == b.im;
}
template <class A, class B>
TORCH_OPS_FUNCTION bool operator!=(const complex<A>& a, const complex<B>& b) {
  return !(a == b);
}

// With a number, which has no imaginary part: not even one that is 0, so that infinities stay.
#define TORCH_OPS_NUMBER_ON_RIGHT(symbol, result, ...)                                   \
  template <class A, class B, class = typename EnableIf<is_number<B>>::type>             \
  TORCH_OPS_FUNCTION result operator symbol(const complex<A>& a, const B& b) {           \
    return __VA_ARGS__;                                                                  \
  }
#define TORCH_OPS_NUMBER_ON_LEFT(symbol, result, ...)                                    \
  template <class A, class B, class = typename EnableIf<is_number<A>>::type>             \
  TORCH_OPS_FUNCTION result operator symbol(const A& a, const complex<B>& b) {           \
    return __VA_ARGS__;                                                                  \
  }
#define TORCH_OPS_RESULT ComplexOf<A, B>
TORCH_OPS_NUMBER_ON_RIGHT(+, TORCH_OPS_RESULT, {a.re + b, a.im})
TORCH_OPS_NUMBER_ON_RIGHT(-, TORCH_OPS_RESULT, {a.re - b, a.im})
TORCH_OPS_NUMBER_ON_RIGHT(*, TORCH_OPS_RESULT, {a.re * b, a.im * b})
TORCH_OPS_NUMBER_ON_RIGHT(/, TORCH_OPS_RESULT, {a.re / b, a.im / b})
TORCH_OPS_NUMBER_ON_RIGHT(==, bool, a.re == b && a.im == 0)
TORCH_OPS_NUMBER_ON_RIGHT(!=, bool, !(a == b))
TORCH_OPS_NUMBER_ON_LEFT(+, TORCH_OPS_RESULT, {a + b.re, b.im})
TORCH_OPS_NUMBER_ON_LEFT(-, TORCH_OPS_RESULT, {a - b.re, -b.im})
TORCH_OPS_NUMBER_ON_LEFT(*, TORCH_OPS_RESULT, {a * b.re, a * b.im})
TORCH_OPS_NUMBER_ON_LEFT(/, TORCH_OPS_RESULT, complex<A>(a) / b)
TORCH_OPS_NUMBER_ON_LEFT(==, bool, b == a)
TORCH_OPS_NUMBER_ON_LEFT(!=, bool, !(b == a))
#undef TORCH_OPS_RESULT
#undef TORCH_OPS_NUMBER_ON_RIGHT
#undef TORCH_OPS_NUMBER_ON_LEFT

// ---- Functions ----------------------------------------------------------------------------------

#define TORCH_OPS_COMPLEX(result, name) template <class T> TORCH_OPS_FUNCTION result name
TORCH_OPS_COMPLEX(T, real)(const complex<T>& z) { return z.re; }
TORCH_OPS_COMPLEX(T, imag)(const complex<T>& z) { return z.im; }
TORCH_OPS_COMPLEX(T, abs)(const complex<T>& z) { return ::hypot(z.re, z.im); }
TORCH_OPS_COMPLEX(T, arg)(const complex<T>& z) { return ::atan2(z.im, z.re); }
TORCH_OPS_COMPLEX(T, norm)(const complex<T>& z) { return z.re * z.re + z.im * z.im; }
TORCH_OPS_COMPLEX(complex<T>, conj)(const complex<T>& z) { return {z.re, -z.im}; }
TORCH_OPS_COMPLEX(complex<T>, polar)(const T& radius, const T& angle) {
  return {radius * ::cos(angle), radius * ::sin(angle)};
}
TORCH_OPS_COMPLEX(bool, isnan)(const complex<T>& z) { return z.re != z.re || z.im != z.im; }
TORCH_OPS_COMPLEX(bool, isfinite)(const complex<T>& z) { return z.re - z.re == 0 && z.im - z.im == 0; }
// exp(x) / 2 times a sine or cosine, finite where exp(x) alone no longer is: for x beyond kLarge,
// where cosh and sinh are exp / 2 to the last bit.
constexpr int kLarge = 88;
TORCH_OPS_COMPLEX(T, half_exp_times)(const T& x, const T& value) {
  const T root = ::exp(x / 2);
  return value == 0 ? value : T(0.5) * root * value * root;
}
TORCH_OPS_COMPLEX(complex<T>, exp)(const complex<T>& z) {
  if (z.im == 0) return {::exp(z.re), z.im};
  if (z.re <= kLarge) return polar(::exp(z.re), z.im);
  return {2 * half_exp_times(z.re, ::cos(z.im)), 2 * half_exp_times(z.re, ::sin(z.im))};
}
TORCH_OPS_COMPLEX(complex<T>, log)(const complex<T>& z) { return {::log(abs(z)), arg(z)}; }
TORCH_OPS_COMPLEX(complex<T>, log10)(const complex<T>& z) {
  return log(z) / T(2.30258509299404568402);
}
TORCH_OPS_COMPLEX(complex<T>, sqrt)(const complex<T>& z) {
  if (z.re == 0 && z.im == 0) return {0, z.im};
  if (::isinf(z.im)) return {::fabs(z.im), z.im};
  const T half = ::sqrt(T(0.5) * (::fabs(z.re) + abs(z)));
  if (z.re >= 0) return {half, z.im / (2 * half)};
  return {::fabs(z.im) / (2 * half), ::copysign(half, z.im)};
}
TORCH_OPS_COMPLEX(complex<T>, sinh)(const complex<T>& z) {
  const T x = ::fabs(z.re), cosine = ::cos(z.im), sine = ::sin(z.im);
  if (!(x > kLarge)) return {::sinh(z.re) * cosine, ::cosh(z.re) * sine};
  return {half_exp_times(x, z.re < 0 ? -cosine : cosine), half_exp_times(x, sine)};
}
TORCH_OPS_COMPLEX(complex<T>, cosh)(const complex<T>& z) {
  const T x = ::fabs(z.re), cosine = ::cos(z.im), sine = ::sin(z.im);
  if (!(x > kLarge)) return {::cosh(z.re) * cosine, ::sinh(z.re) * sine};
  return {half_exp_times(x, cosine), half_exp_times(x, z.re < 0 ? -sine : sine)};
}
TORCH_OPS_COMPLEX(complex<T>, sin)(const complex<T>& z) {
  const complex<T> turned = sinh(complex<T>(-z.im, z.re));
  return {turned.im, -turned.re};
}
TORCH_OPS_COMPLEX(complex<T>, cos)(const complex<T>& z) { return cosh(complex<T>(-z.im, z.re)); }
TORCH_OPS_COMPLEX(complex<T>, tanh)(const complex<T>& z) {
  // Beyond this both cosh and sinh are exp(|x|)/2 to the last bit, and may overflow.
  if (::fabs(z.re) > 20) {
    const T fall = ::exp(-2 * ::fabs(z.re));
    return {z.re < 0 ? T(-1) : T(1), 4 * ::sin(z.im) * ::cos(z.im) * fall};
  }
  return sinh(z) / cosh(z);
}
TORCH_OPS_COMPLEX(complex<T>, tan)(const complex<T>& z) {
  const complex<T> turned = tanh(complex<T>(-z.im, z.re));
  return {turned.im, -turned.re};
}
#undef TORCH_OPS_COMPLEX

template <class A, class B>
TORCH_OPS_FUNCTION ComplexOf<A, B> pow(const complex<A>& base, const complex<B>& exponent) {
  using C = ComplexOf<A, B>;
  if (exponent == 0) return C(1);
  if (base == 0) return C(0);
  return exp(C(exponent) * log(C(base)));
}
template <class A, class B, class = typename EnableIf<is_number<B>>::type>
TORCH_OPS_FUNCTION ComplexOf<A, B> pow(const complex<A>& base, const B& exponent) {
  return pow(base, complex<B>(exponent));
}
template <class A, class B, class = typename EnableIf<is_number<A>>::type>
TORCH_OPS_FUNCTION ComplexOf<A, B> pow(const A& base, const complex<B>& exponent) {
  return pow(complex<A>(base), exponent);
}

}  // namespace torch_ops

using torch_ops::complex;
using torch_ops::polar;
