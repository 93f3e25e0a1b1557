// exp of numbers that are not positive: branch-free, so that a CPU's loop that calls it vectorises,
// and right down to the least denormal number. No torch.
#pragma once

#include <cstdint>

#include "common/float16.h"

namespace torch_ops {

template <class T>
struct ExpFormat;

template <>
struct ExpFormat<float> {
  using Bits = uint32_t;
  static constexpr int kMantissaBits = 23;
  static constexpr int kBias = 127;
  static constexpr int kDegree = 7;      // Taylor's remainder: below 2^-27 of the value
  static constexpr float kLeast = -104;  // its exp rounds to 0
};

template <>
struct ExpFormat<double> {
  using Bits = uint64_t;
  static constexpr int kMantissaBits = 52;
  static constexpr int kBias = 1023;
  static constexpr int kDegree = 13;  // below 2^-57
  static constexpr double kLeast = -746;
};

// exp(x) for x <= 0; NaN for NaN.
//
// exp(x) = 2^k exp(r) with k = round(x / ln 2) and r = x - k ln 2, |r| <= ln(2) / 2, where ln 2 is
// split in two: 355 / 512, whose products with k are exact, and the rest (W. J. Cody and W. Waite,
// Software Manual for the Elementary Functions, 1980, chapter 6). exp(r) is Taylor's polynomial.
template <class T>
TORCH_OPS_HOST_DEVICE T exp_of_nonpositive(T x) {
  using Format = ExpFormat<T>;
  using Bits = typename Format::Bits;
  x = x < Format::kLeast ? Format::kLeast : x;

  // A sum with 1.5 * 2^kMantissaBits has no bits for fractions: it is rounded to an integer, which
  // stands in its lowest bits.
  constexpr T kRound = T(1.5) * (Bits{1} << Format::kMantissaBits);
  const T rounded = x * T(1.44269504088896340736) + kRound;  // 1 / ln 2
  const T k = rounded - kRound;
  const T r = (x - k * T(0.693359375)) - k * T(-2.121944400546905827679e-4);

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
  T power = kInverseFactorials[Format::kDegree];
  for (int i = Format::kDegree - 1; i >= 0; --i) power = power * r + kInverseFactorials[i];

  // 2^k may be too small for the format, 2^(k + 64) is not: the second product rounds, once.
  const Bits exponent = bit_cast<Bits>(rounded) + (Format::kBias + 64);
  return power * bit_cast<T>(exponent << Format::kMantissaBits) * T(0x1p-64);
}

}  // namespace torch_ops
