// What a softmax needs to know of a row, as totals of its entries (runs.cuh). No torch.
#pragma once

#include <cstdint>

#include "common/cuda/vectorized.cuh"
#include "scatter/cuda/sorted/runs.cuh"
#include "segments/softmax_formulas.h"

namespace torch_ops::segments {

struct NoOptions {};

template <class Value>
struct TwoArrays {
  const Value* values;
  const Value* others;
};

// The largest value and the sum of exponentials. Where a larger value comes, the sum so far is
// scaled down to it: M. Milakov and N. Gimelshein, "Online normalizer calculation for softmax",
// 2018.
template <int V, class Number>
struct ExpSums {
  static constexpr int kColumns = V;
  static constexpr int kBlocks = 4;
  using Part = ExpSum<Number>;
  using Options = NoOptions;
  Part values[V];

  static __device__ __forceinline__ Part nothing() { return {-INFINITY, 0}; }

  __device__ __forceinline__ ExpSums() {
#pragma unroll
    for (int v = 0; v < V; ++v) values[v] = nothing();
  }

  template <class Value, class Place>
  static __device__ __forceinline__ Vector<Value, V> load(const Value* from, Place, Options) {
    return *reinterpret_cast<const Vector<Value, V>*>(from);
  }

  static __device__ __forceinline__ Number scaled(const Part& part, Number top) {
    if (part.largest == top || part.sum == 0) return part.sum;
    return part.sum * exp(finite(part.largest) - finite(top));
  }

  __device__ __forceinline__ void join(int v, const Part& more) {
    Part& part = values[v];
    const bool rises = more.largest > part.largest || more.largest != more.largest;
    const Number top = rises ? more.largest : part.largest;
    part = {top, scaled(part, top) + scaled(more, top)};
  }

  template <class Value>
  __device__ __forceinline__ void add(const Vector<Value, V>& more) {
#pragma unroll
    for (int v = 0; v < V; ++v) {
      const auto value = static_cast<Number>(more.values[v]);
      join(v, {value, isinf(value) ? exp(value) : Number(1)});
    }
  }
  __device__ __forceinline__ void add(const Part* more) {
#pragma unroll
    for (int v = 0; v < V; ++v) join(v, more[v]);
  }

  __device__ __forceinline__ void copy_to(Part* to) const {
#pragma unroll
    for (int v = 0; v < V; ++v) to[v] = values[v];
  }

  __device__ __forceinline__ void clear_if(bool done) {
#pragma unroll
    for (int v = 0; v < V; ++v) values[v] = done ? nothing() : values[v];
  }

  __device__ __forceinline__ void write(Part* to, Options) const { copy_to(to); }
};

// Sums of the products of two arrays, of which the total is given places in the first.
template <int V, class Value, class Number>
struct ProductSums : Sums<V, Number> {
  using Options = TwoArrays<Value>;

  template <class Place>
  static __device__ __forceinline__ Vector<Number, V> load(const Value* from, Place,
                                                           Options options) {
    using Values = Vector<Value, V>;
    const auto first = *reinterpret_cast<const Values*>(from);
    const auto second = *reinterpret_cast<const Values*>(options.others + (from - options.values));
    Vector<Number, V> products;
#pragma unroll
    for (int v = 0; v < V; ++v) {
      products.values[v] =
          static_cast<Number>(first.values[v]) * static_cast<Number>(second.values[v]);
    }
    return products;
  }
};

}  // namespace torch_ops::segments
