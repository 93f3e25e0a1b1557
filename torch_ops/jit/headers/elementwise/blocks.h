// float16 on CPUs that convert eight of them by one instruction: a block of elements is converted
// to float before a loop, and back after it. GCC does not vectorise conversions within the loop.
#pragma once
#include "rows.h"

namespace torch_ops {

constexpr int64_t kBlock = 128;  // elements, a multiple of 8

// Elements of an operand from one on, which are neighbours: in memory, ...
template <class O, bool is_converted>
struct BlockOf {
  using Item = typename O::Stored;
  Item* at;
  TORCH_OPS_FUNCTION void load(int64_t) {}
  TORCH_OPS_FUNCTION void store(int64_t) const {}
  TORCH_OPS_FUNCTION Item& of(int64_t j) const { return at[j]; }
};

#ifdef __F16C__
typedef float Floats __attribute__((vector_size(32)));
typedef short Halves __attribute__((vector_size(16)));

// ... or converted.
template <class O>
struct BlockOf<O, true> {
  using Item = float;
  Half* at;
  alignas(64) mutable float values[kBlock];

  TORCH_OPS_FUNCTION explicit BlockOf(Half* from) : at(from) {}
  TORCH_OPS_FUNCTION void load(int64_t count) {
    int64_t j = 0;
    for (; j + 8 <= count; j += 8) load_eight(at + j, values + j, sizeof(Halves));
    if (j < count) load_eight(at + j, values + j, (count - j) * sizeof(Half));
  }
  TORCH_OPS_FUNCTION void store(int64_t count) const {
    int64_t j = 0;
    for (; j + 8 <= count; j += 8) store_eight(values + j, at + j, sizeof(Halves));
    if (j < count) store_eight(values + j, at + j, (count - j) * sizeof(Half));
  }
  static TORCH_OPS_FUNCTION void load_eight(const Half* from, float* to, size_t bytes) {
    Halves halves = {};
    std::memcpy(&halves, from, bytes);
    const Floats floats = __builtin_ia32_vcvtph2ps256(halves);
    std::memcpy(to, &floats, sizeof(floats));
  }
  static TORCH_OPS_FUNCTION void store_eight(const float* from, Half* to, size_t bytes) {
    Floats floats;
    std::memcpy(&floats, from, sizeof(floats));
    const Halves halves = (Halves)__builtin_ia32_vcvtps2ph256(floats, 0);  // to nearest even
    std::memcpy(to, &halves, bytes);
  }
  TORCH_OPS_FUNCTION float& of(int64_t j) const { return values[j]; }
};

template <class O>
struct IsConverted : Same<typename O::Stored, Half> {};
#else
template <class O>
struct IsConverted : Same<O, void> {};
#endif

template <class O>
using Block = BlockOf<O, IsConverted<O>::value>;

template <class... O>
struct AnyInBlock {
  static constexpr bool value = false;
};
template <class First, class... O>
struct AnyInBlock<First, O...> {
  static constexpr bool value = IsConverted<First>::value || AnyInBlock<O...>::value;
};

// Those of several operands.
template <class O>
struct Part {
  Block<O> block;
};
template <class... O>
struct Blocks : Part<O>... {
  TORCH_OPS_FUNCTION Blocks(char* const* at, int64_t first)
      : Part<O>{
            Block<O>{reinterpret_cast<typename O::Stored*>(at[O::number] + first * O::size)}}... {}
  template <class A>
  TORCH_OPS_FUNCTION void load(int64_t count) {
    Part<A>::block.load(count);
  }
  template <class A>
  TORCH_OPS_FUNCTION void store(int64_t count) const {
    Part<A>::block.store(count);
  }
  template <class A>
  TORCH_OPS_FUNCTION typename Block<A>::Item& of(int64_t j) const {
    return Part<A>::block.of(j);
  }
};

}  // namespace torch_ops
