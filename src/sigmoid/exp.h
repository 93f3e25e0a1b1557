// exp of numbers that are not positive, with fewer operations than math::exp: branch-free, so that
// a CPU's loop that calls it vectorises, and accurate down to the least denormal number. No torch.
#pragma once

#include <cstdint>

#include "common/elementwise/vector_math.h"
#include "common/host/float16.h"

namespace torch_ops {

// exp(x) for x <= 0; NaN for NaN.
//
// exp(x) = 2^k exp(r) with k = round(x / ln 2) and r = x - k ln 2, |r| <= ln(2) / 2, where ln 2 is
// split in two: 355 / 512, whose products with k are exact, and the rest (W. J. Cody and W. Waite,
// Software Manual for the Elementary Functions, 1980, chapter 6). exp(r) is Taylor's polynomial.
template <class T>
TORCH_OPS_HOST_DEVICE T exp_of_nonpositive(T x) {
  using Format = MathFormat<T>;
  using Bits = typename Format::Bits;
  x = x < Format::kLeast ? Format::kLeast : x;

  // A sum with 1.5 * 2^kMantissaBits has no bits for fractions: it is rounded to an integer, which
  // is in its lowest bits.
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

  // 2^k may be too small for the format, but 2^(k + 64) is not: the second product rounds, once.
  const Bits exponent = bit_cast<Bits>(rounded) + (Format::kBias + 64);
  return power * bit_cast<T>(exponent << Format::kMantissaBits) * T(0x1p-64);
}

#ifdef __CUDACC__

// The same in float64 on the GPU, where a call of sigmoid would wait for these operations and not
// for the memory: fused, and with two terms fewer. The polynomial is the one that meets exp at the
// Chebyshev nodes of [-0.347, 0.347], computed with 60 digits; it is off by at most 2^-56 of the
// value, before rounding.
__device__ inline double exp_of_nonpositive_cuda(double x) {
  // From -708 on the result is a normal number, and the exponent can be added to its bits. NaN is
  // above all numbers here.
  constexpr int kHighOf708 = 0x40862000;
  if ((__double2hiint(x) & INT32_MAX) >= kHighOf708) return exp(x);

  constexpr double kRound = 1.5 * (int64_t{1} << 52);  // see above
  const double rounded = fma(x, 1.44269504088896340736, kRound);
  const double k = rounded - kRound;
  double r = fma(k, -0x1.62e42fefa39efp-1, x);  // ln 2 in two parts
  r = fma(k, -0x1.abc9e3b39803fp-56, r);

  const double coefficients[] = {
      0x1.0000000000000p+0,  0x1.0000000000000p+0,  0x1.0000000000011p-1,  0x1.555555555555ap-3,
      0x1.555555554f000p-5,  0x1.111111110f1e5p-7,  0x1.6c16c18826db1p-10, 0x1.a01a01b15de9dp-13,
      0x1.a01991399f987p-16, 0x1.71ddf52ded199p-19, 0x1.28b46faf8c24cp-22, 0x1.af639fa6e1b0bp-26};
  double power = coefficients[11];
#pragma unroll
  for (int i = 10; i >= 0; --i) power = fma(power, r, coefficients[i]);
  return __hiloint2double(__double2hiint(power) + (__double2loint(rounded) << 20),
                          __double2loint(power));
}

#endif

}  // namespace torch_ops
