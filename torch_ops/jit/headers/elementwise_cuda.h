// The loop of a generated elementwise kernel on CUDA.
#pragma once
#include "vectors.h"

namespace torch_ops {

// How threads are laid over elements: a thread has `unroll` vectors, a block's width apart, whose
// loads are in flight together. `axes` is 0 where memory follows the index.
template <int threads_, int unroll_, int vector_, int axes_, int operands_, bool loads_outputs_>
struct Form {
  static constexpr int threads = threads_, unroll = unroll_, vector = vector_;
  static constexpr int axes = axes_, operands = operands_;
  static constexpr bool loads_outputs = loads_outputs_;
};

// The axes that a plan walks, the innermost first; src/jit/elementwise.cpp fills it.
template <int axes, int operands>
struct Walk {
  int64_t dims;
  Divisor sizes[axes];
  alignas(8) uint32_t strides[axes][operands];
};

// Where a thread's vectors lie: at an offset for each operand.
template <class Form, int axes = Form::axes>
struct Places {
  static constexpr bool is_exact = axes <= 4;  // else it is the most that there may be
  uint32_t offsets[Form::operands][Form::unroll];

  template <class Plan>
  TORCH_OPS_FUNCTION void find(const Plan& plan, int u, int64_t word) {
#pragma unroll
    for (int k = 0; k < Form::operands; ++k) offsets[k][u] = 0;
    uint32_t rest = static_cast<uint32_t>(word);
    const int64_t dims = is_exact ? axes : plan.walk.dims;
#pragma unroll(is_exact ? axes : 1)
    for (int d = 0; d < dims; ++d) {
      const uint32_t quotient = d == dims - 1 ? 0 : plan.walk.sizes[d].divide(rest);
      const uint32_t at = rest - quotient * plan.walk.sizes[d].divisor;
      rest = quotient;
#pragma unroll
      for (int k = 0; k < Form::operands; ++k) offsets[k][u] += at * plan.walk.strides[d][k];
    }
  }
  template <class O, class Plan>
  TORCH_OPS_FUNCTION char* of(const Plan& plan, int u, int64_t) const {
    return plan.data[O::number] + offsets[O::number][u];
  }
};

// The same where memory follows the index.
template <class Form>
struct Places<Form, 0> {
  template <class Plan>
  TORCH_OPS_FUNCTION void find(const Plan&, int, int64_t) {}
  template <class O, class Plan>
  TORCH_OPS_FUNCTION char* of(const Plan& plan, int, int64_t word) const {
    return plan.data[O::number] + (O::mode == 'b' ? 0 : word * Form::vector * O::size);
  }
};

// Where `i` comes from: memory that follows it, or the addresses of an operand that counts.
struct Linear {
  template <class Places, class Plan>
  static TORCH_OPS_FUNCTION ptrdiff_t of(const Places&, const Plan&, int, int64_t,
                                         ptrdiff_t index) {
    return index;
  }
};
template <class O>
struct Counted {
  template <class Places, class Plan>
  static TORCH_OPS_FUNCTION ptrdiff_t of(const Places& places, const Plan& plan, int u,
                                         int64_t word, ptrdiff_t) {
    return reinterpret_cast<ptrdiff_t>(places.template of<O>(plan, u, word));
  }
};

// Calls element(inputs..., outputs..., i) for each element of a plan.
template <class Form, class Index, class Plan, class Element, class... In, class... Out>
TORCH_OPS_FUNCTION void for_each_element(const Plan& plan, const Element& element, Operands<In...>,
                                         Operands<Out...>) {
  constexpr int vector = Form::vector;
  const int64_t words = plan.size / vector;
  const int64_t begin = int64_t(blockIdx.x) * (Form::threads * Form::unroll) + threadIdx.x;
  Loaded<vector, Form::unroll, Out...> starts;
  Loaded<vector, Form::unroll, In...> loaded;
  Places<Form> places;
#pragma unroll
  for (int u = 0; u < Form::unroll; ++u) {
    const int64_t word = begin + u * Form::threads;
    if (word < words) {
      places.find(plan, u, word);
      if (Form::loads_outputs) {
        Each{(starts.template load<Out>(u, places.template of<Out>(plan, u, word)), 0)...};
      }
      Each{(loaded.template load<In>(u, places.template of<In>(plan, u, word)), 0)...};
    }
  }
#pragma unroll
  for (int u = 0; u < Form::unroll; ++u) {
    const int64_t word = begin + u * Form::threads;
    if (word < words) {
      Loaded<vector, 1, Out...> results;
#pragma unroll
      for (int e = 0; e < vector; ++e) {
        Variables<Out...> out;
        Each{(out.template of<Out>() =
                  Form::loads_outputs ? starts.template value<Out>(u, e) : typename Out::Value(),
              0)...};
        element(loaded.template value<In>(u, e)..., out.template of<Out>()...,
                Index::of(places, plan, u, word, word * vector) + e);
        Each{(store_as(results.template of<Out>(0)[e], out.template of<Out>()), 0)...};
      }
      Each{(results.template of<Out>(0).store(places.template of<Out>(plan, u, word)), 0)...};
    }
  }
  // The elements after the last whole vector, one a thread.
  if (Form::axes == 0 && vector > 1 && begin < plan.size - words * vector) {
    using Single = torch_ops::Form<Form::threads, 1, 1, 0, Form::operands, Form::loads_outputs>;
    const int64_t at = words * vector + begin;
    const Places<Single> single;
    Variables<Out...> out;
    Each{(out.template of<Out>() = Form::loads_outputs
                                       ? load_as<typename Out::Value>(
                                             element_at<Out>(single.template of<Out>(plan, 0, at)))
                                       : typename Out::Value(),
          0)...};
    element(load_as<typename In::Value>(element_at<In>(single.template of<In>(plan, 0, at)))...,
            out.template of<Out>()..., Index::of(single, plan, 0, at, at));
    Each{(store_as(element_at<Out>(single.template of<Out>(plan, 0, at)), out.template of<Out>()),
          0)...};
  }
}

}  // namespace torch_ops
