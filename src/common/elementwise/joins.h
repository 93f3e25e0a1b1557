// How two numbers are joined into one, and the number that changes nothing. No torch.
#pragma once

#include <cstdint>
#include <limits>
#include <type_traits>

#include "common/host/host_device.h"

namespace torch_ops {

struct Plus {
  template <class T>
  static TORCH_OPS_HOST_DEVICE constexpr T identity() {
    return T(0);
  }
  template <class T>
  static TORCH_OPS_HOST_DEVICE T join(T a, T b) {
    return a + b;
  }
};

struct Times {
  template <class T>
  static TORCH_OPS_HOST_DEVICE constexpr T identity() {
    return T(1);
  }
  template <class T>
  static TORCH_OPS_HOST_DEVICE T join(T a, T b) {
    if constexpr (std::is_integral_v<T>) {  // which wraps
      return static_cast<T>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
    } else {
      return a * b;
    }
  }
};

// The larger of two numbers, or the smaller: NaN if one is; of what is alike, one of them.
template <bool kLargest>
struct Better {
  template <class T>
  static TORCH_OPS_HOST_DEVICE constexpr T identity() {
    using Limits = std::numeric_limits<T>;
    if constexpr (Limits::has_infinity) {
      return kLargest ? -Limits::infinity() : Limits::infinity();
    } else {
      return kLargest ? Limits::min() : Limits::max();
    }
  }
  template <class T>
  static TORCH_OPS_HOST_DEVICE T join(T a, T b) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    if constexpr (std::is_same_v<T, float>) {  // one instruction instead of three
      if constexpr (kLargest) {
        asm("max.NaN.f32 %0, %0, %1;" : "+f"(a) : "f"(b));
      } else {
        asm("min.NaN.f32 %0, %0, %1;" : "+f"(a) : "f"(b));
      }
      return a;
    }
#endif
    return ((kLargest ? a >= b : a <= b) | (a != a)) ? a : b;
  }
};

}  // namespace torch_ops
