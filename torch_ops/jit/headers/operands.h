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

// What the variable of an output is before the element is computed: what is there, or 0.
template <bool loads>
struct Before {
  template <class T, class Stored>
  TORCH_OPS_FUNCTION static T of(const Stored& stored) {
    return load_as<T>(stored);
  }
};
template <>
struct Before<false> {
  template <class T, class Stored>
  TORCH_OPS_FUNCTION static T of(const Stored&) {
    return T();
  }
};

// One element of a kernel, as a call element(inputs..., outputs..., i); place(operand) is where an
// operand has it in memory.
template <bool loads_outputs, class Place, class Element, class... In, class... Out>
TORCH_OPS_FUNCTION void map_one(const Place& place, const Element& element, ptrdiff_t i,
                                Operands<In...>, Operands<Out...>) {
  Variables<Out...> out;
  Each{(out.template of<Out>() =
            Before<loads_outputs>::template of<typename Out::Value>(place(Out())),
        0)...};
  element(load_as<typename In::Value>(place(In()))..., out.template of<Out>()..., i);
  Each{(store_as(place(Out()), out.template of<Out>()), 0)...};
}

}  // namespace torch_ops
