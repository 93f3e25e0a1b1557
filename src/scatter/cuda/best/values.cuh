// The largest, or the smallest, value for each element of scatter's result, without its position:
// on raw pointers, no torch.
//
// By atomics, whose order does not matter: 0 counts as larger than -0, and NaN as better than any
// number. A thread that sees a better value there does not write: a row that many entries name
// needs few atomics.
#pragma once

#include <cstdint>
#include <type_traits>

#include "common/cuda/vectorized.cuh"
#include "common/indexing/index_error.cuh"
#include "common/indexing/index_mode.h"
#include "common/indexing/index_view.cuh"
#include "common/layout/row_grid.cuh"
#include "common/layout/row_layout.h"
#include "scatter/cuda/best/arg.cuh"
#include "scatter/cuda/entries.cuh"

namespace torch_ops::reduce {

// What becomes of what a result has: it is overwritten, also where there are no entries; it is
// compared as the entries are; or entries overwrite it.
enum class Former { kNone, kCompared, kReplaced };

// What values are compared as: a type for which CUDA has atomics.
template <class Value>
using Compared = std::conditional_t<sizeof(Value) >= 4, Value,
                                    std::conditional_t<std::is_integral_v<Value>, int, float>>;

template <class T>
__device__ __forceinline__ bool is_better(T value, T than, bool largest) {
  return ordered_key(value, largest, true) > ordered_key(than, largest, true);
}

// To the better of the two. For values that have been found to be better than what was there.
template <class T>
__device__ __forceinline__ void improve(T* to, T value, bool largest) {
  using Signed = std::conditional_t<sizeof(T) == 8, long long, int>;
  using Unsigned = std::make_unsigned_t<Signed>;
  auto bits = *reinterpret_cast<const Signed*>(&value);
  bool reversed = false;  // do larger bits mean smaller values?
  if constexpr (!std::is_integral_v<T>) {
    constexpr auto kSign = static_cast<Signed>(Unsigned(1) << (8 * sizeof(T) - 1));
    if (value != value) bits = largest ? ~kSign : Signed(-1);  // a NaN whose bits win
    reversed = bits < 0;
  }
  if (reversed) {
    auto* const place = reinterpret_cast<Unsigned*>(to);
    largest ? atomicMin(place, static_cast<Unsigned>(bits))
            : atomicMax(place, static_cast<Unsigned>(bits));
  } else {
    auto* const place = reinterpret_cast<Signed*>(to);
    largest ? atomicMax(place, bits) : atomicMin(place, bits);
  }
}

// Marks the rows of [batch, axis_size] that entries name.
static __global__ void mark_kernel(IndexView index, uint8_t* __restrict__ marks,
                                   const __grid_constant__ RowLayout layout,
                                   const __grid_constant__ IndexRule rule) {
  const int64_t count = layout.batch * layout.entries, step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    const int64_t batch = layout.batch == 1 ? 0 : i / layout.entries;
    const int64_t place[] = {batch * layout.index_batch_stride +
                             (i - batch * layout.entries) * layout.index_entry_stride};
    int64_t entry[1];
    index.load(place, entry);
    const int64_t row = rule.resolve(entry[0]);
    if (in_range(row, layout.axis_size)) marks[batch * layout.axis_size + row] = 1;
  }
}

// V adjacent columns of a result.
struct Word {
  int64_t slab, batch;
  int64_t row;  // in its axis
  int64_t column;
  int64_t at;  // over the elements of the result
};

// Calls use(word) for the words of the result's rows that a thread has.
template <int V, class Use>
__device__ __forceinline__ void for_each_word(const RowLayout& layout, const RowGrid& grid,
                                              Use&& use) {
  for (int64_t number = blockIdx.y; number < grid.chunks; number += gridDim.y) {
    const RowGrid::Chunk chunk = grid.chunk(number);
    const uint32_t first = blockIdx.x * blockDim.x + threadIdx.x;
    if (first >= chunk.words) continue;
    const RowGrid::Place place = grid.place(chunk, first);
    Word word{chunk.slab + place.slab, 0, place.entry, int64_t{place.column} * V};
    int64_t slice;
    grid.split_slab(word.slab, word.batch, slice);
    word.at = (word.slab * layout.axis_size + word.row) * layout.inner + word.column;
    use(word);
  }
}

// What elements start as: `worst` in rows that entries name, unless the result has values that are
// compared; else 0, or what the result has.
template <int V, class Value, class T>
__global__ void start_kernel(const uint8_t* __restrict__ marks, const Value* result, T* best,
                             T worst, Former former, const __grid_constant__ RowLayout layout,
                             const __grid_constant__ RowGrid grid) {
  for_each_word<V>(layout, grid, [&](const Word& word) {
    const bool is_named =
        former != Former::kCompared && marks[word.batch * layout.axis_size + word.row] != 0;
    const bool keeps = !is_named && former != Former::kNone;
    if (keeps && std::is_same_v<Value, T>) return;
    Vector<T, V> start;
#pragma unroll
    for (int v = 0; v < V; ++v) {
      start.values[v] = is_named ? worst : keeps ? static_cast<T>(result[word.at + v]) : T();
    }
    store(best + word.at, start);
  });
}

// What a launch does with the elements that each entry goes to. Only those are started and
// rounded where entries are few; entries of one row do the same there.
enum class Step { kStart, kImprove, kRound };

template <Step step, class Value, class T>
__global__ void improve_kernel(const Value* __restrict__ values, IndexView index, T* best,
                               Value* result, T worst, Former former,
                               const __grid_constant__ ArgCall call,
                               const __grid_constant__ IndexErrorSite errors) {
  T mine[kUnroll], seen[kUnroll];
  const auto load = [&](int k, int64_t at) {
    if (step == Step::kImprove) mine[k] = static_cast<T>(values[at]);
  };
  const auto look = [&](int k, int64_t place) {
    seen[k] = worst;
    if (step == Step::kStart && former == Former::kCompared) {
      seen[k] = static_cast<T>(result[place]);
    }
    if (step == Step::kImprove) seen[k] = *static_cast<volatile T*>(best + place);
    if (step == Step::kRound) seen[k] = best[place];
  };
  const auto use = [&](int k, int64_t place, bool good, int64_t own, int64_t entry) {
    if (!good) {
      if (step == Step::kImprove) record_bad_entry(errors, own, entry);
    } else if constexpr (step == Step::kStart) {
      best[place] = seen[k];
    } else if constexpr (step == Step::kRound) {
      result[place] = static_cast<Value>(seen[k]);
    } else if (is_better(mine[k], seen[k], call.largest)) {
      improve(best + place, mine[k], call.largest);
    }
  };
  for_each_value(index, call, load, look, use);
}

template <class Value, class T>
__global__ void round_kernel(const T* __restrict__ best, Value* __restrict__ result,
                             int64_t count) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    result[i] = static_cast<Value>(best[i]);
  }
}

// The values at positions, which say layout.entries where there are none.
template <class Value>
__global__ void take_kernel(const Value* __restrict__ values, const int64_t* __restrict__ positions,
                            Value* __restrict__ result, bool largest, Former former,
                            const __grid_constant__ RowLayout layout,
                            const __grid_constant__ RowGrid grid) {
  for_each_word<1>(layout, grid, [&](const Word& word) {
    const int64_t entry = positions[word.at];
    const bool is_named = entry < layout.entries;
    if (!is_named && former != Former::kNone) return;
    const int64_t from = (word.slab * layout.entries + entry) * layout.inner + word.column;
    const Value best = is_named ? values[from] : Value();
    if (former == Former::kCompared && !is_better(best, result[word.at], largest)) return;
    result[word.at] = best;
  });
}

}  // namespace torch_ops::reduce
