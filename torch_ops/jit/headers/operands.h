// What a generated kernel tells the loops in these headers: its operands, each as a type.
#pragma once
#include "scalar.h"

namespace torch_ops {

// A tensor of a call: the n-th pointer of its plan, which elements are in memory, and which the
// snippet computes on. The mode says how it lies along the innermost axis: c, its elements are
// neighbours; b, it has one for all; s, they are apart. Of a reduction, upper case: the same one
// for all rows.
template <int n, class S, class V, char m = 'c'>
struct Operand {
  using Stored = S;
  using Value = V;
  static constexpr int number = n;
  static constexpr char mode = m;
  static constexpr int64_t size = sizeof(S);
};

template <class... O>
struct Operands {};

// Evaluates a statement for each operand of a pack, in order: Each{(statement, 0)...}
struct Each {
  template <class... A>
  TORCH_OPS_FUNCTION Each(A...) {}
};

TORCH_OPS_FUNCTION bool all() { return true; }
template <class... A>
TORCH_OPS_FUNCTION bool all(bool first, A... others) {
  return first && all(others...);
}

// The snippet's variable of an output.
template <class O>
struct Variable {
  typename O::Value value;
};
template <class... O>
struct Variables : Variable<O>... {
  template <class A>
  TORCH_OPS_FUNCTION typename A::Value& of() {
    return static_cast<Variable<A>&>(*this).value;
  }
};

// On the CPU: a row of an operand's elements.
template <class O, bool is_flat>
struct Row {
  char* at;
  int64_t stride;
  TORCH_OPS_FUNCTION typename O::Stored& operator[](int64_t element) const {
    return *reinterpret_cast<typename O::Stored*>(at + element * (is_flat ? O::size : stride));
  }
};
template <bool is_flat, class... O>
struct Rows : Row<O, is_flat>... {
  TORCH_OPS_FUNCTION Rows(char* const* at, const int64_t* strides)
      : Row<O, is_flat>{at[O::number], strides[O::number]}... {}
  template <class A>
  TORCH_OPS_FUNCTION typename A::Stored& of(int64_t element) const {
    return static_cast<const Row<A, is_flat>&>(*this)[element];
  }
};

template <class... O>
TORCH_OPS_FUNCTION bool all_are_flat(const int64_t* strides) {
  return all(strides[O::number] == O::size...);
}

}  // namespace torch_ops
