// How generated code goes along rows of elements on the CPU.
#pragma once
#include "cpu.h"
#include "operands.h"

namespace torch_ops {

// Elements of operands, each of which are neighbours.
template <class O>
struct Row {
  char* at;
};
template <class... O>
struct Rows : Row<O>... {
  // Element 0 is the n-th of what the pointers name.
  TORCH_OPS_FUNCTION explicit Rows(char* const* at, int64_t n = 0)
      : Row<O>{at[O::number] + n * O::size}... {}
  template <class A>
  TORCH_OPS_FUNCTION typename A::Stored& of(int64_t element) const {
    return *reinterpret_cast<typename A::Stored*>(Row<A>::at + element * A::size);
  }
};

}  // namespace torch_ops
