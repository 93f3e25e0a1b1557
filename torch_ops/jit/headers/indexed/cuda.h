// The loops of a generated indexed kernel on CUDA. A worker, of 1 to 32 neighbouring lanes of a
// warp, has a word of a row, of a part of a row, or of some entries.
#pragma once
#include "cuda.h"
#include "indexed/index_error.h"
#include "indexed/operands.h"

namespace torch_ops {

constexpr int indexed_threads = 256;  // a block; src/jit/indexed/launch.cpp has it too

template <int bytes>
struct Bytes {};
__device__ unsigned char word_of(Bytes<1>);
__device__ unsigned short word_of(Bytes<2>);
__device__ unsigned word_of(Bytes<4>);
__device__ uint2 word_of(Bytes<8>);
__device__ uint4 word_of(Bytes<16>);

// Elements that lie together, moved in words of up to 16 bytes; always all of them. By plain loads:
// compilers leave out those that nothing needs, and __ldg's they do not.
template <class Stored, int count>
struct Vector {
  static constexpr int bytes = sizeof(Stored) * count < 16 ? sizeof(Stored) * count : 16;
  static constexpr int words = sizeof(Stored) * count / bytes;
  using W = decltype(word_of(Bytes<bytes>()));
  union {
    Stored values[count];
    W parts[words];
  };

  TORCH_OPS_FUNCTION Vector() {}
  TORCH_OPS_FUNCTION void load(const char* from, int) {
#pragma unroll
    for (int k = 0; k < words; ++k) parts[k] = reinterpret_cast<const W*>(from)[k];
  }
  TORCH_OPS_FUNCTION void store(char* to, int) const {
#pragma unroll
    for (int k = 0; k < words; ++k) reinterpret_cast<W*>(to)[k] = parts[k];
  }
  TORCH_OPS_FUNCTION const Stored& operator[](int v) const { return values[v]; }
  TORCH_OPS_FUNCTION Stored& operator[](int v) { return values[v]; }
};

template <class Plan>
TORCH_OPS_FUNCTION void record_bad(const Plan& plan, int index, int64_t entry, int64_t value) {
  record_bad_entry(plan.sites[index], entry, value);
}

// `lanes` threads of a warp, a power of two, the first of which has a multiple of it as number.
class LanesOfWarp {
 public:
  TORCH_OPS_FUNCTION explicit LanesOfWarp(int lanes)
      : lanes_(lanes),
        lane_(threadIdx.x & (lanes - 1)),
        mask_((lanes == 32 ? ~0u : (1u << lanes) - 1) << ((threadIdx.x & 31) - lane_)) {}
  TORCH_OPS_FUNCTION int64_t lane() const { return lane_; }
  TORCH_OPS_FUNCTION int64_t count() const { return lanes_; }
  TORCH_OPS_FUNCTION bool is_first() const { return lane_ == 0; }

  // What the lane `step` further on has.
  template <class T>
  TORCH_OPS_FUNCTION T from(const T& value, int step) const {
    constexpr int words = (sizeof(T) + 3) / 4;
    uint32_t parts[words] = {};
    memcpy(parts, &value, sizeof(T));
#pragma unroll
    for (int k = 0; k < words; ++k) parts[k] = __shfl_down_sync(mask_, parts[k], step, lanes_);
    T result;
    memcpy(&result, parts, sizeof(T));
    return result;
  }
  // The sum of all lanes, in the first one.
  template <class T>
  TORCH_OPS_FUNCTION T sum(T value) const {
    for (int step = lanes_ / 2; step > 0; step /= 2) {
      value = static_cast<T>(value + from(value, step));
    }
    return value;
  }
  // The same of what is made of rows.
  template <int width, class O, int vector>
  TORCH_OPS_FUNCTION void join(Reduced<O, vector, false, false>&) const {}
  template <int width, class O, int vector>
  TORCH_OPS_FUNCTION void join(Reduced<O, vector, false, true>& sums) const {
#pragma unroll
    for (int v = 0; v < width; ++v) sums.value[v] = sum(sums.value[v]);
  }
  template <int width, class O, int vector>
  TORCH_OPS_FUNCTION void join(Reduced<O, vector, true, true>& best) const {
    for (int step = lanes_ / 2; step > 0; step /= 2) {
#pragma unroll
      for (int v = 0; v < width; ++v) {
        const typename O::Value value = from(best.value[v], step);
        const int64_t entry = from(best.entry[v], step);
        if (lane_ + step < lanes_) best.add(v, value, entry);
      }
    }
  }

 private:
  int lanes_, lane_;
  uint32_t mask_;
};

template <class Pass>
struct CudaPass {
  template <class Plan, class Element>
  static TORCH_OPS_FUNCTION void reduce(const Plan& plan, const Element& element) {
    const int lanes = static_cast<int>(plan.lanes);
    const int64_t worker = quotient_of(first_thread() + threadIdx.x, lanes);
    const int64_t item = quotient_of(worker, plan.words);
    if (item >= plan.items) return;
    Pass::reduce(plan, element, LanesOfWarp(lanes), item, worker - item * plan.words);
  }

  template <class Plan, class Element>
  static TORCH_OPS_FUNCTION void entries(const Plan& plan, const Element& element) {
    const int lanes = static_cast<int>(plan.lanes);
    const int64_t worker = quotient_of(first_thread() + threadIdx.x, lanes);
    const int64_t item = quotient_of(worker, plan.words);
    if (item >= plan.items) return;
    typename Pass::Sums none;
    // Entries of a worker are as far apart as there are workers: neighbours have neighbouring ones.
    Pass::run(plan, element, LanesOfWarp(lanes), 0, worker - item * plan.words, item,
              plan.positions, plan.items, none);
  }

  // A warp looks at 32 tiles, and joins the rows that begin in them.
  template <class Plan>
  static TORCH_OPS_FUNCTION void join(const Plan& plan) {
    const LanesOfWarp warp(32);
    const int64_t first = (first_thread() + threadIdx.x) & ~int64_t(31);
    const int64_t tile = first + warp.lane(), tiles = plan.slots / 2;
    const int64_t row = tile < tiles ? Pass::long_row_of(plan, tile) : -1;
    for (unsigned found = __ballot_sync(~0u, row >= 0); found != 0; found &= found - 1) {
      const int from = __ffs(found) - 1;
      const int64_t of_lane = __shfl_sync(~0u, static_cast<long long>(row), from);
      for (int64_t word = blockIdx.y; word < plan.words; word += gridDim.y) {
        Pass::join_parts(plan, warp, first + from, of_lane, word);
      }
    }
  }

 private:
  static TORCH_OPS_FUNCTION int64_t first_thread() { return int64_t(blockIdx.x) * blockDim.x; }
};

}  // namespace torch_ops
