// The two 16-bit floats as plain storage, with conversions that a compiler vectorises for any CPU:
// branch-free, in 32-bit integers and floats. (c10::Half's convert one value at a time.) A GPU has
// instructions for them. No torch.
#pragma once

#include <cstdint>
#include <cstring>

#include "common/host/host_device.h"
#include "common/host/host_program.h"

namespace torch_ops {

// The value of type To with the bits of `from`.
template <class To, class From>
TORCH_OPS_HOST_DEVICE To bit_cast(From from) {
  static_assert(sizeof(To) == sizeof(From), "bits are neither added nor dropped");
  To to;
  std::memcpy(&to, &from, sizeof(to));
  return to;
}

// IEEE binary16: a sign, 5 bits of exponent with bias 15, 10 bits of mantissa.
struct TORCH_OPS_KERNELS_API Float16 {
  uint16_t bits;

  Float16() = default;
  TORCH_OPS_HOST_DEVICE explicit Float16(float value) {
#ifdef __CUDA_ARCH__
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
#else
    const int32_t all = bit_cast<int32_t>(value);
    const int32_t magnitude = all & 0x7fffffff;
    // Exponent bias 127 becomes 15, and the 13 lowest bits are rounded to nearest, ties to even:
    // a carry runs on into the exponent, up to infinity, as for a larger exponent.
    const int32_t bounded = magnitude < kOverflow ? magnitude : kOverflow;
    const int32_t normal = ((bounded + 0xfff + ((bounded >> 13) & 1)) >> 13) - (112 << 10);
    // Below binary16's normal numbers its step is 2^-24, and so is float's in [0.5, 1): the sum
    // rounds at the right bit.
    const int32_t denormal = bit_cast<int32_t>(bit_cast<float>(magnitude) + 0.5f) - kHalf;
    const int32_t number = magnitude < kLeastNormal ? denormal : normal;
    const int32_t rounded = magnitude > kFloatInfinity ? 0x7e00 : number;
    bits = static_cast<uint16_t>(rounded | ((all >> 16) & 0x8000));
#endif
  }

  TORCH_OPS_HOST_DEVICE explicit operator float() const {
#ifdef __CUDA_ARCH__
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
#else
    const int32_t magnitude = bits & 0x7fff;
    // Infinity and NaN have the largest exponent in both formats.
    const int32_t bias = magnitude < 0x7c00 ? 112 << 23 : (112 << 23) + (112 << 23);
    const float normal = bit_cast<float>((magnitude << 13) + bias);
    const float denormal = static_cast<float>(magnitude) * 0x1p-24f;
    const int32_t number = bit_cast<int32_t>(magnitude < 0x0400 ? denormal : normal);
    return bit_cast<float>(number | (static_cast<int32_t>(bits & 0x8000) << 16));
#endif
  }

  // Their bits, as signed integers.
  static constexpr int kInfinity = 0x7c00;
  static constexpr int kNegativeInfinity = -0x400;

 private:
  // Bits of floats.
  static constexpr int32_t kOverflow = 143 << 23;     // 2^16
  static constexpr int32_t kLeastNormal = 113 << 23;  // 2^-14
  static constexpr int32_t kHalf = 126 << 23;         // 2^-1
  static constexpr int32_t kFloatInfinity = 255 << 23;
};

// bfloat16: the upper half of a float.
struct TORCH_OPS_KERNELS_API BFloat16 {
  uint16_t bits;

  BFloat16() = default;
  TORCH_OPS_HOST_DEVICE explicit BFloat16(float value) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
#else
    const uint32_t all = bit_cast<uint32_t>(value);
    // To nearest, ties to even. A NaN's carry could make it an infinity or a zero.
    const uint32_t rounded = (all + 0x7fff + ((all >> 16) & 1)) >> 16;
    bits = static_cast<uint16_t>(value == value ? rounded : 0x7fc0);
#endif
  }

  TORCH_OPS_HOST_DEVICE explicit operator float() const {
    return bit_cast<float>(static_cast<uint32_t>(bits) << 16);
  }

  static constexpr int kInfinity = 0x7f80;
  static constexpr int kNegativeInfinity = -0x80;
};

// Is the value at most zero, and not NaN? Integer arithmetic answers this for 16 bits: as signed
// integers their negative numbers run from -0.0, the least, to -infinity, with NaNs above it.
template <class T>
TORCH_OPS_HOST_DEVICE bool at_most_zero(T value) {
  if constexpr (sizeof(T) > 2) {
    return value <= 0;
  } else {
    const auto bits = static_cast<int16_t>(value.bits);
    return (bits <= T::kNegativeInfinity) | (bits == 0);
  }
}

// Is the value less than zero? -0.0 and NaN are not.
template <class T>
TORCH_OPS_HOST_DEVICE bool is_negative(T value) {
  if constexpr (sizeof(T) > 2) {
    return value < 0;
  } else {
    const auto bits = static_cast<int16_t>(value.bits);
    return (bits <= T::kNegativeInfinity) & (bits != INT16_MIN);
  }
}

// Is the value greater than zero, and not NaN?
template <class T>
TORCH_OPS_HOST_DEVICE bool is_positive(T value) {
  if constexpr (sizeof(T) > 2) {
    return value > 0;
  } else {
    const auto bits = static_cast<int16_t>(value.bits);
    return (bits > 0) & (bits <= T::kInfinity);
  }
}

}  // namespace torch_ops
