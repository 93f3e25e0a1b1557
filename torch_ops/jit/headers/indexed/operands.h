// What the loops of generated indexed kernels have in common, on CPU and CUDA: entries are walked,
// operands are read at the rows that indices name, and outputs are reduced to rows or written per
// entry. src/jit/indexed/ fills the plan; docs/internals/jit.md has the terms.
#pragma once
#include "operands.h"

namespace torch_ops {

// Which row of an operand belongs to an entry: that which the n-th index names, or one of these.
constexpr int by_entry = -1;  // the entry's own
constexpr int by_row = -2;    // that which the walk reduces to
constexpr int by_none = -3;   // there is one for all
constexpr int in_batch = -4;  // the entry's own, the same in each batch
constexpr int by_batch = -5;  // one for each batch

// An input: see Operand. Operands that are the same for all entries of a row are loaded once.
template <int n, class S, class V, char m, int where>
struct Input : Operand<n, S, V, m> {
  static constexpr int by = where;
  static constexpr bool moves = where != by_row && where != by_none;
};

// An output: the n-th of the plan. Its kind: s(um), m(ean), x (amax), n (amin) of a row's entries;
// e, one for each entry; f, the same, summed over the features, which other outputs keep; -, not of
// this pass.
template <int n, class S, class V, char k>
struct Output {
  using Stored = S;
  using Value = V;
  static constexpr int number = n;
  static constexpr char kind = k;
  static constexpr bool is_best = k == 'x' || k == 'n';
  static constexpr bool is_row = k == 's' || k == 'm' || is_best;
  static constexpr char role = is_row ? 'r' : k;  // r, reduced to rows; e; f; -
};

// An index: p, rows in the order of the walk, which were checked; i (32 bits) or l (64), entries as
// the user gave them, which are checked where they are read; -, not read in this pass.
template <int n, char s>
struct Index {
  static constexpr int number = n;
  static constexpr char source = s;
};

// An axis of the features: its size, and the bytes that each input steps along it.
template <int inputs>
struct FeatureAxis {
  int64_t size;
  int64_t strides[inputs ? inputs : 1];
};

// Moves pointers to the element of a row-major index; the innermost axis stands first. Steps along
// that of the vectors are known.
template <int axes, bool has_vectors, class... In, class Number, int inputs>
TORCH_OPS_FUNCTION void move_to(const FeatureAxis<inputs>* axis, Number index, char** at) {
  constexpr int known[] = {(!has_vectors || In::mode == 's' ? -1
                            : In::mode == 'c' ? static_cast<int>(sizeof(typename In::Stored))
                                              : 0)...,
                           -1};
#ifdef __CUDACC_RTC__
#pragma unroll
#endif
  for (int d = 0; d < axes; ++d) {
    Number place = index;
    if (d + 1 < axes) {
      const auto size = static_cast<Number>(axis[d].size);
      index /= size;
      place -= index * size;
    }
    for (int k = 0; k < inputs; ++k) {
      at[k] += d == 0 && known[k] >= 0 ? int64_t{place} * known[k] : place * axis[d].strides[k];
    }
  }
}

TORCH_OPS_FUNCTION int64_t quotient_of(int64_t a, int64_t b) {
  const bool small = ((a | b) >> 32) == 0;
  return small ? int64_t(uint32_t(a) / uint32_t(b)) : a / b;
}

// ---- What is made of a row's entries ------------------------------------------------------------

template <class O, int vector, bool is_best = O::is_best, bool is_row = O::is_row>
struct Reduced {  // nothing, of an output for each entry
  template <class V>
  TORCH_OPS_FUNCTION void add(int, const V&, int64_t) {}
  template <class Combine>
  TORCH_OPS_FUNCTION void combine(const Combine&) {}
  TORCH_OPS_FUNCTION void clear() {}
  TORCH_OPS_FUNCTION void join(const Reduced&) {}
  TORCH_OPS_FUNCTION void join_vector() {}
};

template <class O, int vector>
struct Reduced<O, vector, false, true> {
  using Value = typename O::Value;
  Value value[vector];

  TORCH_OPS_FUNCTION void clear() {
    for (int v = 0; v < vector; ++v) value[v] = Value();
  }
  TORCH_OPS_FUNCTION void add(int v, const Value& of_entry, int64_t) {
    value[v] = static_cast<Value>(value[v] + of_entry);
  }
  TORCH_OPS_FUNCTION void join(const Reduced& other) {
    for (int v = 0; v < vector; ++v) add(v, other.value[v], 0);
  }
  // The sum of all becomes the first.
  TORCH_OPS_FUNCTION void join_vector() {
    for (int step = 1; step < vector; step *= 2) {
      for (int v = 0; v + step < vector; v += 2 * step) add(v, value[v + step], 0);
    }
  }
};

// The best and its entry, -1 where there is none. Of equals it is the first; NaN beats all numbers.
template <class O, int vector>
struct Reduced<O, vector, true, true> {
  using Value = typename O::Value;
  Value value[vector];
  int64_t entry[vector];

  TORCH_OPS_FUNCTION void clear() {
    for (int v = 0; v < vector; ++v) value[v] = Value(), entry[v] = -1;
  }
  static TORCH_OPS_FUNCTION bool is_better(const Value& a, const Value& b) {
    return (O::kind == 'x' ? a > b : a < b) || (a != a && b == b);
  }
  TORCH_OPS_FUNCTION void add(int v, const Value& of_entry, int64_t at) {
    if (at < 0) return;
    if (entry[v] < 0 || is_better(of_entry, value[v]) ||
        (at < entry[v] && !is_better(value[v], of_entry))) {
      value[v] = of_entry;
      entry[v] = at;
    }
  }
  TORCH_OPS_FUNCTION void join(const Reduced& other) {
    for (int v = 0; v < vector; ++v) add(v, other.value[v], other.entry[v]);
  }
  TORCH_OPS_FUNCTION void join_vector() {}  // features of extremes are not summed
};

template <int vector, class... O>
struct AllReduced : Reduced<O, vector>... {
  template <class A>
  TORCH_OPS_FUNCTION Reduced<A, vector>& of() {
    return *this;
  }
  template <class A>
  TORCH_OPS_FUNCTION const Reduced<A, vector>& of() const {
    return *this;
  }
  TORCH_OPS_FUNCTION void clear() { Each{(of<O>().clear(), 0)...}; }
  TORCH_OPS_FUNCTION void join(const AllReduced& other) {
    Each{(of<O>().join(other.template of<O>()), 0)...};
  }
  TORCH_OPS_FUNCTION void join_vectors() { Each{(of<O>().join_vector(), 0)...}; }
};

// The sum of a row's entries divided by their number; integers are rounded down.
template <class V,
          bool is_integer = is_number<V> && !Same<V, float>::value && !Same<V, double>::value>
struct Mean {
  static TORCH_OPS_FUNCTION V of(const V& sum, int64_t count) {
    return sum / static_cast<V>(count);
  }
};
template <class V>
struct Mean<V, true> {
  static TORCH_OPS_FUNCTION V of(V sum, int64_t count) {
    constexpr bool is_signed = static_cast<V>(-1) < static_cast<V>(0);
    if (!is_signed) {
      return static_cast<V>(static_cast<uint64_t>(sum) / static_cast<uint64_t>(count));
    }
    const int64_t wide = static_cast<int64_t>(sum);
    return static_cast<V>(wide / count - (wide % count < 0 ? 1 : 0));
  }
};

// Tells overloads apart.
template <char role>
struct As {};

}  // namespace torch_ops
