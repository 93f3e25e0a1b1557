// exp, expm1, log, log1p, tanh and erf in float and double: math::exp(x) etc., for the kernels of
// this library (src/common/elementwise/vector_math.h) and for those compiled at run time for the
// CPU (cpu.h). On the CPU they are branch-free, so a loop that calls them vectorises, which
// std::exp and its relatives prevent. On CUDA they are CUDA's own. Infinities, NaN, denormal
// numbers and arguments outside the domain give the same as in the standard library. Results are
// off by at most 1.5 steps of the format (expm1, erf), 1.1 (exp, tanh) and 0.9 (log, log1p),
// in every instruction set: each is the correctly rounded one or its neighbour
// (tests/elementwise/test_vector_math.py). No torch. Stands after TORCH_OPS_HOST_DEVICE and
// bit_cast.
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

  // Polynomials for erf, fitted so that the largest error of the result is least, below 2^-29 of
  // it: erf(x) / x - 1 in x^2 for |x| < 1, and -log(erfc(x)) in x - 1 up to kErfIsOne.
  static constexpr float kErfIsOne = 4;
  static constexpr float kErfSmall[] = {0.128379165897773865f,    -0.376126270420108893f,
                                        0.112835992779362751f,    -0.0268544132072427603f,
                                        0.00518948602850893076f,  -0.000802048767658195499f,
                                        0.0000788818363002740583f};
  static constexpr float kErfLarge[] = {1.84960551639797028f,     2.63896685079556834f,
                                        0.843117820749401796f,    0.0415029104211574568f,
                                        -0.00989472320554742403f, 0.00182894888936378523f,
                                        -0.000186274537364199242f};
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

  static constexpr double kErfIsOne = 6;  // both below 2^-56
  static constexpr double kErfSmall[] = {
      0.128379167095512567,    -0.376126389031835465,     0.112837916709452488,
      -0.0268661706432755753,  0.00522397760741866525,    -0.000854832598948634548,
      0.000120552953147200673, -0.0000149247445611537377, 1.64475165120993916e-6,
      -1.62091676267681749e-7, 1.37229428968251355e-8,    -7.80113068770746823e-10};
  static constexpr double kErfLarge[] = {
      1.84960550993324826,      2.63896751423478855,       0.843107256358660032,
      0.0415610980421632331,    -0.0100338253782481028,    0.0019779025925791385,
      -0.000237322584065956005, -0.0000262775830416021586, 0.0000271585221747443829,
      -9.6080330578057953e-6,   2.05882999088497223e-6,    -1.42113013523409463e-7,
      -9.80074911842823268e-8,  5.22435871295352346e-8,    -1.49784693688035224e-8,
      2.87946877761189485e-9,   -3.70621626374085948e-10,  2.90341108133288255e-11,
      -1.04819287388676795e-12};
};

// A polynomial, by Horner's rule.
template <class T, size_t N>
TORCH_OPS_HOST_DEVICE T polynomial(const T (&coefficients)[N], T x) {
  T sum = coefficients[N - 1];
  for (int i = static_cast<int>(N) - 2; i >= 0; --i) sum = sum * x + coefficients[i];
  return sum;
}

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

// exp(x) - 1.
template <class T>
TORCH_OPS_HOST_DEVICE T expm1(T x) {
#ifdef __CUDA_ARCH__
  return std::expm1(x);
#else
  using Format = MathFormat<T>;
  constexpr T kOneIsLost = Format::kMantissaBits * T(0.75);  // in the sum, or exp(x) in it
  T low = pick(x < -kOneIsLost, -kOneIsLost, x);
  low = pick(low > Format::kMost, Format::kMost, low);
  const ExpParts<T> parts(low);
  // 2^k - 1 + 2^k (r + r^2 curve), with what the sum of the first three rounds away.
  const T power = parts.power_of_two(0), first = power * parts.r;
  const T sum = (power - 1) + first;
  const T lost = (power - 1) - sum + first;
  const T result = sum + (first * parts.r * parts.curve + lost);
  const T large = (1 + parts.rise()) * parts.power_of_two(-64) * T(0x1p64);
  return pick(x == 0, x, pick(x > kOneIsLost, large, result));
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

// erf(x) = x + x P(x^2), or 1 - erfc(x) with erfc(x) = exp(-Q(x)).
template <class T>
TORCH_OPS_HOST_DEVICE T erf(T x) {
#ifdef __CUDA_ARCH__
  return std::erf(x);
#else
  using Format = MathFormat<T>;
  using Bits = typename Format::Bits;
  const Bits sign = bit_cast<Bits>(x) & bit_cast<Bits>(T(-0.0));
  T a = bit_cast<T>(bit_cast<Bits>(x) ^ sign);
  a = pick(a > Format::kErfIsOne, Format::kErfIsOne, a);
  const T small = a + a * polynomial(Format::kErfSmall, a * a);
  const ExpParts<T> parts(-polynomial(Format::kErfLarge, a - 1));
  const T large = 1 - (1 + parts.rise()) * parts.power_of_two(0);
  const T result = pick(a < 1, small, large);
  return bit_cast<T>(bit_cast<Bits>(result) | sign);
#endif
}

}  // namespace math
}  // namespace torch_ops

#endif
