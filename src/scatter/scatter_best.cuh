// Which entry has the best value for each element of scatter's result, as a total of sorted entries
// (scatter_sorted.cuh). No torch.
#pragma once

#include <cstdint>

#include "scatter/reduce_arg.cuh"
#include "scatter/scatter_sorted.cuh"

namespace torch_ops::sorted {

// The highest key of one column, and the number of the first entry that has it.
template <class Value, class Id>
struct Best {
  static constexpr int kColumns = 1;
  struct Part {
    reduce::Key<Value> key;
    Id place;
  };
  struct Options {
    bool largest;
  };
  static constexpr Id kNone = ~Id(0);
  Part best{0, kNone};

  static __device__ __forceinline__ Part load(const Value* from, Id place, Options options) {
    return {reduce::make_key(*from, options.largest), place};
  }

  // Joined in any order, this gives the same.
  __device__ __forceinline__ void add(const Part& other) {
    const bool better = best.place == kNone || other.key > best.key ||
                        (other.key == best.key && other.place < best.place);
    if (better) best = other;
  }
  __device__ __forceinline__ void add(const Part* other) { add(*other); }

  __device__ __forceinline__ void copy_to(Part* to) const { *to = best; }

  __device__ __forceinline__ void clear_if(bool done) {
    best.place = done ? kNone : best.place;
  }

  // A place counts the entries of all batches and slices; what is asked for is the entry's own.
  __device__ __forceinline__ void write(int64_t* to, int64_t entries) const {
    *to = static_cast<int64_t>(best.place % static_cast<Id>(entries));
  }
};

}  // namespace torch_ops::sorted
