// How generated code goes along rows of elements on the CPU.
#pragma once
#include "cpu.h"
#include "operands.h"

namespace torch_ops {

template <class O, bool is_flat>
struct Row {
  char* at;
  int64_t stride;
};
template <bool is_flat, class... O>
struct Rows : Row<O, is_flat>... {
  // Strides of flat rows are not read.
  TORCH_OPS_FUNCTION Rows(char* const* at, const int64_t* strides)
      : Row<O, is_flat>{at[O::number], is_flat ? O::size : strides[O::number]}... {}
  template <class A>
  TORCH_OPS_FUNCTION typename A::Stored& of(int64_t element) const {
    const Row<A, is_flat>& row = *this;
    return *reinterpret_cast<typename A::Stored*>(row.at +
                                                  element * (is_flat ? A::size : row.stride));
  }
};

// Are the elements of all operands neighbours?
TORCH_OPS_FUNCTION bool are_flat(const int64_t*, Operands<>) { return true; }
template <class A, class... O>
TORCH_OPS_FUNCTION bool are_flat(const int64_t* strides, Operands<A, O...>) {
  return strides[A::number] == A::size && are_flat(strides, Operands<O...>());
}

}  // namespace torch_ops
