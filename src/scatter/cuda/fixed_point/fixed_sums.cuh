// Sums of floats in shared memory whose bits do not depend on the order of the additions. No torch.
//
// The sum of integers does not depend on the order, and shared memory has atomics for 32 bits. So
// values become integers: each sum has its own scale, a power of two, that brings the largest
// magnitude of its values to [2^29, 2^30). That is 6 bits more than the value has; lower bits
// of smaller values are rounded off. So the sum of n values is off by at most n 2^-30 of the
// largest, where a sum in float32 may lose 2^-25 of its size with each value. It needs two passes
// over the values: `see`, which finds the largest, and then `add`.
//
// The halves of an integer, of 15 bits, are added up separately: they have room for 65535 values.
#pragma once

#include <cstdint>

#include "common/cuda/vectorized.cuh"

namespace torch_ops {

class FixedSums {
 public:
  // `memory` is shared, with room for `count` sums; all threads of the block pass the same.
  __device__ FixedSums(void* memory, int count)
      : scales_(static_cast<uint32_t*>(memory)),
        high_(reinterpret_cast<int32_t*>(scales_ + count)),
        low_(reinterpret_cast<uint32_t*>(high_ + count)),
        count_(count) {}

  // These two walk all sums, each with all threads of the block. A barrier is needed before and
  // after them. `clear` also writes the padding of the last 16 bytes.
  __device__ void clear() const {
    auto* fours = reinterpret_cast<Four*>(scales_);
    for (int i = threadIdx.x; i < (count_ * 3 + 3) / 4; i += blockDim.x) fours[i] = {};
  }
  __device__ void set_scales() const {
    auto* fours = reinterpret_cast<Four*>(scales_);
    for (int i = threadIdx.x; i < count_ / 4; i += blockDim.x) {
      Four four = fours[i];
#pragma unroll
      for (uint32_t& scale : four.values) scale = scale_of(scale);
      fours[i] = four;
    }
    const int i = count_ / 4 * 4 + static_cast<int>(threadIdx.x);
    if (i < count_) scales_[i] = scale_of(scales_[i]);
  }

  // Bits of a magnitude have its order; infinity and NaN are above all numbers. Most values are
  // not larger than a previous one, as a look shows: rows that many entries name need few atomics.
  // All looks are first, so that they do not wait for each other. A zero does nothing.
  template <int N>
  __device__ __forceinline__ void see(const uint32_t (&sums)[N], const float (&values)[N]) const {
    uint32_t seen[N];
#pragma unroll
    for (int i = 0; i < N; ++i) seen[i] = *static_cast<volatile uint32_t*>(scales_ + sums[i]);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      raise(scales_ + sums[i], seen[i], __float_as_uint(values[i]) & kMagnitude);
    }
  }

  // A value in the form in which it is added to a sum.
  struct Halves {
    int32_t high;
    uint32_t low;
    __device__ Halves& operator+=(const Halves& other) {
      high += other.high;
      low += other.low;
      return *this;
    }
  };

  // Values in the form in which each is added to its sum.
  template <int N>
  __device__ __forceinline__ void split(const uint32_t (&sums)[N], const float (&values)[N],
                                        Halves (&halves)[N]) const {
    uint32_t scales[N], all = 0;
#pragma unroll
    for (int i = 0; i < N; ++i) all |= scales[i] = scales_[sums[i]];
#pragma unroll
    for (int i = 0; i < N; ++i) {
      halves[i] = split_integer(__float2int_rn(values[i] * __uint_as_float(scales[i])));
    }
    if (static_cast<int32_t>(all) >= 0) return;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if (static_cast<int32_t>(scales[i]) < 0) halves[i] = split_unusual(values[i], scales[i]);
    }
  }

  __device__ __forceinline__ void add(uint32_t sum, const Halves& halves) const {
    atomicAdd(high_ + sum, halves.high);
    atomicAdd(low_ + sum, halves.low);
  }

  // Rounded once.
  __device__ __forceinline__ float total(int sum) const {
    const uint32_t scale = scales_[sum];
    const int32_t high = high_[sum];
    const uint32_t low = low_[sum];
    if (static_cast<int32_t>(scale) < 0) return unusual_total(scale, high, low);
    // The inverse of the scale is exact, and so is the product: it is no smaller than 2^-126.
    constexpr uint32_t kInverse = 254u << 23;
    return __ll2float_rn(whole(high, low)) * __uint_as_float(kInverse - scale);
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

  using Four = Vector<uint32_t, 4>;

  // A predicate, and not a branch: those of several values would wait for each other.
  static __device__ __forceinline__ void raise(uint32_t* to, uint32_t seen, uint32_t magnitude) {
    asm volatile(
        "{\n\t.reg .pred larger;\n\t"
        "setp.gt.u32 larger, %1, %2;\n\t"
        "@larger red.shared.max.u32 [%0], %1;\n\t}" ::"r"(
            static_cast<uint32_t>(__cvta_generic_to_shared(to))),
        "r"(magnitude), "r"(seen)
        : "memory");
  }

  static __device__ Halves split_unusual(float value, uint32_t scale) {
    const uint32_t exponent = scale & kExponentMask;
    if (exponent < kNotFinite) {
      // The scale itself, or its inverse, is not a float.
      return split_integer(__float2int_rn(
          value * 0x1p64f * __uint_as_float((kScaled - 64 - max(exponent, 1u)) << 23)));
    }
    const uint32_t bits = __float_as_uint(value), magnitude = bits & kMagnitude;
    if (magnitude < kInfinity) return {0, 0};
    // Counts of special values: infinities in the halves of `high`, NaN in `low`.
    const bool nan = magnitude > kInfinity;
    return {nan ? 0 : bits > kMagnitude ? 1 << 16 : 1, nan ? 1u : 0u};
  }

  static __device__ float unusual_total(uint32_t scale, int32_t high, uint32_t low) {
    const uint32_t exponent = max(scale & kExponentMask, 1u);
    if (exponent == kNotFinite) {
      const uint32_t positive = static_cast<uint32_t>(high) & 0xffff;
      const uint32_t negative = static_cast<uint32_t>(high) >> 16;
      const bool nan = low != 0 || (positive != 0 && negative != 0);
      return __uint_as_float(nan ? kNan : positive != 0 ? kInfinity : kInfinity | ~kMagnitude);
    }
    // Both factors are exact: the integer has 47 bits, and the other is a power of two.
    return static_cast<float>(
        static_cast<double>(whole(high, low)) *
        __longlong_as_double(static_cast<int64_t>(1023 - 156 + exponent) << 52));
  }

  static __device__ __forceinline__ int64_t whole(int32_t high, uint32_t low) {
    return (static_cast<int64_t>(high) << 15) + low;
  }

  // Represents the scale for the largest magnitude: its bits; or, with the
  // highest bit set, the magnitude's exponent, if the scale or its inverse would not be a float.
  static __device__ uint32_t scale_of(uint32_t magnitude) {
    const uint32_t exponent = magnitude >> 23;
    if (magnitude == 0) return 127u << 23;  // 1, for only zeros
    const bool usual = exponent >= kScaled - 253 && exponent < kNotFinite;
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
