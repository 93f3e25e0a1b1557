// The arithmetic of sigmoid and its derivative, one value at a time. No torch.
#pragma once

#include "common/host/host_device.h"
#include "sigmoid/exp.h"

namespace torch_ops {

// 1 / (1 + exp(-x)), from exp(-|x|), so that nothing overflows and small results keep their digits.
// On the CPU, float32 has its own op: see sigmoid_float32.h.
struct Sigmoid : ComputesInFloat {
  template <class T>
  TORCH_OPS_HOST_DEVICE T operator()(T value) const {
    using Compute = ComputeType<T>;
    const Compute x = static_cast<Compute>(value);
#ifdef __CUDA_ARCH__
    if constexpr (sizeof(T) < sizeof(float)) return static_cast<T>(approximate(x));
#endif
    const Compute e = exponential(x < 0 ? x : -x);
    return static_cast<T>(divide(x < 0 ? e : Compute(1), e));
  }

 private:
  // exp(x) for x <= 0.
  template <class T>
  static TORCH_OPS_HOST_DEVICE T exponential(T x) {
#ifdef __CUDA_ARCH__
    if constexpr (sizeof(T) == sizeof(double)) return exp_of_nonpositive_cuda(x);
#endif
    return exp_of_nonpositive(x);
  }

  // numerator / (1 + e) for 0 <= e <= 1.
  template <class T>
  static TORCH_OPS_HOST_DEVICE T divide(T numerator, T e) {
    return numerator / (T(1) + e);
  }

#ifdef __CUDA_ARCH__
  // In float32 division is most of the work and half of the error. This uses the approximate
  // reciprocal and corrects the quotient by the remainder, with the part of e that 1 + e rounds
  // away: the result is within a step of the correctly rounded one, where expf and a division are
  // within three, and takes no longer.
  static __device__ __forceinline__ float divide(float numerator, float e) {
    const float sum = 1.0f + e;
    const float lost = e - (sum - 1.0f);
    const float inverse = reciprocal(sum);
    const float quotient = numerator * inverse;
    const float remainder = fmaf(-quotient, lost, fmaf(-quotient, sum, numerator));
    return fmaf(remainder, inverse, quotient);
  }

  // In float64 too: from the approximate reciprocal, 20 bits of which are right, one step of third
  // order leaves an error below 2^-59.
  static __device__ __forceinline__ double divide(double numerator, double e) {
    const double sum = 1.0 + e;
    double inverse;
    asm("rcp.approx.ftz.f64 %0, %1;" : "=d"(inverse) : "d"(sum));
    double error = fma(-sum, inverse, 1.0);
    error = fma(error, error, error);
    return numerator * fma(inverse, error, inverse);
  }

  // For 16 bits: at worst off by some 2^-18 of the value, from the rounding of x / ln 2, which is
  // at most 128. Half a step of bfloat16 is 2^-9 of the value, of float16 2^-12.
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
