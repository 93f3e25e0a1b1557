// The loop of a generated elementwise kernel on the CPU: over neighbours in memory. What lies
// otherwise, src/jit/elementwise/host_loop.h has copied.
#pragma once
#include "elementwise/blocks.h"
#include "rows.h"

namespace torch_ops {

// What the loop does, for operands at `place(operand, j)`.
template <bool loads_outputs, bool are_independent, int counter, class Plan, class Place,
          class Element, class... In, class... Out>
TORCH_OPS_FUNCTION void map_range(const Plan& plan, int64_t first, int64_t count,
                                  const Place& place, const Element& element, Operands<In...> in,
                                  Operands<Out...> out) {
  const auto* const indices =
      counter < 0 ? nullptr
                  : reinterpret_cast<const int64_t*>(plan.data[counter < 0 ? 0 : counter]);
  const auto map = [&](int64_t j) TORCH_OPS_INLINE {
    const auto at = [&](auto o)
                        TORCH_OPS_INLINE -> auto& { return place.template of<decltype(o)>(j); };
    map_one<loads_outputs>(at, element, counter < 0 ? first + j : indices[first + j], in, out);
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

// Straight from memory, ...
template <bool in_blocks>
struct Loop {
  template <bool loads_outputs, bool are_independent, int counter, class Plan, class Element,
            class... In, class... Out>
  static TORCH_OPS_FUNCTION void run(const Plan& plan, int64_t begin, int64_t end,
                                     const Element& element, Operands<In...> in,
                                     Operands<Out...> out) {
    const Rows<In..., Out...> rows(plan.data, begin);
    map_range<loads_outputs, are_independent, counter>(plan, begin, end - begin, rows, element, in,
                                                       out);
  }
};

// ... or, of float16, some elements at a time, which are converted side by side.
template <>
struct Loop<true> {
  template <bool loads_outputs, bool are_independent, int counter, class Plan, class Element,
            class... In, class... Out>
  static TORCH_OPS_FUNCTION void run(const Plan& plan, int64_t begin, int64_t end,
                                     const Element& element, Operands<In...> in,
                                     Operands<Out...> out) {
    for (; begin < end; begin += kBlock) {
      const int64_t count = end - begin < kBlock ? end - begin : kBlock;
      Blocks<In..., Out...> blocks(plan.data, begin);
      Each{(blocks.template load<In>(count), 0)...};
      if (loads_outputs) Each{(blocks.template load<Out>(count), 0)...};
      map_range<loads_outputs, true, counter>(plan, begin, count, blocks, element, in, out);
      Each{(blocks.template store<Out>(count), 0)...};
    }
  }
};

// The elements [begin, end) of a plan. If they are independent, none reads what another has
// written. The operand `counter` has their indices; -1: memory follows them.
template <bool loads_outputs, bool are_independent, int counter, class Plan, class Element,
          class... In, class... Out>
TORCH_OPS_FUNCTION void for_each_element(const Plan& plan, int64_t begin, int64_t end,
                                         const Element& element, Operands<In...> in,
                                         Operands<Out...> out) {
  using Chosen = Loop<are_independent && AnyInBlock<In..., Out...>::value>;
  Chosen::template run<loads_outputs, are_independent, counter>(plan, begin, end, element, in, out);
}

}  // namespace torch_ops
