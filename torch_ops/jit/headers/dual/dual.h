// Forward-mode differentiation by operator overloading: a value with N derivatives. The text of a
// snippet compiled over these in place of float or double gives its derivatives; over Dual<Dual<..>>
// the second ones. Compiled by NVRTC and by the host's compiler.
//
// Two rules keep a derivative from being lost without a word. There is no conversion from a Dual to
// a plain number, so a cast, a local variable of a fixed type or a function without a rule (in
// dual/functions.h) does not compile. And the value of every result is computed by the very
// operation on the very types that the plain snippet has (float * double is double), so values and
// branches are the same to the last bit.
//
// A. Griewank, A. Walther, "Evaluating Derivatives", SIAM 2008, chapter 3.
#pragma once
#include "scalar.h"

namespace torch_ops {

// What a snippet may call on a Dual is in its namespace, where a call finds it by its argument. All
// else is outside of it, so that a function of the user may have the same name.
namespace duals {
template <class T, int N>
struct Dual;
}
using duals::Dual;

template <class A>
constexpr bool is_plain = true;
template <class T, int N>
constexpr bool is_plain<Dual<T, N>> = false;

// The type of the same depth over double.
template <class T>
struct Wider {
  using type = double;
};
template <class T, int N>
struct Wider<Dual<T, N>> {
  using type = Dual<typename Wider<T>::type, N>;
};

// The plain number in it.
template <class T>
struct Innermost {
  using type = T;
};
template <class T, int N>
struct Innermost<Dual<T, N>> {
  using type = typename Innermost<T>::type;
};

// For dual/traits.h: is the plain number in it of that type?
template <class T, class Number>
constexpr bool holds = Same<typename Innermost<T>::type, Number>::value;
template <bool same>
struct is_unclear {
  static_assert(!same, "whether this type is a plain float has no answer in a derivative");
  static constexpr bool value = false;
};

// A Dual over float derives from the one over double, which holds the same values: of two classes
// of which one is the base of the other, `c ? a : b` takes the base, as it takes double of float
// and double. Without, both would convert to both, and the expression would be ambiguous. Since the
// base must be at least as const for that, results are const.
namespace duals {
template <class T>
struct Nothing {
  template <class V, class D>
  TORCH_OPS_FUNCTION Nothing(const V&, const D&) {}
  Nothing() = default;
};
}  // namespace duals
template <class T, int N, bool widest = Same<T, typename Wider<T>::type>::value>
struct Base {
  using type = duals::Nothing<Dual<T, N>>;
};
template <class T, int N>
struct Base<T, N, false> {
  using type = Dual<typename Wider<T>::type, N>;
};

template <class T, int N>
struct Tangents {
  T of[N];
};

// The numbers of tangents: UpTo<N> is Numbers<0, ..., N - 1>. Tangents are made from this pack, not
// in a loop. g++ unrolls loops late, and before that it does not see which tangents are constants:
// with loops, third derivatives take twice as long to compile, and to run.
template <int... k>
struct Numbers {};
template <int N, int... k>
struct UpTo : UpTo<N - 1, N - 1, k...> {};
template <int... k>
struct UpTo<0, k...> : Numbers<k...> {};

// Tangents that are values of a function of their number.
template <class T, class Function, int... k>
TORCH_OPS_FUNCTION Tangents<T, sizeof...(k)> tangents(const Function& tangent, Numbers<k...>) {
  return {{static_cast<T>(tangent(k))...}};
}

// Number by number: what is copied as a block of memory stays there, and no loop around it is
// vectorised.
template <class T, int N>
TORCH_OPS_FUNCTION Tangents<T, N> copied(const Tangents<T, N>& from) {
  return tangents<T>([&](int k) TORCH_OPS_INLINE { return from.of[k]; }, UpTo<N>());
}

namespace duals {

template <class T, int N>
struct Dual : Base<T, N>::type {
  using Parent = typename Base<T, N>::type;
  T v;
  Tangents<T, N> d;

  TORCH_OPS_FUNCTION Dual() : Dual(T()) {}

  template <class U>
  TORCH_OPS_FUNCTION Dual(const U& value, const Tangents<U, N>& tangents)
      : Parent(static_cast<T>(value),
               torch_ops::tangents<T>([&](int k) TORCH_OPS_INLINE { return tangents.of[k]; },
                                      UpTo<N>())),
        v(static_cast<T>(value)),
        d(torch_ops::tangents<T>([&](int k) TORCH_OPS_INLINE { return tangents.of[k]; },
                                 UpTo<N>())) {}

  // A constant: a number, or a value of lower depth.
  template <class A, class = typename EnableIf<is_plain<A> || Same<A, T>::value>::type>
  TORCH_OPS_FUNCTION Dual(const A& value) : Dual(static_cast<T>(value), Tangents<T, N>{}) {}

  template <class U>
  TORCH_OPS_FUNCTION Dual(const Dual<U, N>& other) : Dual(other.v, other.d) {}

#ifdef __CUDACC_RTC__
  Dual(const Dual& other) = default;
  Dual& operator=(const Dual& other) = default;
#else
  TORCH_OPS_FUNCTION Dual(const Dual& other)
      : Parent(static_cast<const Parent&>(other)), v(other.v), d(copied(other.d)) {}
  TORCH_OPS_FUNCTION Dual& operator=(const Dual& other) {
    Parent::operator=(static_cast<const Parent&>(other));
    v = other.v;
    d = copied(other.d);
    return *this;
  }
#endif

  // Where it stands for its truth alone: if (x), x && y.
  TORCH_OPS_FUNCTION explicit operator bool() const { return static_cast<bool>(v); }

#define TORCH_OPS_ASSIGN(symbol)                               \
  template <class A>                                           \
  TORCH_OPS_FUNCTION Dual& operator symbol##=(const A & other) { \
    return *this = *this symbol other;                         \
  }
  TORCH_OPS_ASSIGN(+)
  TORCH_OPS_ASSIGN(-)
  TORCH_OPS_ASSIGN(*)
  TORCH_OPS_ASSIGN(/)
#undef TORCH_OPS_ASSIGN
  TORCH_OPS_FUNCTION Dual& operator++() { return *this += 1; }
  TORCH_OPS_FUNCTION Dual& operator--() { return *this -= 1; }
  TORCH_OPS_FUNCTION Dual operator++(int) {
    const Dual before = *this;
    *this += 1;
    return before;
  }
  TORCH_OPS_FUNCTION Dual operator--(int) {
    const Dual before = *this;
    *this -= 1;
    return before;
  }
};

}  // namespace duals

// ---- Tangents -----------------------------------------------------------------------------------

template <class A>
TORCH_OPS_FUNCTION bool is_zero(const A& value) {
  return value == 0;
}
template <class T, int N>
TORCH_OPS_FUNCTION bool is_zero(const Dual<T, N>& value);
template <class T, int N>
TORCH_OPS_FUNCTION bool are_zero(const Tangents<T, N>&, Numbers<>) {
  return true;
}
template <class T, int N, int k, int... others>
TORCH_OPS_FUNCTION bool are_zero(const Tangents<T, N>& tangents, Numbers<k, others...>) {
  return is_zero(tangents.of[k]) && are_zero(tangents, Numbers<others...>());
}
template <class T, int N>
TORCH_OPS_FUNCTION bool is_zero(const Dual<T, N>& value) {
  return is_zero(value.v) && are_zero(value.d, UpTo<N>());
}

#ifndef __CUDACC_RTC__
template <class A>
TORCH_OPS_FUNCTION A unless(bool zero, const A& value) {
  return zero ? A(0) : value;
}
template <class T, int N>
TORCH_OPS_FUNCTION Dual<T, N> unless(bool zero, const Dual<T, N>& value) {
  const auto tangent = [&](int k) TORCH_OPS_INLINE { return unless(zero, value.d.of[k]); };
  return {unless(zero, value.v), tangents<T>(tangent, UpTo<N>())};
}
#endif

// What does not depend on an input has the derivative 0 by it, also where the factor is infinite or
// NaN: d(x + sqrt(y))/dx is 1 at y = 0.
template <class T, class G>
TORCH_OPS_FUNCTION auto scaled(const T& tangent, const G& factor) -> decltype(tangent * factor) {
  using R = decltype(tangent * factor);
#ifdef __CUDACC_RTC__
  return is_zero(tangent) ? R(0) : R(tangent * factor);
#else  // each number by itself, not by branches, which keep loops from being vectorised
  return R(unless(is_zero(tangent), tangent * factor));
#endif
}

// The chain rule: y(a), whose derivative with respect to a is `slope`.
template <class Y, class T, int N, class G>
TORCH_OPS_FUNCTION Dual<Y, N> chain(const Y& y, const Dual<T, N>& a, const G& slope) {
  const auto tangent = [&](int k) TORCH_OPS_INLINE { return scaled(a.d.of[k], slope); };
  return {y, tangents<Y>(tangent, UpTo<N>())};
}

// y(a, b)
template <class Y, class A, class B, int N, class G, class H>
TORCH_OPS_FUNCTION Dual<Y, N> chain(const Y& y, const Dual<A, N>& a, const G& by_a,
                                    const Dual<B, N>& b, const H& by_b) {
  const auto tangent = [&](int k) TORCH_OPS_INLINE {
    return scaled(a.d.of[k], by_a) + scaled(b.d.of[k], by_b);
  };
  return {y, tangents<Y>(tangent, UpTo<N>())};
}

// The tangents of a result of type Y, by an expression in k.
#define TORCH_OPS_DUAL(value, tangent)                                            \
  const auto y = value;                                                           \
  using Y = typename Plain<decltype(y)>::type;                                    \
  const auto each = [&](int k) TORCH_OPS_INLINE { return tangent; };              \
  return Dual<Y, N>(y, tangents<Y>(each, UpTo<N>()));
template <class A>
struct Plain {
  using type = A;
};
template <class A>
struct Plain<const A> {
  using type = A;
};

namespace duals {

template <class T, int N>
TORCH_OPS_FUNCTION typename Innermost<T>::type primal(const Dual<T, N>& value) {
  using torch_ops::primal;
  return primal(value.v);
}

// ---- Operators ----------------------------------------------------------------------------------

// For Dual op Dual, Dual op number and number op Dual.
#define TORCH_OPS_NUMBER_ON_RIGHT template <class T, int N, class B, \
                                            class = typename EnableIf<is_plain<B>>::type>
#define TORCH_OPS_NUMBER_ON_LEFT template <class A, class T, int N, \
                                           class = typename EnableIf<is_plain<A>>::type>
#define TORCH_OPS_TWO_DUALS template <class A, class B, int N>

#define TORCH_OPS_COMPARE(symbol)                                                               \
  TORCH_OPS_TWO_DUALS TORCH_OPS_FUNCTION bool operator symbol(const Dual<A, N>& a,              \
                                                              const Dual<B, N>& b) {            \
    return a.v symbol b.v;                                                                      \
  }                                                                                             \
  TORCH_OPS_NUMBER_ON_RIGHT TORCH_OPS_FUNCTION bool operator symbol(const Dual<T, N>& a, B b) { \
    return a.v symbol b;                                                                        \
  }                                                                                             \
  TORCH_OPS_NUMBER_ON_LEFT TORCH_OPS_FUNCTION bool operator symbol(A a, const Dual<T, N>& b) {  \
    return a symbol b.v;                                                                        \
  }
TORCH_OPS_COMPARE(<)
TORCH_OPS_COMPARE(<=)
TORCH_OPS_COMPARE(>)
TORCH_OPS_COMPARE(>=)
TORCH_OPS_COMPARE(==)
TORCH_OPS_COMPARE(!=)
#undef TORCH_OPS_COMPARE

template <class T, int N>
TORCH_OPS_FUNCTION bool operator!(const Dual<T, N>& a) {
  return !a.v;
}
template <class T, int N>
TORCH_OPS_FUNCTION const Dual<T, N> operator+(const Dual<T, N>& a) {
  return a;
}
template <class T, int N>
TORCH_OPS_FUNCTION const Dual<T, N> operator-(const Dual<T, N>& a) {
  const auto tangent = [&](int k) TORCH_OPS_INLINE { return -a.d.of[k]; };
  return {T(-a.v), tangents<T>(tangent, UpTo<N>())};
}

TORCH_OPS_TWO_DUALS TORCH_OPS_FUNCTION const auto operator+(const Dual<A, N>& a, const Dual<B, N>& b) {
  TORCH_OPS_DUAL(a.v + b.v, a.d.of[k] + b.d.of[k])
}
TORCH_OPS_NUMBER_ON_RIGHT TORCH_OPS_FUNCTION const auto operator+(const Dual<T, N>& a, B b) {
  TORCH_OPS_DUAL(a.v + b, a.d.of[k])
}
TORCH_OPS_NUMBER_ON_LEFT TORCH_OPS_FUNCTION const auto operator+(A a, const Dual<T, N>& b) {
  TORCH_OPS_DUAL(a + b.v, b.d.of[k])
}
TORCH_OPS_TWO_DUALS TORCH_OPS_FUNCTION const auto operator-(const Dual<A, N>& a, const Dual<B, N>& b) {
  TORCH_OPS_DUAL(a.v - b.v, a.d.of[k] - b.d.of[k])
}
TORCH_OPS_NUMBER_ON_RIGHT TORCH_OPS_FUNCTION const auto operator-(const Dual<T, N>& a, B b) {
  TORCH_OPS_DUAL(a.v - b, a.d.of[k])
}
TORCH_OPS_NUMBER_ON_LEFT TORCH_OPS_FUNCTION const auto operator-(A a, const Dual<T, N>& b) {
  TORCH_OPS_DUAL(a - b.v, -b.d.of[k])
}
TORCH_OPS_TWO_DUALS TORCH_OPS_FUNCTION const auto operator*(const Dual<A, N>& a, const Dual<B, N>& b) {
  TORCH_OPS_DUAL(a.v * b.v, scaled(a.d.of[k], b.v) + scaled(b.d.of[k], a.v))
}
TORCH_OPS_NUMBER_ON_RIGHT TORCH_OPS_FUNCTION const auto operator*(const Dual<T, N>& a, B b) {
  TORCH_OPS_DUAL(a.v * b, scaled(a.d.of[k], b))
}
TORCH_OPS_NUMBER_ON_LEFT TORCH_OPS_FUNCTION const auto operator*(A a, const Dual<T, N>& b) {
  TORCH_OPS_DUAL(a * b.v, scaled(b.d.of[k], a))
}
TORCH_OPS_TWO_DUALS TORCH_OPS_FUNCTION const auto operator/(const Dual<A, N>& a, const Dual<B, N>& b) {
  TORCH_OPS_DUAL(a.v / b.v, scaled(a.d.of[k], 1 / b.v) - scaled(b.d.of[k], y / b.v))
}
TORCH_OPS_NUMBER_ON_RIGHT TORCH_OPS_FUNCTION const auto operator/(const Dual<T, N>& a, B b) {
  TORCH_OPS_DUAL(a.v / b, is_zero(a.d.of[k]) ? Y(0) : Y(a.d.of[k] / b))
}
TORCH_OPS_NUMBER_ON_LEFT TORCH_OPS_FUNCTION const auto operator/(A a, const Dual<T, N>& b) {
  TORCH_OPS_DUAL(a / b.v, scaled(b.d.of[k], -y / b.v))
}

}  // namespace duals

// ---- What generated code calls ------------------------------------------------------------------

// A branch of a ternary, beside one of type Other: see torch_ops/jit/language/ternary.py. The plain snippet's
// type is double where one of them is a double; a dual number over float becomes one over double by
// itself, beside one.
template <class A>
struct Bare {
  using type = A;
};
template <class A>
struct Bare<A&> : Bare<A> {};
template <class A>
struct Bare<A&&> : Bare<A> {};
template <class A>
struct Bare<const A> : Bare<A> {};
template <class A, class Other>
constexpr bool is_narrowed = Same<A, double>::value && !is_plain<Other> &&
                             !Same<Other, typename Wider<Other>::type>::value;
template <class Other, class A,
          class = typename EnableIf<
              is_narrowed<typename Bare<A>::type, typename Bare<Other>::type>>::type>
TORCH_OPS_FUNCTION const typename Wider<typename Bare<Other>::type>::type pick(A&& branch) {
  return branch;
}
template <class Other, class A,
          class = typename EnableIf<
              !is_narrowed<typename Bare<A>::type, typename Bare<Other>::type>>::type, int = 0>
TORCH_OPS_FUNCTION constexpr A pick(A&& branch) {
  return static_cast<A&&>(branch);
}

// An input as a variable to differentiate by: tangent k is 1. -1: by none.
template <int N, class T>
TORCH_OPS_FUNCTION Dual<T, N> variable(const T& value, int k) {
  Tangents<T, N> d{};
  if (k >= 0) d.of[k] = T(1);
  return {value, d};
}

}  // namespace torch_ops
