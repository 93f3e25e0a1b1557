// The loop of a generated elementwise kernel on the CPU.
#pragma once
#include "rows.h"

namespace torch_ops {

// `count` elements, of which the first one has the index `first`. If they are independent, none
// reads what another has written.
template <bool is_flat, bool loads_outputs, bool are_independent, int counter, class Element,
          class... In, class... Out>
TORCH_OPS_FUNCTION void map_row(char* const* at, const int64_t* strides, int64_t first,
                                int64_t count, const Element& element, Operands<In...> in,
                                Operands<Out...> out) {
  const Rows<is_flat, In..., Out...> rows(at, strides);
  const int64_t step = counter < 0 || is_flat ? 1 : strides[counter < 0 ? 0 : counter];
  if (counter >= 0) first = reinterpret_cast<int64_t>(at[counter < 0 ? 0 : counter]);
  const auto map = [&](int64_t j) TORCH_OPS_INLINE {
    const auto place = [&](auto o)
                           TORCH_OPS_INLINE -> auto& { return rows.template of<decltype(o)>(j); };
    map_one<loads_outputs>(place, element, first + j * step, in, out);
  };
  if (are_independent) {
#ifndef __clang__
#pragma GCC ivdep
#endif
    for (int64_t j = 0; j < count; ++j) map(j);
  } else {
    for (int64_t j = 0; j < count; ++j) map(j);
  }
}

// The elements of a plan in [begin, end). The address of the operand `counter` is the index; -1:
// memory follows it.
template <bool loads_outputs, bool are_independent, int counter, class Plan, class Element,
          class... In, class... Out>
TORCH_OPS_FUNCTION void for_each_element(const Plan& plan, int64_t begin, int64_t end,
                                         const Element& element, Operands<In...> in,
                                         Operands<Out...> out) {
  constexpr int count = sizeof...(In) + sizeof...(Out) + (counter >= 0);
  const bool is_flat = are_flat(plan.strides, Operands<Out..., In...>()) &&
                       (counter < 0 || plan.strides[counter < 0 ? 0 : counter] == 1);
  int64_t place[64];
  for (int64_t d = 0, rest = begin; d < plan.dims; ++d) {
    place[d] = rest % plan.sizes[d];
    rest /= plan.sizes[d];
  }
  while (begin < end) {
    char* at[count];
    for (int k = 0; k < count; ++k) {
      at[k] = plan.data[k];
      for (int64_t d = 0; d < plan.dims; ++d) at[k] += place[d] * plan.strides[d * count + k];
    }
    const int64_t left = plan.sizes[0] - place[0];
    const int64_t length = left < end - begin ? left : end - begin;
    if (is_flat) {
      map_row<true, loads_outputs, are_independent, counter>(at, plan.strides, begin, length,
                                                             element, in, out);
    } else {
      map_row<false, loads_outputs, are_independent, counter>(at, plan.strides, begin, length,
                                                              element, in, out);
    }
    begin += length;
    place[0] = 0;
    for (int64_t d = 1; d < plan.dims && ++place[d] == plan.sizes[d]; ++d) place[d] = 0;
  }
}

}  // namespace torch_ops
