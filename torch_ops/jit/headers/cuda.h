// How a generated CUDA kernel walks tensors.
namespace torch_ops {

template <int bytes>
struct Word;
template <>
struct Word<1> {
  using type = unsigned char;
};
template <>
struct Word<2> {
  using type = unsigned short;
};
template <>
struct Word<4> {
  using type = unsigned;
};
template <>
struct Word<8> {
  using type = uint2;
};
template <>
struct Word<16> {
  using type = uint4;
};

// Elements that lie together, moved in words of up to 16 bytes.
template <class Stored, int count>
struct Vector {
  static constexpr int bytes = sizeof(Stored) * count < 16 ? sizeof(Stored) * count : 16;
  static constexpr int words = sizeof(Stored) * count / bytes;
  using W = typename Word<bytes>::type;
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

// One element for all of a vector.
template <class Stored>
struct Splat {
  Stored value;
  TORCH_OPS_FUNCTION void load(const char* from) {
    value = *reinterpret_cast<const Stored*>(from);
  }
  TORCH_OPS_FUNCTION const Stored& operator[](int) const { return value; }
};

// Division by a number that the host knows, for dividends below 2^31: see
// src/common/fast_divisor.cuh. Filled by plan.cpp.
struct Divisor {
  uint32_t divisor, magic, shift, unused;
  TORCH_OPS_FUNCTION uint32_t divide(uint32_t n) const { return (__umulhi(n, magic) + n) >> shift; }
};

template <class A>
constexpr bool is_floating = Same<A, float>::value || Same<A, double>::value;

}  // namespace torch_ops

// Of a float and a double, NVRTC's functions of two arguments are ambiguous, where those of the C++
// library compute in double; min and max are of a float and an integer.
#define TORCH_OPS_MIXED(name)                                                                  \
  template <class A, class B,                                                                  \
            class = typename torch_ops::EnableIf<torch_ops::is_floating<A> &&                  \
                                                 torch_ops::is_floating<B>>::type>             \
  TORCH_OPS_FUNCTION double name(A a, B b) {                                                   \
    return name(static_cast<double>(a), static_cast<double>(b));                               \
  }
TORCH_OPS_MIXED(fmin) TORCH_OPS_MIXED(fmax) TORCH_OPS_MIXED(pow) TORCH_OPS_MIXED(atan2)
TORCH_OPS_MIXED(hypot) TORCH_OPS_MIXED(fmod) TORCH_OPS_MIXED(remainder) TORCH_OPS_MIXED(fdim)
TORCH_OPS_MIXED(nextafter)
#undef TORCH_OPS_MIXED

#define TORCH_OPS_MIN_MAX(name)                                                                \
  template <class A, class B,                                                                  \
            class = typename torch_ops::EnableIf<                                              \
                torch_ops::is_number<A> && torch_ops::is_number<B> &&                          \
                torch_ops::is_floating<A> != torch_ops::is_floating<B>>::type>                 \
  TORCH_OPS_FUNCTION decltype(A() + B()) name(A a, B b) {                                      \
    using C = decltype(A() + B());                                                             \
    return name(static_cast<C>(a), static_cast<C>(b));                                         \
  }
TORCH_OPS_MIN_MAX(min)
TORCH_OPS_MIN_MAX(max)
#undef TORCH_OPS_MIN_MAX

template <class A, class B, class C,
          class = typename torch_ops::EnableIf<
              torch_ops::is_number<A> && torch_ops::is_number<B> && torch_ops::is_number<C> &&
              (torch_ops::Same<A, double>::value || torch_ops::Same<B, double>::value ||
               torch_ops::Same<C, double>::value)>::type>
TORCH_OPS_FUNCTION double fma(A a, B b, C c) {
  return fma(static_cast<double>(a), static_cast<double>(b), static_cast<double>(c));
}
