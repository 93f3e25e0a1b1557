// What a generated kernel computes on, for NVRTC and for the host's C++ compiler: element types of
// tensors in memory, and the values that a snippet sees. No other header.
#pragma once
#ifdef __CUDACC_RTC__
typedef signed char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long long int64_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;
typedef decltype((char*)nullptr - (char*)nullptr) ptrdiff_t;
#define TORCH_OPS_FUNCTION __device__ __forceinline__
#define TORCH_OPS_INLINE  // of a lambda: NVRTC inlines one that is called
#else
#include <cstddef>
#include <cstdint>
#include <cstring>
#define TORCH_OPS_FUNCTION inline __attribute__((always_inline))
#define TORCH_OPS_INLINE __attribute__((always_inline))
#endif
#define TORCH_OPS_HOST_DEVICE TORCH_OPS_FUNCTION

namespace torch_ops {

#ifndef __CUDACC_RTC__
template <class To, class From>
TORCH_OPS_FUNCTION To bit_cast(From from) {
  To to;
  std::memcpy(&to, &from, sizeof(to));
  return to;
}
#endif

// A value without its derivative, for snippets. Of a plain value it is the value itself.
template <class A>
TORCH_OPS_FUNCTION A primal(A value) {
  return value;
}

// A value, or nothing of it.
template <class A>
TORCH_OPS_FUNCTION A selected(bool is_selected, const A& value) {
  return is_selected ? value : A();
}

template <class A, class B>
struct Same {
  static constexpr bool value = false;
};
template <class A>
struct Same<A, A> {
  static constexpr bool value = true;
};

template <bool condition, class A = void>
struct EnableIf {};
template <class A>
struct EnableIf<true, A> {
  using type = A;
};

template <class A>
constexpr bool is_number = false;
#define TORCH_OPS_NUMBER(type) \
  template <>                  \
  constexpr bool is_number<type> = true;
TORCH_OPS_NUMBER(bool) TORCH_OPS_NUMBER(char) TORCH_OPS_NUMBER(signed char)
TORCH_OPS_NUMBER(unsigned char) TORCH_OPS_NUMBER(short) TORCH_OPS_NUMBER(unsigned short)
TORCH_OPS_NUMBER(int) TORCH_OPS_NUMBER(unsigned) TORCH_OPS_NUMBER(long)
TORCH_OPS_NUMBER(unsigned long) TORCH_OPS_NUMBER(long long) TORCH_OPS_NUMBER(unsigned long long)
TORCH_OPS_NUMBER(float) TORCH_OPS_NUMBER(double)
#undef TORCH_OPS_NUMBER

TORCH_OPS_FUNCTION uint32_t bits_of(float value) {
#ifdef __CUDACC_RTC__
  return __float_as_uint(value);
#else
  return bit_cast<uint32_t>(value);
#endif
}

TORCH_OPS_FUNCTION float float_of(uint32_t bits) {
#ifdef __CUDACC_RTC__
  return __uint_as_float(bits);
#else
  return bit_cast<float>(bits);
#endif
}

// The 16-bit floats are read and written; a snippet computes on them as float.
struct Half {
  uint16_t bits;
};
struct BFloat16 {
  uint16_t bits;
};

TORCH_OPS_FUNCTION float widen(Half value) {
#ifdef __CUDACC_RTC__
  float result;
  asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(value.bits));
  return result;
#else
  // Moved up by 13 bits it is a float whose exponent is too small by 112, subnormals included.
  const float scaled = float_of(uint32_t(value.bits & 0x7fff) << 13) * 0x1p112f;
  const uint32_t special = (value.bits & 0x7c00) == 0x7c00 ? 0x7f800000u : 0u;
  return float_of(bits_of(scaled) | special | uint32_t(value.bits & 0x8000) << 16);
#endif
}

TORCH_OPS_FUNCTION float widen(BFloat16 value) { return float_of(uint32_t(value.bits) << 16); }

TORCH_OPS_FUNCTION void narrow(float value, Half& result) {
#ifdef __CUDACC_RTC__
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(result.bits) : "f"(value));
#else
  const uint32_t bits = bits_of(value), magnitude = bits & 0x7fffffff;
  uint32_t half;
  if (magnitude > 0x7f800000u) {
    half = 0x7e00;
  } else if (magnitude < 0x38800000u) {  // subnormal: the sum rounds at 2^-24
    half = bits_of(float_of(magnitude) + 0.5f) - 0x3f000000u;
  } else if (magnitude < 0x47800000u) {
    half = (magnitude - 0x38000000u + 0xfff + (magnitude >> 13 & 1)) >> 13;
  } else {
    half = 0x7c00;
  }
  result.bits = uint16_t(half | (bits >> 16 & 0x8000));
#endif
}

TORCH_OPS_FUNCTION void narrow(float value, BFloat16& result) {
#if defined(__CUDACC_RTC__) && __CUDA_ARCH__ >= 800
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(result.bits) : "f"(value));
#else
  const uint32_t bits = bits_of(value);
  const uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  result.bits = uint16_t(value == value ? rounded : 0x7fc0);
#endif
}

// An element as the snippet's type for it, and back.
template <class To, class From>
TORCH_OPS_FUNCTION To load_as(From value) {
  return static_cast<To>(value);
}
template <class To>
TORCH_OPS_FUNCTION To load_as(Half value) {
  return static_cast<To>(widen(value));
}
template <class To>
TORCH_OPS_FUNCTION To load_as(BFloat16 value) {
  return static_cast<To>(widen(value));
}

template <class To, class From>
TORCH_OPS_FUNCTION void store_as(To& to, const From& value) {
  to = static_cast<To>(value);
}
template <class From>
TORCH_OPS_FUNCTION void store_as(Half& to, const From& value) {
  narrow(static_cast<float>(value), to);
}
template <class From>
TORCH_OPS_FUNCTION void store_as(BFloat16& to, const From& value) {
  narrow(static_cast<float>(value), to);
}

// What indexing a raw array gives where it is no plain reference: elements that are widened.
template <class Stored, class Value>
struct Element {
  Stored* at;
  TORCH_OPS_FUNCTION operator Value() const { return load_as<Value>(*at); }
  template <class From>
  TORCH_OPS_FUNCTION const Element& operator=(const From& value) const {
    store_as(*at, static_cast<Value>(value));
    return *this;
  }
  TORCH_OPS_FUNCTION const Element& operator=(const Element& other) const {
    return *this = static_cast<Value>(other);
  }
  template <class From>
  TORCH_OPS_FUNCTION const Element& operator+=(const From& value) const {
    return *this = static_cast<Value>(*this) + value;
  }
  template <class From>
  TORCH_OPS_FUNCTION const Element& operator-=(const From& value) const {
    return *this = static_cast<Value>(*this) - value;
  }
  template <class From>
  TORCH_OPS_FUNCTION const Element& operator*=(const From& value) const {
    return *this = static_cast<Value>(*this) * value;
  }
};

template <class Stored, class Value>
struct Access {
  using Result = Element<Stored, Value>;
  static TORCH_OPS_FUNCTION Result at(Stored* pointer) { return {pointer}; }
};
template <class Value>
struct Access<Value, Value> {
  using Result = Value&;
  static TORCH_OPS_FUNCTION Result at(Value* pointer) { return *pointer; }
};
template <class Value>
struct Access<const Value, Value> {
  using Result = const Value&;
  static TORCH_OPS_FUNCTION Result at(const Value* pointer) { return *pointer; }
};
template <class Stored, class Value>
struct Access<const Stored, Value> {
  using Result = Value;
  static TORCH_OPS_FUNCTION Result at(const Stored* pointer) { return load_as<Value>(*pointer); }
};

// What a raw parameter is in a snippet: x[i] with a row-major index, x[ij] with one index an axis.
// The fields are filled by plan.cpp; strides count elements.
template <class Stored, class Value, int rank, bool contiguous>
struct Raw {
  Stored* data;
  int64_t numel;
  int64_t sizes[rank ? rank : 1];
  int64_t steps[rank ? rank : 1];

  static constexpr int ndim = rank;
  TORCH_OPS_FUNCTION int64_t size() const { return numel; }
  TORCH_OPS_FUNCTION const int64_t* shape() const { return sizes; }
  TORCH_OPS_FUNCTION const int64_t* strides() const { return steps; }

  TORCH_OPS_FUNCTION typename Access<Stored, Value>::Result operator[](ptrdiff_t index) const {
    ptrdiff_t offset = index;
    if (!contiguous) {
      offset = 0;
#pragma unroll
      for (int axis = rank - 1; axis >= 0; --axis) {
        offset += index % sizes[axis] * steps[axis];
        index /= sizes[axis];
      }
    }
    return Access<Stored, Value>::at(data + offset);
  }
  template <class Index, int axes>
  TORCH_OPS_FUNCTION typename Access<Stored, Value>::Result operator[](
      const Index (&index)[axes]) const {
    static_assert(axes == rank, "a raw array takes one index for each of its axes");
    ptrdiff_t offset = 0;
#pragma unroll
    for (int axis = 0; axis < rank; ++axis) offset += index[axis] * steps[axis];
    return Access<Stored, Value>::at(data + offset);
  }
};

// `_ind` of a snippet.
struct Indexer {
  int64_t numel;
  TORCH_OPS_FUNCTION int64_t size() const { return numel; }
};

}  // namespace torch_ops

using torch_ops::primal;
