// The loops of a generated indexed kernel on the CPU: over a range of rows and parts of rows, of
// tiles, or of entries.
#pragma once
#include "cpu.h"
#include "indexed/operands.h"

namespace torch_ops {

template <class Stored, int count>
struct Vector {
  Stored values[count];

  TORCH_OPS_FUNCTION void load(const char* from, int width) {
    std::memcpy(values, from, width * sizeof(Stored));
  }
  TORCH_OPS_FUNCTION void store(char* to, int width) const {
    std::memcpy(to, values, width * sizeof(Stored));
  }
  TORCH_OPS_FUNCTION const Stored& operator[](int v) const { return values[v]; }
  TORCH_OPS_FUNCTION Stored& operator[](int v) { return values[v]; }
};

template <class Number>
TORCH_OPS_FUNCTION int64_t wide_product(Number a, Number b) {
  return int64_t{a} * b;
}

template <class Number>
TORCH_OPS_FUNCTION void keep_here(Number&) {}

template <class T>
TORCH_OPS_FUNCTION T loaded_whole(const T* from) {
  return *from;
}

// Keeps the first entry of an index that is out of range.
template <class Plan>
TORCH_OPS_FUNCTION void record_bad(const Plan& plan, int index, int64_t entry, int64_t) {
  int64_t seen = __atomic_load_n(plan.bad + index, __ATOMIC_RELAXED);
  while (entry < seen && !__atomic_compare_exchange_n(plan.bad + index, &seen, entry, true,
                                                      __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
}

struct OneLane {
  TORCH_OPS_FUNCTION int lane() const { return 0; }
  TORCH_OPS_FUNCTION int count() const { return 1; }
  TORCH_OPS_FUNCTION bool is_first() const { return true; }
  template <int together, bool are_lanes, class Values, class Entries>
  TORCH_OPS_FUNCTION void sum_entries(Values&, Entries&) const {}
  template <int width, class R>
  TORCH_OPS_FUNCTION void join(R&) const {}
};

template <class Pass>
struct HostPass {
  using Number = typename Pass::Position;

  template <class Plan, class Element>
  static TORCH_OPS_FUNCTION void reduce(const Plan& plan, int64_t begin, int64_t end,
                                        const Element& element) {
    const Number words = Pass::kept_words(plan);
    for (int64_t item = begin; item < end; ++item) {
      for (Number word = 0; word < words; ++word) {
        Pass::reduce(plan, element, OneLane(), static_cast<Number>(item), word);
      }
    }
  }
  template <class Plan>
  static TORCH_OPS_FUNCTION void join(const Plan& plan, int64_t begin, int64_t end) {
    const Number words = Pass::kept_words(plan);
    for (int64_t t = begin; t < end; ++t) {
      const auto tile = static_cast<Number>(t);
      const Number row = Pass::long_row_of(plan, tile);
      for (Number word = 0; row >= 0 && word < words; ++word) {
        const auto sums = Pass::join_parts(plan, tile, row, word, 0, 1, OneLane());
        Pass::store_joined(plan, row, word, sums);
      }
    }
  }
  // So few at a time that what one word has read is still in the cache for the next.
  template <class Plan, class Element>
  static TORCH_OPS_FUNCTION void entries(const Plan& plan, int64_t begin, int64_t end,
                                         const Element& element) {
    constexpr int64_t several = 32;
    const Number words = Pass::kept_words(plan);
    typename Pass::Sums none;
    for (; begin < end; begin += several) {
      const int64_t last = begin + several < end ? begin + several : end;
      for (Number word = 0; word < words; ++word) {
        Pass::run(plan, element, OneLane(), 0, word, static_cast<Number>(begin),
                  static_cast<Number>(last), 1, none);
      }
    }
  }
};

}  // namespace torch_ops
