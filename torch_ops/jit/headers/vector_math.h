// exp, log, log1p and tanh in float and double: math::exp(x) etc., for the kernels of this library
// (src/common/elementwise/vector_math.h) and for those compiled at run time for the CPU (cpu.h). On
// the CPU they are branch-free, so a loop that calls them vectorises, which std::exp and its
// relatives prevent. On CUDA they are CUDA's own. Infinities, NaN, denormal numbers and arguments
// outside the domain give the same as in the standard library. Results of exp and tanh are off by
// at most 1.1 steps of the format, those of log and log1p by 0.9, in every instruction set: each is
// the correctly rounded one or its neighbour (tests/elementwise/test_vector_math.py). No torch.
// Stands after TORCH_OPS_HOST_DEVICE and bit_cast.
#pragma once
#ifndef TORCH_OPS_WITHOUT_VECTOR_MATH  // torch_ops/jit/building/compilation.py defines it

namespace torch_ops {

template <class T>
struct MathFormat;

template <>
struct MathFormat<float> {
  using Bits = uint32_t;
  static constexpr int kMantissaBits = 23;
  static constexpr int kBias = 127;
  static constexpr int kDegree = 7;  // Taylor's remainder of exp: below 2^-27 of the value
  static constexpr float kLeastNormal = 1.17549435e-38f;  // 2^-126
  static constexpr float kLeast = -104;                   // its exp rounds to 0
  static constexpr float kMost = 89;                      // its exp is infinite
  static constexpr int kLogTerms = 5;        // the rest of the series is below 2^-29 of the value
  static constexpr float kTanhIsOne = 9.5f;  // rounds to 1 from here on

  // tanh(x) is x (1 - z R(z)) with z = x^2, by the continued fraction
  // x / (1 + z / (3 + z / (5 + ...))): for |x| < 0.55 off by 2^-32 of the value.
  static TORCH_OPS_HOST_DEVICE float tanh_ratio(float z) {
    return (14 * z + 315) / ((15 * z + 420) * z + 945);
  }
};

template <>
struct MathFormat<double> {
  using Bits = uint64_t;
  static constexpr int kMantissaBits = 52;
  static constexpr int kBias = 1023;
  static constexpr int kDegree = 13;                               // below 2^-57
  static constexpr double kLeastNormal = 2.2250738585072014e-308;  // 2^-1022
  static constexpr double kLeast = -746;
  static constexpr double kMost = 710;
  static constexpr int kLogTerms = 11;  // below 2^-59
  static constexpr double kTanhIsOne = 20;

  static TORCH_OPS_HOST_DEVICE double tanh_ratio(double z) {  // off by 2^-60
    return (((z + 594) * z + 45045) * z + 675675) /
           ((((z + 630) * z + 51975) * z + 945945) * z + 2027025);
  }
};

// The parts of exp(x) = 2^k exp(r), with k = round(x / ln 2) and r = x - k ln 2,
// |r| <= ln(2) / 2. ln 2 is split in two: 355 / 512, whose products with k are exact, and the rest
// (W. J. Cody and W. Waite, Software Manual for the Elementary Functions, 1980, chapter 6).
template <class T>
struct ExpParts {
  using Format = MathFormat<T>;
  using Bits = typename Format::Bits;
  static constexpr T kUpperLn2 = T(0.693359375);
  static constexpr T kLowerLn2 = T(-2.121944400546905827679e-4);
  // A sum with 1.5 * 2^kMantissaBits has no bits for fractions: it is rounded to an integer, which
  // is in its lowest bits.
  static constexpr T kRound = T(1.5) * (Bits{1} << Format::kMantissaBits);

  Bits k;  // except for the upper bits, those of kRound
  T r;
  T curve;  // exp(r) = 1 + r + r^2 curve, by Taylor's polynomial

  TORCH_OPS_HOST_DEVICE explicit ExpParts(T x) {
    const T rounded = x * T(1.44269504088896340736) + kRound;  // 1 / ln 2
    const T whole = rounded - kRound;
    k = bit_cast<Bits>(rounded);
    r = (x - whole * kUpperLn2) - whole * kLowerLn2;

    constexpr T kInverseFactorials[] = {T(1),
                                        T(1),
                                        T(1. / 2),
                                        T(1. / 6),
                                        T(1. / 24),
                                        T(1. / 120),
                                        T(1. / 720),
                                        T(1. / 5040),
                                        T(1. / 40320),
                                        T(1. / 362880),
                                        T(1. / 3628800),
                                        T(1. / 39916800),
                                        T(1. / 479001600),
                                        T(1. / 6227020800)};
    curve = kInverseFactorials[Format::kDegree];
    for (int i = Format::kDegree - 1; i > 1; --i) curve = curve * r + kInverseFactorials[i];
  }

  // exp(r) - 1
  TORCH_OPS_HOST_DEVICE T rise() const { return r + r * r * curve; }

  // 2^(k + shift), if it is a normal number.
  TORCH_OPS_HOST_DEVICE T power_of_two(int shift) const {
    return bit_cast<T>((k + static_cast<Bits>(Format::kBias + shift)) << Format::kMantissaBits);
  }
};

namespace math {

// One of two values, without a jump: what does not change in a loop is then computed before it.
template <class T>
TORCH_OPS_HOST_DEVICE T pick(bool condition, T value, T other) {
  using Bits = typename MathFormat<T>::Bits;
  const Bits mask = Bits{0} - static_cast<Bits>(condition);
  return bit_cast<T>((bit_cast<Bits>(value) & mask) | (bit_cast<Bits>(other) & ~mask));
}

template <class T>
TORCH_OPS_HOST_DEVICE T exp(T x) {
#ifdef __CUDA_ARCH__
  return std::exp(x);
#else
  using Format = MathFormat<T>;
  x = pick(x < Format::kLeast, Format::kLeast, x);
  x = pick(x > Format::kMost, Format::kMost, x);
  const ExpParts<T> parts(x);
  const T scaled =
      (1 + parts.rise()) * pick(x < 0, parts.power_of_two(64), parts.power_of_two(-64));
  return scaled * pick(x < 0, 1 / T(0x1p64), T(0x1p64));
#endif
}

// log(x (1 + rest)) for x > 0, where `rest` is tiny.
template <class T>
TORCH_OPS_HOST_DEVICE T log_of_positive(T x, T rest) {
  using Format = MathFormat<T>;
  using Bits = typename Format::Bits;
  using Parts = ExpParts<T>;
  constexpr int kMantissaBits = Format::kMantissaBits;
  constexpr Bits kMantissa = (Bits{1} << kMantissaBits) - 1;

  // x = 2^k (1 + f) with sqrt(1 / 2) <= 1 + f < sqrt(2).
  const bool denormal = x < Format::kLeastNormal;
  x = pick(denormal, x * T(0x1p64), x);
  const Bits root = bit_cast<Bits>(T(0.70710678118654752440));
  const Bits above = bit_cast<Bits>(x) + (bit_cast<Bits>(T(1)) - root);
  const T f = bit_cast<T>((above & kMantissa) + root) - 1;
  const T exponent = bit_cast<T>((above >> kMantissaBits) + bit_cast<Bits>(Parts::kRound));
  const T k = exponent - (Parts::kRound + Format::kBias) - pick(denormal, T(64), T(0));

  // log(1 + f) = f - f^2 / 2 + s (f^2 / 2 + series), with s = f / (2 + f) and the series of
  // 2 atanh(s) without its first term: 2 s^2 / 3 + 2 s^4 / 5 + ...
  constexpr T kOfOdd[] = {T(2. / 3),  T(2. / 5),  T(2. / 7),  T(2. / 9),  T(2. / 11), T(2. / 13),
                          T(2. / 15), T(2. / 17), T(2. / 19), T(2. / 21), T(2. / 23)};
  const T s = f / (2 + f);
  const T z = s * s;
  T series = kOfOdd[Format::kLogTerms - 1];
  for (int i = Format::kLogTerms - 2; i >= 0; --i) series = series * z + kOfOdd[i];
  const T half_square = T(0.5) * f * f;
  const T lower = s * (half_square + series * z) + (k * Parts::kLowerLn2 + rest);
  return k * Parts::kUpperLn2 - ((half_square - lower) - f);
}

template <class T>
TORCH_OPS_HOST_DEVICE T log(T x) {
#ifdef __CUDA_ARCH__
  return std::log(x);
#else
  constexpr T kInfinity = T(__builtin_inf());
  T result = log_of_positive(x, T(0));
  result = pick(x < kInfinity, result, x);
  result = pick(x < 0, T(__builtin_nan("")), result);
  return pick(x == 0, -kInfinity, result);
#endif
}

// log(1 + x).
template <class T>
TORCH_OPS_HOST_DEVICE T log1p(T x) {
#ifdef __CUDA_ARCH__
  return std::log1p(x);
#else
  constexpr T kInfinity = T(__builtin_inf());
  const T sum = 1 + x;
  T result = log_of_positive(sum, (x - (sum - 1)) / sum);  // with what the sum rounds away
  result = pick(x < kInfinity, result, x);
  result = pick(x < -1, T(__builtin_nan("")), result);
  result = pick(x == -1, -kInfinity, result);
  return pick(x == 0, x, result);  // -0.0
#endif
}

template <class T>
TORCH_OPS_HOST_DEVICE T tanh(T x) {
#ifdef __CUDA_ARCH__
  return std::tanh(x);
#else
  using Format = MathFormat<T>;
  using Bits = typename Format::Bits;
  const Bits sign = bit_cast<Bits>(x) & bit_cast<Bits>(T(-0.0));
  T a = bit_cast<T>(bit_cast<Bits>(x) ^ sign);
  a = pick(a > Format::kTanhIsOne, Format::kTanhIsOne, a);

  const T z = a * a;
  const T small = a - a * (z * Format::tanh_ratio(z));

  // 1 - 2 / (exp(2 a) + 1) = 1 - 2 w / (1 + w + p), with exp(2 a) = (1 + p) / w.
  const ExpParts<T> parts(2 * a);
  const T inverse = parts.power_of_two(-1);  // 1 / (2 w)
  const T w = bit_cast<T>((Bits{2} * Format::kBias << Format::kMantissaBits) -
                          bit_cast<Bits>(parts.power_of_two(0)));
  const T p = parts.rise();
  const T sum = (1 + w) + p;
  const T lost = ((1 + w) - sum) + p;
  const T quotient = 2 * w / sum;
  const T large = 1 - (quotient - lost * quotient * quotient * inverse);
  const T result = pick(a < T(0.55), small, large);
  return bit_cast<T>(bit_cast<Bits>(result) | sign);
#endif
}

}  // namespace math
}  // namespace torch_ops

#endif
