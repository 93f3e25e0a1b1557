// An index of any of the four integer types, read without a template parameter: for kernels that
// read each entry once, where a uniform branch costs nothing, but four times the kernels would. No
// torch.
#pragma once

#include <cstdint>

#include "common/cuda/vectorized.cuh"
#include "common/indexing/index_array.h"
#include "common/indexing/index_mode.h"

namespace torch_ops {

struct IndexView : IndexArray {
  template <class Index>
  __device__ __forceinline__ const Index* as() const {
    return static_cast<const Index*>(data);
  }

  __device__ __forceinline__ int64_t operator[](int64_t position) const {
    switch (entry_bytes) {
      case 1:
        return as<uint8_t>()[position];
      case 2:
        return as<int16_t>()[position];
      case 4:
        return as<int32_t>()[position];
      default:
        return as<int64_t>()[position];
    }
  }

  __device__ __forceinline__ int64_t at(int64_t position) const { return (*this)[position]; }

  // The entries at N positions.
  template <int N, class Position>
  __device__ __forceinline__ void load(const Position (&positions)[N],
                                       int64_t (&entries)[N]) const {
    switch (entry_bytes) {
      case 1:
        return load_as<uint8_t>(positions, entries);
      case 2:
        return load_as<int16_t>(positions, entries);
      case 4:
        return load_as<int32_t>(positions, entries);
      default:
        return load_as<int64_t>(positions, entries);
    }
  }

  // Four adjacent entries. `position` and `data` must be aligned to four of them.
  __device__ __forceinline__ void load4(int64_t position, int64_t (&entries)[4]) const {
    switch (entry_bytes) {
      case 1:
        return widen(*reinterpret_cast<const Vector<uint8_t, 4>*>(as<uint8_t>() + position),
                     entries);
      case 2:
        return widen(*reinterpret_cast<const Vector<int16_t, 4>*>(as<int16_t>() + position),
                     entries);
      case 4:
        return widen(*reinterpret_cast<const Vector<int32_t, 4>*>(as<int32_t>() + position),
                     entries);
      default: {
        const auto* halves = reinterpret_cast<const Vector<int64_t, 2>*>(as<int64_t>() + position);
        const Vector<int64_t, 2> low = halves[0], high = halves[1];
        entries[0] = low.values[0];
        entries[1] = low.values[1];
        entries[2] = high.values[0];
        entries[3] = high.values[1];
      }
    }
  }

  // The same from an entry on.
  TORCH_OPS_HOST_DEVICE IndexView from(int64_t position) const {
    return {{static_cast<const char*>(data) + position * entry_bytes, entry_bytes}};
  }

  // Can load4 read at positions that are multiples of four?
  bool is_aligned_for_load4() const {
    return is_aligned(data, entry_bytes < 4 ? 4 * entry_bytes : kVectorBytes);
  }

 private:
  template <class Index, int N, class Position>
  __device__ __forceinline__ void load_as(const Position (&positions)[N],
                                          int64_t (&entries)[N]) const {
#pragma unroll
    for (int k = 0; k < N; ++k) entries[k] = as<Index>()[positions[k]];
  }

  template <class Index>
  static __device__ __forceinline__ void widen(const Vector<Index, 4>& from,
                                               int64_t (&entries)[4]) {
#pragma unroll
    for (int k = 0; k < 4; ++k) entries[k] = from.values[k];
  }
};

// How a kernel that is a template of the index's type reads it. A cursor is at an entry, and `at`
// gives the entries from there on unchanged; `row_of` says which row one names, or no row of the
// axis, and `fill` the value for that. The steps are separate, so that no load waits for another.

// Entries are rows. An entry that is not a row is an error: its values are zeros.
template <class Index>
struct PlainIndex {
  using Entry = Index;
  using Row = Index;
  using Cursor = PlainIndex;
  const Index* __restrict__ data;

  __device__ __forceinline__ Cursor from(int64_t position) const { return {data + position}; }
  __device__ __forceinline__ Entry at(int64_t position) const {
    return load_in_order(data + position);
  }
  __device__ __forceinline__ Entry row_of(Entry entry) const { return entry; }
  template <class Word>
  __device__ __forceinline__ Word fill() const {
    return Word();
  }
};

// The same, but -1 is the last row, and so on.
template <class Index>
struct FromEndIndex {
  using Entry = Index;
  using Row = int64_t;
  using Cursor = PlainIndex<Index>;
  PlainIndex<Index> data;
  int64_t axis_size;

  __device__ __forceinline__ Cursor from(int64_t position) const { return data.from(position); }
  __device__ __forceinline__ Row row_of(Entry entry) const {
    return entry < 0 ? entry + axis_size : entry;
  }
  template <class Word>
  __device__ __forceinline__ Word fill() const {
    return Word();
  }
};

// A rule says which rows they are. One type for all types of index, and for every rule: it needs
// registers, which the kernels for the most common ones must not pay for.
struct RuledIndex {
  using Entry = int64_t;
  using Row = int64_t;
  using Cursor = IndexView;
  IndexView data;
  GatherPolicy policy;

  __device__ __forceinline__ Cursor from(int64_t position) const { return data.from(position); }
  __device__ __forceinline__ Row row_of(Entry entry) const {
    return policy.rule.rewrites() ? policy.rule.resolve(entry) : entry;
  }
  template <class Word>
  __device__ __forceinline__ Word fill() const {
    return policy.fill.word<Word>();
  }
};

}  // namespace torch_ops
