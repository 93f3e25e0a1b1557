// The arithmetic of sigmoid and its derivative, one value at a time. No torch.
#pragma once

#include "common/host_device.h"
#include "sigmoid/exp.h"

namespace torch_ops {

// 1 / (1 + exp(-x)), from exp(-|x|) so that nothing overflows and the lower tail keeps its digits.
struct Sigmoid : ComputesInFloat {
  template <class T>
  TORCH_OPS_HOST_DEVICE T operator()(T value) const {
    using Compute = ComputeType<T>;
    const Compute x = static_cast<Compute>(value);
#ifdef __CUDA_ARCH__
    if constexpr (sizeof(T) < sizeof(float)) return static_cast<T>(approximate(x));
#endif
    const Compute e = exp_of_nonpositive(x < 0 ? x : -x);
    return static_cast<T>(divide(x < 0 ? e : Compute(1), e));
  }

 private:
  // numerator / (1 + e) for 0 <= e <= 1.
  template <class T>
  static TORCH_OPS_HOST_DEVICE T divide(T numerator, T e) {
#ifdef __CUDA_ARCH__
    return corrected_quotient(numerator, e);
#else
    return numerator / (T(1) + e);
#endif
  }

#ifdef __CUDA_ARCH__
  // Division is most of the work and half of the error. This takes an approximate reciprocal and
  // corrects the quotient by the remainder, with the part of e that 1 + e rounds away: in float32
  // the result is within a step of the correctly rounded one, where expf and a division are within
  // three, and costs no more.
  template <class T>
  static __device__ __forceinline__ T corrected_quotient(T numerator, T e) {
    const T sum = T(1) + e;
    const T lost = e - (sum - T(1));
    const T inverse = reciprocal(sum);
    const T quotient = numerator * inverse;
    const T remainder = fma(-quotient, lost, fma(-quotient, sum, numerator));
    return fma(remainder, inverse, quotient);
  }

  // For 16 bits: off by some 2^-18 of the value at worst, from the rounding of x / ln 2, which is
  // 128 at most. Half a step of bfloat16 is 2^-9 of the value, of float16 2^-12.
  static __device__ __forceinline__ float approximate(float x) {
    float e;
    asm("ex2.approx.f32 %0, %1;" : "=f"(e) : "f"(fabsf(x) * -1.44269504f));
    return (x < 0 ? e : 1.0f) * reciprocal(1.0f + e);
  }

  static __device__ __forceinline__ float reciprocal(float x) {
    float result;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
    return result;
  }

  // The hardware's has 20 bits or more, each of Newton's steps doubles them.
  static __device__ __forceinline__ double reciprocal(double x) {
    double result;
    asm("rcp.approx.ftz.f64 %0, %1;" : "=d"(result) : "d"(x));
    result = fma(result, fma(-x, result, 1.0), result);
    return fma(result, fma(-x, result, 1.0), result);
  }
#endif
};

// grad_output * y * (1 - y) for the output y.
struct SigmoidBackward : ComputesInFloat {
  template <class T>
  TORCH_OPS_HOST_DEVICE T operator()(T grad_output, T output) const {
    using Compute = ComputeType<T>;
    const Compute y = static_cast<Compute>(output);
    return static_cast<T>(static_cast<Compute>(grad_output) * (Compute(1) - y) * y);
  }
};

}  // namespace torch_ops
