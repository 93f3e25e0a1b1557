// exp of numbers that are not positive, with fewer operations than math::exp: branch-free, so that
// a CPU's loop that calls it vectorises, and accurate down to the least denormal number. No torch.
#pragma once

#include <cstdint>

#include "common/elementwise/vector_math.h"
#include "common/host/float16.h"

namespace torch_ops {

// exp(x) for x <= 0; NaN for NaN.
template <class T>
TORCH_OPS_HOST_DEVICE T exp_of_nonpositive(T x) {
  using Format = MathFormat<T>;
  const ExpParts<T> parts(x < Format::kLeast ? Format::kLeast : x);
  const T power = (parts.curve * parts.r + T(1)) * parts.r + T(1);
  // 2^k may be too small for the format, but 2^(k + 64) is not: the second product rounds, once.
  return power * parts.power_of_two(64) * T(0x1p-64);
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

  constexpr double kRound = ExpParts<double>::kRound;
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
