// Which entry has the best value for each element of scatter's result, as a total of sorted entries
// (sorted.cuh), and of few rows (privatized.cuh). No torch.
#pragma once

#include <cstdint>

#include "common/cuda/ordered_key.cuh"
#include "common/cuda/vectorized.cuh"
#include "scatter/cuda/best/arg.cuh"
#include "scatter/cuda/sorted/sorted.cuh"

namespace torch_ops::sorted {

// The highest key of each column, and the number of the first entry that has it.
template <int V, class Value, class Id>
struct Best {
  static constexpr int kColumns = V;
  static constexpr int kBlocks = 4;
  struct Part {
    OrderedKey<Value> key;
    Id place;
  };
  struct Options {
    bool largest;
    int64_t entries;  // of a batch
  };
  struct Candidates {
    OrderedKey<Value> keys[V];
    Id place;
  };
  static constexpr Id kNone = ~Id(0);
  Part best[V];

  __device__ __forceinline__ Best() {
#pragma unroll
    for (int v = 0; v < V; ++v) best[v] = {0, kNone};
  }

  static __device__ __forceinline__ Candidates load(const Value* from, Id place, Options options) {
    const auto values = *reinterpret_cast<const Vector<Value, V>*>(from);
    Candidates loaded;
    loaded.place = place;
#pragma unroll
    for (int v = 0; v < V; ++v) {
      loaded.keys[v] = ordered_key(values.values[v], options.largest);
    }
    return loaded;
  }

  // The result is the same when joined in any order.
  __device__ __forceinline__ void join(int v, OrderedKey<Value> key, Id place) {
    const bool better = best[v].place == kNone || key > best[v].key ||
                        (key == best[v].key && place < best[v].place);
    best[v].key = better ? key : best[v].key;
    best[v].place = better ? place : best[v].place;
  }
  __device__ __forceinline__ void add(const Candidates& other) {
#pragma unroll
    for (int v = 0; v < V; ++v) join(v, other.keys[v], other.place);
  }
  __device__ __forceinline__ void add(const Part* other) {
#pragma unroll
    for (int v = 0; v < V; ++v) join(v, other[v].key, other[v].place);
  }

  __device__ __forceinline__ void copy_to(Part* to) const {
#pragma unroll
    for (int v = 0; v < V; ++v) to[v] = best[v];
  }

  __device__ __forceinline__ void clear_if(bool done) {
#pragma unroll
    for (int v = 0; v < V; ++v) best[v].place = done ? kNone : best[v].place;
  }

  // A place counts the entries of all batches and slices; the result is the entry's own number.
  __device__ __forceinline__ void write(int64_t* to, Options options) const {
#pragma unroll
    for (int v = 0; v < V; ++v) {
      to[v] = static_cast<int64_t>(best[v].place % static_cast<Id>(options.entries));
    }
  }
};

}  // namespace torch_ops::sorted

namespace torch_ops::privatized {

// The highest key of a column, and the first entry that has it.
template <class Value>
struct Best {
  static constexpr int kColumns = 1;
  using Column = Best;
  struct Options {
    bool largest;
    int64_t entries;
  };
  static constexpr uint32_t kNone = ~0u;
  OrderedKey<Value> key = 0;
  uint32_t place = kNone;

  __device__ __forceinline__ void join(const Best& other) {
    const bool better =
        place == kNone || other.key > key || (other.key == key && other.place < place);
    key = better ? other.key : key;
    place = better ? other.place : place;
  }
  __device__ __forceinline__ void add(const Vector<Value, 1>& value, int64_t at, Options options) {
    Best other;
    other.key = ordered_key(value.values[0], options.largest);
    other.place = static_cast<uint32_t>(at);
    join(other);
  }

  __device__ __forceinline__ void write(int64_t* to, Options options) const {
    *to = place == kNone ? options.entries : place;
  }
};

}  // namespace torch_ops::privatized
