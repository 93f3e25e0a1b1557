// How a generated CUDA kernel moves memory.
#pragma once
#include "cuda.h"
#include "operands.h"

namespace torch_ops {

// The type that moves so many bytes at a time.
template <int bytes>
struct Bytes {};
__device__ unsigned char word_of(Bytes<1>);
__device__ unsigned short word_of(Bytes<2>);
__device__ unsigned word_of(Bytes<4>);
__device__ uint2 word_of(Bytes<8>);
__device__ uint4 word_of(Bytes<16>);

// Elements that lie together, moved in words of up to 16 bytes.
template <class Stored, int count>
struct Vector {
  static constexpr int bytes = sizeof(Stored) * count < 16 ? sizeof(Stored) * count : 16;
  static constexpr int words = sizeof(Stored) * count / bytes;
  using W = decltype(word_of(Bytes<bytes>()));
  union {
    Stored values[count];
    W parts[words];
  };

  TORCH_OPS_FUNCTION Vector() {}
  TORCH_OPS_FUNCTION void load(const char* from) {
#pragma unroll
    for (int k = 0; k < words; ++k) parts[k] = reinterpret_cast<const W*>(from)[k];
  }
  TORCH_OPS_FUNCTION void store(char* to) const {
#pragma unroll
    for (int k = 0; k < words; ++k) reinterpret_cast<W*>(to)[k] = parts[k];
  }
  TORCH_OPS_FUNCTION const Stored& operator[](int element) const { return values[element]; }
  TORCH_OPS_FUNCTION Stored& operator[](int element) { return values[element]; }
};

// `count` vectors of each operand; one that has an element for all of a vector has that alone.
template <class O, int vector, int count>
struct Held {
  static constexpr bool is_splat = O::mode == 'b' || O::mode == 'B';
  Vector<typename O::Stored, is_splat ? 1 : vector> of[count];
};
template <int vector, int count, class... O>
struct Loaded : Held<O, vector, count>... {
  template <class A>
  TORCH_OPS_FUNCTION void load(int u, const char* from) {
    Held<A, vector, count>::of[u].load(from);
  }
  template <class A>
  TORCH_OPS_FUNCTION void store(int u, char* to) const {
    Held<A, vector, count>::of[u].store(to);
  }
  template <class A>
  TORCH_OPS_FUNCTION typename A::Stored& at(int u, int e) {
    return Held<A, vector, count>::of[u][Held<A, vector, count>::is_splat ? 0 : e];
  }
  template <class A>
  TORCH_OPS_FUNCTION typename A::Value value(int u, int e) {
    return load_as<typename A::Value>(at<A>(u, e));
  }
};

// Division by a number that the host knows, for dividends below 2^31: see
// src/common/cuda/fast_divisor.cuh. Filled by plan.cpp.
struct Divisor {
  uint32_t divisor, magic, shift, unused;
  TORCH_OPS_FUNCTION uint32_t divide(uint32_t n) const { return (__umulhi(n, magic) + n) >> shift; }
};

}  // namespace torch_ops
