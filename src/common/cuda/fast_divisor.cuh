// Divisions that take less time than those of 64 bits.
#pragma once

#include <cstdint>

namespace torch_ops {

// Of many 32-bit numbers by one that is known beforehand: a multiplication and a shift.
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

// A number that mostly has 32 bits: a division of 64 bits takes nearly as long as a wait for
// memory.
__device__ __forceinline__ uint64_t quotient(uint64_t number, unsigned by) {
  if (by == 1) return number;
  return number >> 32 == 0 ? static_cast<unsigned>(number) / by : number / by;
}

}  // namespace torch_ops
