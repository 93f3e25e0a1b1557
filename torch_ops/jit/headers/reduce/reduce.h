// What the loops of generated reductions have in common; src/jit/reduction/reduction.cpp fills the
// plan.
#pragma once
#include "operands.h"

namespace torch_ops {

// An axis: its size, and the bytes that each operand steps along it.
template <int operands>
struct Axis {
  int64_t size;
  int64_t strides[operands];
};

// Moves pointers to the element of a row-major index; the innermost axis stands first.
template <int axes, int operands>
TORCH_OPS_FUNCTION void move(const Axis<operands>* axis, int64_t index, char** at) {
#ifdef __CUDACC_RTC__
#pragma unroll
#endif
  for (int d = 0; d < axes; ++d) {
    int64_t place = index;
    if (d + 1 < axes) {
      const int64_t size = axis[d].size;
      // 64-bit division is far slower.
      const bool small = ((index | size) >> 32) == 0;
      index = small ? int64_t(uint32_t(index) / uint32_t(size)) : index / size;
      place -= index * size;
    }
    for (int k = 0; k < operands; ++k) at[k] += place * axis[d].strides[k];
  }
}

// A reduction of one form: the axes that are kept and reduced, its operands, and the user's
// functions, generated as
//   struct F {
//     using torch_ops_Result = ...;  // what is combined
//     torch_ops_Result torch_ops_map(inputs...) const;
//     torch_ops_Result torch_ops_combine(torch_ops_Result a, torch_ops_Result b) const;
//     void torch_ops_post_map(output&, torch_ops_Result a) const;
//     torch_ops_Result torch_ops_empty() const;  // of no elements
//   };
template <class F, int kept, int reduced, class Out, class... In>
struct Reduction {
  using Result = typename F::torch_ops_Result;
  static constexpr int operands = 1 + sizeof...(In);

  static TORCH_OPS_FUNCTION void copy(char* const* from, char** to) {
    for (int k = 0; k < operands; ++k) to[k] = from[k];
  }
  // Pointers to the first element of an output.
  template <class Plan>
  static TORCH_OPS_FUNCTION void find_output(const Plan& plan, int64_t output, char** at) {
    copy(plan.data, at);
    move<kept>(plan.kept, output, at);
  }
  // And from there to another one.
  template <class Plan>
  static TORCH_OPS_FUNCTION void find_element(const Plan& plan, char* const* start, int64_t element,
                                              char** at) {
    copy(start, at);
    move<reduced>(plan.reduced, element, at);
  }
  template <class Plan>
  static TORCH_OPS_FUNCTION int64_t end_of_part(const Plan& plan, int64_t first) {
    return first + plan.part < plan.elements ? first + plan.part : plan.elements;
  }
  static TORCH_OPS_FUNCTION void store(const F& f, char* to, const Result result) {
    typename Out::Value value{};
    f.torch_ops_post_map(value, result);
    store_as(*reinterpret_cast<typename Out::Stored*>(to), value);
  }
};

}  // namespace torch_ops
