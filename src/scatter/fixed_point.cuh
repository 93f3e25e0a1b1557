// Sums of floats in shared memory whose bits do not depend on the order of the additions. No torch.
//
// Integers add up to the same in any order, and shared memory has atomics for those of 32 bits. So
// values become integers: each sum has a scale of its own, a power of two, that brings the largest
// magnitude that goes into it to [2^29, 2^30). That is 6 bits more than the value has; what lies
// lower in smaller ones is rounded off. So n values are off by n 2^-30 of the largest at most,
// where a sum in float32 may lose 2^-25 of what it has reached with each value. It takes two passes
// over the values: `see`, which finds the largest, and then `add`.
//
// The halves of an integer, of 15 bits, are added up apart: they have room for 65535 values.
#pragma once

#include <cstdint>

namespace torch_ops {

class FixedSums {
 public:
  static constexpr int kMostValues = 65535;  // of a sum
  static constexpr int kBytes = 12;          // a sum

  // `memory` is shared, with room for `count` sums; all threads of the block have the same.
  __device__ FixedSums(void* memory, int count)
      : scales_(static_cast<uint32_t*>(memory)),
        high_(reinterpret_cast<int32_t*>(scales_ + count)),
        low_(reinterpret_cast<uint32_t*>(high_ + count)),
        count_(count) {}

  // These two walk all sums, each with all threads of the block. A barrier must stand before and
  // behind them.
  __device__ void clear() const {
    for (int i = threadIdx.x; i < count_; i += blockDim.x) {
      scales_[i] = 0;
      high_[i] = 0;
      low_[i] = 0;
    }
  }
  __device__ void set_scales() const {
    for (int i = threadIdx.x; i < count_; i += blockDim.x) scales_[i] = scale_of(scales_[i]);
  }

  // Bits of a magnitude have its order; infinity and NaN are above all numbers. Most values are
  // no larger than one before, which a look tells: rows that many entries name take few atomics.
  __device__ __forceinline__ void see(uint32_t sum, float value) const {
    const uint32_t magnitude = __float_as_uint(value) & kMagnitude;
    if (magnitude > *static_cast<volatile uint32_t*>(scales_ + sum)) {
      atomicMax(scales_ + sum, magnitude);
    }
  }

  // A value as what it adds to a sum.
  struct Halves {
    int32_t high;
    uint32_t low;
    __device__ Halves& operator+=(const Halves& other) {
      high += other.high;
      low += other.low;
      return *this;
    }
  };

  __device__ __forceinline__ uint32_t scale(uint32_t sum) const { return scales_[sum]; }

  static __device__ __forceinline__ Halves split(float value, uint32_t scale) {
    Halves halves = split_integer(__float2int_rn(value * __uint_as_float(scale)));
    if (static_cast<int32_t>(scale) < 0) {  // rare
      const uint32_t exponent = scale & kExponentMask;
      const uint32_t bits = __float_as_uint(value), magnitude = bits & kMagnitude;
      if (exponent < kNotFinite) {
        // The scale itself is no float.
        halves = split_integer(__float2int_rn(
            value * 0x1p64f * __uint_as_float((kScaled - 64 - max(exponent, 1u)) << 23)));
      } else if (magnitude >= kInfinity) {
        // Numbers of what there is: infinities in the halves of `high`, NaN in `low`.
        const bool nan = magnitude > kInfinity;
        halves = {nan ? 0 : bits > kMagnitude ? 1 << 16 : 1, nan ? 1u : 0u};
      } else {
        halves = {0, 0};
      }
    }
    return halves;
  }

  __device__ __forceinline__ void add(uint32_t sum, const Halves& halves) const {
    atomicAdd(high_ + sum, halves.high);
    atomicAdd(low_ + sum, halves.low);
  }

  // Rounded once.
  __device__ float total(int sum) const {
    const uint32_t scale = scales_[sum];
    const auto high = high_[sum];
    const uint32_t low = low_[sum];
    uint32_t exponent = kScaled - (scale >> 23);
    if (static_cast<int32_t>(scale) < 0) {
      exponent = max(scale & kExponentMask, 1u);
      if (exponent == kNotFinite) {
        const uint32_t positive = static_cast<uint32_t>(high) & 0xffff;
        const uint32_t negative = static_cast<uint32_t>(high) >> 16;
        const bool nan = low != 0 || (positive != 0 && negative != 0);
        return __uint_as_float(nan ? kNan : positive != 0 ? kInfinity : kInfinity | ~kMagnitude);
      }
    }
    // Both factors are exact: the integer has 47 bits, and the other is a power of two.
    const auto integer = static_cast<double>((static_cast<int64_t>(high) << 15) + low);
    return static_cast<float>(
        integer * __longlong_as_double(static_cast<int64_t>(1023 - 156 + exponent) << 52));
  }

 private:
  static constexpr uint32_t kMagnitude = 0x7fffffff;
  static constexpr uint32_t kInfinity = 0x7f800000;
  static constexpr uint32_t kNan = 0x7fc00000;
  static constexpr uint32_t kExponentMask = 0xff;
  static constexpr uint32_t kNotFinite = 255;  // as an exponent
  // A value of biased exponent e is below 2^(e - 126); so its scale is 2^(30 - (e - 126)), whose
  // biased exponent is this less e.
  static constexpr uint32_t kScaled = 283;

  // What stands for the scale that is made for the largest magnitude: its bits; or, with the
  // highest bit set, the magnitude's exponent, where the scale would be no float.
  static __device__ uint32_t scale_of(uint32_t magnitude) {
    const uint32_t exponent = magnitude >> 23;
    if (magnitude == 0) return 127u << 23;  // 1, for nothing but zeros
    const bool usual = exponent >= kScaled - 254 && exponent < kNotFinite;
    return usual ? (kScaled - exponent) << 23 : ~kMagnitude | exponent;
  }

  static __device__ __forceinline__ Halves split_integer(int32_t integer) {
    return {integer >> 15, static_cast<uint32_t>(integer) & 0x7fff};
  }

  uint32_t* scales_;  // after `see`: the largest magnitudes
  int32_t* high_;
  uint32_t* low_;
  int count_;
};

}  // namespace torch_ops
