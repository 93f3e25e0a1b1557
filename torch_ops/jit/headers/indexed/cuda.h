// The loops of a generated indexed kernel on CUDA. A worker, of 1 to 32 neighbouring lanes of a
// warp, has a word of a row, of a part of a row, or of some entries.
#pragma once
#include "cuda.h"
#include "indexed/index_error.h"
#include "indexed/operands.h"

namespace torch_ops {

template <int bytes>
struct Bytes {};
__device__ unsigned char word_of(Bytes<1>);
__device__ unsigned short word_of(Bytes<2>);
__device__ unsigned word_of(Bytes<4>);
__device__ uint2 word_of(Bytes<8>);
__device__ uint4 word_of(Bytes<16>);

// Elements that lie together, moved in words of up to 16 bytes, which divide them; always all of
// them. By plain loads: compilers leave out those that nothing needs, and __ldg's they do not.
template <class Stored, int count>
struct Vector {
  static constexpr int size = sizeof(Stored) * count;
  static constexpr int bytes = (size & -size) < 16 ? (size & -size) : 16;
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
  TORCH_OPS_FUNCTION LanesOfWarp(int lanes, int thread)
      : lanes_(lanes),
        lane_(thread & (lanes - 1)),
        mask_((lanes == 32 ? ~0u : (1u << lanes) - 1) << ((thread & 31) - lane_)) {}
  TORCH_OPS_FUNCTION int lane() const { return lane_; }
  TORCH_OPS_FUNCTION int count() const { return lanes_; }
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
  using Number = typename Pass::Position;

  // The lanes, the item and the word of a thread: a block has items side by side, or several blocks
  // have one.
  template <class Plan, class Work>
  static TORCH_OPS_FUNCTION void each(const Plan& plan, const Work& work) {
    const int lanes = static_cast<int>(plan.lanes);
    const int64_t threads = plan.words * lanes;  // of an item
    Number item = static_cast<Number>(blockIdx.x) * blockDim.y + threadIdx.y;
    int64_t column = threadIdx.x;
    if (threads > blockDim.x) {
      const auto blocks = static_cast<unsigned>((threads + blockDim.x - 1) / blockDim.x);
      item = blockIdx.x / blocks;
      column += int64_t(blockIdx.x % blocks) * blockDim.x;
    }
    if (item >= plan.items || column >= threads) return;
    const LanesOfWarp group(lanes, threadIdx.y * blockDim.x + threadIdx.x);
    work(group, item, column / lanes);
  }
  template <class Plan, class Element>
  static TORCH_OPS_FUNCTION void reduce(const Plan& plan, const Element& element) {
    each(plan, [&](const LanesOfWarp& lanes, Number item, int64_t word) {
      Pass::reduce(plan, element, lanes, item, word);
    });
  }
  // Entries of a worker are as far apart as there are items: neighbours have neighbouring ones.
  template <class Plan, class Element>
  static TORCH_OPS_FUNCTION void entries(const Plan& plan, const Element& element) {
    each(plan, [&](const LanesOfWarp& lanes, Number item, int64_t word) {
      typename Pass::Sums none;
      Pass::run(plan, element, lanes, 0, word, item, static_cast<Number>(plan.positions),
                static_cast<Number>(plan.items), none);
    });
  }

  // A warp looks at 32 tiles, and joins the rows that begin in them.
  template <class Plan>
  static TORCH_OPS_FUNCTION void join(const Plan& plan) {
    const LanesOfWarp warp(32, threadIdx.x);
    const int64_t first = (int64_t(blockIdx.x) * blockDim.x + threadIdx.x) & ~int64_t(31);
    const int64_t tile = first + warp.lane(), tiles = plan.slots / 2;
    const int64_t row = tile < tiles ? Pass::long_row_of(plan, tile) : -1;
    for (unsigned found = __ballot_sync(~0u, row >= 0); found != 0; found &= found - 1) {
      const int from = __ffs(found) - 1;
      const int64_t of_lane = __shfl_sync(~0u, static_cast<long long>(row), from);
      for (int64_t word = blockIdx.y; word < plan.words; word += gridDim.y) {
        Pass::join_parts(plan, warp, first + from, static_cast<Number>(of_lane), word);
      }
    }
  }
};

}  // namespace torch_ops
