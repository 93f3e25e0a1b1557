// The loop of a generated elementwise kernel on CUDA.
#pragma once
#include "vectors.h"

namespace torch_ops {

// The axes that a plan walks, the innermost first; src/jit/elementwise/elementwise.cpp fills it.
// None: memory follows the index.
template <int axes, int operands>
struct Walk {
  int64_t dims;
  Divisor sizes[axes ? axes : 1];
  alignas(8) uint32_t strides[axes ? axes : 1][operands];
};

// Where a thread's vectors lie.
template <int unroll, int vector, int axes, int operands>
struct Places {
  uint32_t offsets[operands][unroll];

  TORCH_OPS_FUNCTION void find(const Walk<axes, operands>& walk, int u, int64_t word) {
    if (axes == 0) return;
    constexpr bool is_exact = axes <= 4;  // else it is the most that there may be
    const int64_t dims = is_exact ? axes : walk.dims;
#pragma unroll
    for (int k = 0; k < operands; ++k) offsets[k][u] = 0;
    uint32_t rest = static_cast<uint32_t>(word);
#pragma unroll(axes > 0 && is_exact ? axes : 1)
    for (int d = 0; d < dims; ++d) {
      const uint32_t quotient = d == dims - 1 ? 0 : walk.sizes[d].divide(rest);
      const uint32_t at = rest - quotient * walk.sizes[d].divisor;
      rest = quotient;
#pragma unroll
      for (int k = 0; k < operands; ++k) offsets[k][u] += at * walk.strides[d][k];
    }
  }
  template <class O>
  TORCH_OPS_FUNCTION char* of(char* const* data, int u, int64_t word) const {
    if (axes > 0) return data[O::number] + offsets[O::number][u];
    return data[O::number] + (O::mode == 'b' ? 0 : word * vector * O::size);
  }
};

// Where map_one has an operand: in registers, and in memory that follows the index.
template <class Loaded>
struct InRegisters {
  Loaded& held;
  int u, e;
  template <class O>
  TORCH_OPS_FUNCTION typename O::Stored& operator()(O) const {
    return held.template at<O>(u, e);
  }
};
struct InMemory {
  char* const* data;
  int64_t index;
  template <class O>
  TORCH_OPS_FUNCTION typename O::Stored& operator()(O) const {
    return reinterpret_cast<typename O::Stored*>(data[O::number])[O::mode == 'b' ? 0 : index];
  }
};

// A thread has `unroll` vectors, a block's width apart, whose loads are in flight together. The
// address of the operand `counter` is the index; -1: memory follows it.
template <int threads, int unroll, int vector, bool loads_outputs, int counter, class Plan,
          int axes, int operands, class Element, class... In, class... Out>
TORCH_OPS_FUNCTION void for_each_element(const Plan& plan, const Walk<axes, operands>& walk,
                                         const Element& element, Operands<In...> in,
                                         Operands<Out...> out) {
  using Counter = Operand < counter<0 ? 0 : counter, char, char>;
  const int64_t words = plan.size / vector;
  const int64_t begin = int64_t(blockIdx.x) * (threads * unroll) + threadIdx.x;
  Loaded<vector, unroll, In..., Out...> held;
  Places<unroll, vector, axes, operands> places;
#pragma unroll
  for (int u = 0; u < unroll; ++u) {
    const int64_t word = begin + u * threads;
    if (word >= words) continue;
    places.find(walk, u, word);
    if (loads_outputs) {
      Each{(held.template load<Out>(u, places.template of<Out>(plan.data, u, word)), 0)...};
    }
    Each{(held.template load<In>(u, places.template of<In>(plan.data, u, word)), 0)...};
  }
#pragma unroll
  for (int u = 0; u < unroll; ++u) {
    const int64_t word = begin + u * threads;
    if (word >= words) continue;
    const char* const counted = places.template of<Counter>(plan.data, u, word);
#pragma unroll
    for (int e = 0; e < vector; ++e) {
      const ptrdiff_t i = counter < 0 ? word * vector : reinterpret_cast<ptrdiff_t>(counted);
      map_one<loads_outputs>(InRegisters<decltype(held)>{held, u, e}, element, i + e, in, out);
    }
    Each{(held.template store<Out>(u, places.template of<Out>(plan.data, u, word)), 0)...};
  }
  // The elements after the last whole vector, one a thread.
  if (axes == 0 && vector > 1 && begin < plan.size - words * vector) {
    const int64_t at = words * vector + begin;
    const ptrdiff_t first =
        counter < 0 ? 0 : reinterpret_cast<ptrdiff_t>(plan.data[Counter::number]);
    map_one<loads_outputs>(InMemory{plan.data, at}, element, first + at, in, out);
  }
}

}  // namespace torch_ops
