// Division of many 32-bit numbers by one that is known beforehand: a multiplication and a shift.
#pragma once

#include <cstdint>

namespace torch_ops {

// T. Granlund, P. L. Montgomery, "Division by Invariant Integers using Multiplication", PLDI 1994,
// figure 4.1. For divisors in [1, 2^31] and dividends below 2^31, so that the sum below fits.
class FastDivisor {
 public:
  FastDivisor() = default;

  explicit FastDivisor(uint32_t divisor) : divisor_(divisor) {
    while ((uint64_t{1} << shift_) < divisor) ++shift_;
    const uint64_t gap = (uint64_t{1} << shift_) - divisor;
    magic_ = static_cast<uint32_t>((gap << 32) / divisor + 1);
  }

  __device__ __forceinline__ uint32_t divide(uint32_t n) const {
    return (__umulhi(n, magic_) + n) >> shift_;
  }

  // n / divisor, with n % divisor in `remainder`.
  __device__ __forceinline__ uint32_t divide(uint32_t n, uint32_t& remainder) const {
    const uint32_t quotient = divide(n);
    remainder = n - quotient * divisor_;
    return quotient;
  }

 private:
  uint32_t divisor_ = 1;
  uint32_t magic_ = 1;
  uint32_t shift_ = 0;
};

}  // namespace torch_ops
