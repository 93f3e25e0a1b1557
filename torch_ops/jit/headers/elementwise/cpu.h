// The loop of a generated elementwise kernel on the CPU: over neighbours in memory. What lies
// otherwise, src/jit/elementwise/host_loop.h has copied.
#pragma once
#include "rows.h"

namespace torch_ops {

// The elements [begin, end) of a plan. If they are independent, none reads what another has
// written. The operand `counter` has their indices; -1: memory follows them.
template <bool loads_outputs, bool are_independent, int counter, class Plan, class Element,
          class... In, class... Out>
TORCH_OPS_FUNCTION void for_each_element(const Plan& plan, int64_t begin, int64_t end,
                                         const Element& element, Operands<In...> in,
                                         Operands<Out...> out) {
  const Rows<In..., Out...> rows(plan.data);
  const auto* const indices =
      counter < 0 ? nullptr
                  : reinterpret_cast<const int64_t*>(plan.data[counter < 0 ? 0 : counter]);
  const auto map = [&](int64_t j) TORCH_OPS_INLINE {
    const auto place = [&](auto o)
                           TORCH_OPS_INLINE -> auto& { return rows.template of<decltype(o)>(j); };
    map_one<loads_outputs>(place, element, counter < 0 ? j : indices[j], in, out);
  };
  if (are_independent) {
#ifndef __clang__
#pragma GCC ivdep
#endif
    for (int64_t j = begin; j < end; ++j) map(j);
  } else {
    for (int64_t j = begin; j < end; ++j) map(j);
  }
}

}  // namespace torch_ops
