// The loop of a generated elementwise kernel on the CPU.
#pragma once
#include "host.h"
#include "operands.h"

namespace torch_ops {

// Where `i` comes from: memory that follows it, or the addresses of an operand that counts.
struct Linear {
  template <class Rows>
  static TORCH_OPS_FUNCTION ptrdiff_t of(const Rows&, int64_t first, int64_t j) {
    return first + j;
  }
};
template <class O>
struct Counted {
  template <class Rows>
  static TORCH_OPS_FUNCTION ptrdiff_t of(const Rows& rows, int64_t, int64_t j) {
    return reinterpret_cast<ptrdiff_t>(&rows.template of<O>(j));
  }
};

// One element: element(inputs..., outputs..., i).
template <bool loads_outputs, class Index, class Rows, class Element, class... In, class... Out>
TORCH_OPS_FUNCTION void map_one(const Rows& rows, const Element& element, int64_t first, int64_t j,
                                Operands<In...>, Operands<Out...>) {
  Variables<Out...> out;
  Each{(out.template of<Out>() = loads_outputs
                                     ? load_as<typename Out::Value>(rows.template of<Out>(j))
                                     : typename Out::Value(),
        0)...};
  element(load_as<typename In::Value>(rows.template of<In>(j))..., out.template of<Out>()...,
          Index::of(rows, first, j));
  Each{(store_as(rows.template of<Out>(j), out.template of<Out>()), 0)...};
}

// `count` elements of a row, of which the first one has the index `first`. If they are independent,
// none reads what another has written.
template <bool loads_outputs, bool are_independent, class Index, class Rows, class Element,
          class In, class Out>
TORCH_OPS_FUNCTION void map_row(const Rows& rows, const Element& element, int64_t first,
                                int64_t count, In in, Out out) {
  if (are_independent) {
#ifndef __clang__
#pragma GCC ivdep
#endif
    for (int64_t j = 0; j < count; ++j) {
      map_one<loads_outputs, Index>(rows, element, first, j, in, out);
    }
  } else {
    for (int64_t j = 0; j < count; ++j) {
      map_one<loads_outputs, Index>(rows, element, first, j, in, out);
    }
  }
}

// The elements of a plan in [begin, end).
template <bool loads_outputs, bool are_independent, class Index, class Plan, class Element,
          class In, class Out, class... O>
TORCH_OPS_FUNCTION void for_each_element(const Plan& plan, int64_t begin, int64_t end,
                                         Operands<O...>, const Element& element, In in, Out out) {
  constexpr int count = sizeof...(O);
  const bool is_flat = all_are_flat<O...>(plan.strides);
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
      map_row<loads_outputs, are_independent, Index>(Rows<true, O...>(at, plan.strides), element,
                                                     begin, length, in, out);
    } else {
      map_row<loads_outputs, are_independent, Index>(Rows<false, O...>(at, plan.strides), element,
                                                     begin, length, in, out);
    }
    begin += length;
    place[0] = 0;
    for (int64_t d = 1; d < plan.dims && ++place[d] == plan.sizes[d]; ++d) place[d] = 0;
  }
}

}  // namespace torch_ops
