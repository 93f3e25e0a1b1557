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

template <class T>
TORCH_OPS_FUNCTION T loaded_whole(const T* from) {
  Vector<unsigned char, sizeof(T)> words;
  words.load(reinterpret_cast<const char*>(from), sizeof(T));
  T whole;
  memcpy(&whole, words.values, sizeof(T));
  return whole;
}

template <class Plan>
TORCH_OPS_FUNCTION void record_bad(const Plan& plan, int index, int64_t entry, int64_t value) {
  record_bad_entry(plan.sites[index], entry, value);
}

// One instruction: compilers make several of int64_t{a} * b in a loop.
TORCH_OPS_FUNCTION int64_t wide_product(int32_t a, int32_t b) {
  int64_t product;
  asm("mul.wide.s32 %0, %1, %2;" : "=l"(product) : "r"(a), "r"(b));
  return product;
}
TORCH_OPS_FUNCTION int64_t wide_product(int64_t a, int64_t b) { return a * b; }

// What was read stays read here: compilers move loads to where they are needed, one after another.
TORCH_OPS_FUNCTION void keep_here(int32_t& value) { asm volatile("" : "+r"(value)); }
TORCH_OPS_FUNCTION void keep_here(int64_t& value) { asm volatile("" : "+l"(value)); }

// `lanes` threads of a warp, a power of two, the first of which has a multiple of it as number; one
// if they do not share.
template <bool shares>
class LanesOfWarp {
 public:
  TORCH_OPS_FUNCTION LanesOfWarp(int lanes, int thread)
      : lanes_(shares ? lanes : 1),
        lane_(thread & (lanes_ - 1)),
        thread_(thread & 31),
        mask_((lanes_ == 32 ? ~0u : (1u << lanes_) - 1) << ((thread & 31) - lane_)) {}
  TORCH_OPS_FUNCTION int lane() const { return lane_; }
  TORCH_OPS_FUNCTION int count() const { return lanes_; }
  TORCH_OPS_FUNCTION bool is_first() const { return lane_ == 0; }

  // What the lane `step` further on has.
  template <class T>
  TORCH_OPS_FUNCTION T from(const T& value, int step) const {
    return moved(value, [&](uint32_t part) { return __shfl_down_sync(mask_, part, step, lanes_); });
  }
  template <class T, class Move>
  static TORCH_OPS_FUNCTION T moved(const T& value, const Move& move) {
    constexpr int words = (sizeof(T) + 3) / 4;
    uint32_t parts[words] = {};
    memcpy(parts, &value, sizeof(T));
#pragma unroll
    for (int k = 0; k < words; ++k) parts[k] = move(parts[k]);
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
  // Sums each value over `together` threads of the warp: over the lanes of this worker, or, of all
  // workers of a row, over the lanes that have the same number. One of these threads has the sum in
  // the end, and keeps the number of its entry. In the others that number becomes -1.
  template <int together, bool are_lanes, class T, int width, class Number, int count>
  TORCH_OPS_FUNCTION void sum_entries(T (&values)[count][width], Number (&entries)[count]) const {
    const int apart = are_lanes ? 1 : lanes_, all = together * apart;
    const int place = thread_ & (all - 1);
    uint32_t mask = 1;  // of these threads, counted from the first
#pragma unroll
    for (int n = 1; n < together; n *= 2) mask |= mask << n * apart;
    mask <<= thread_ - place + (are_lanes ? 0 : lane_);
    int left = count;
#pragma unroll
    for (int half = together / 2; half > 0; half /= 2) {
      const int step = half * apart, kept = (left + 1) / 2;
      const bool is_upper = (place & step) != 0;
#pragma unroll
      for (int u = 0; u < kept; ++u) {  // of two values, a thread keeps one and sends the other
        const int other = u + kept;
        T sent = values[u][0];
        if (other < left) {
          if (!is_upper) sent = values[other][0];
          if (is_upper) values[u][0] = values[other][0], entries[u] = entries[other];
          entries[other] = -1;
        } else if (is_upper) {
          entries[u] = -1;
        }
        const T received =
            moved(sent, [&](uint32_t part) { return __shfl_xor_sync(mask, part, step); });
        values[u][0] = static_cast<T>(values[u][0] + received);
      }
      left = kept;
    }
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
  int lanes_, lane_, thread_;
  uint32_t mask_;
};

// The second of two kernels may be launched while the first is ending (CUDA's programmatic
// dependent launch, from compute capability 9.0 on): once all blocks of the first have called this
// or ended.
TORCH_OPS_FUNCTION void let_next_kernel_begin() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
// In the second: until the first has ended, and what it wrote can be read.
TORCH_OPS_FUNCTION void wait_for_kernel_before() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

template <class Pass>
struct CudaPass {
  using Number = typename Pass::Position;

  // The lanes, the item and the word of a thread: a block has items side by side, or several blocks
  // of one column of the grid have one.
  template <class Plan, class Work>
  static TORCH_OPS_FUNCTION void each(const Plan& plan, const Work& work) {
    const int lanes = Pass::shares ? static_cast<int>(plan.lanes) : 1;
    const Number item = static_cast<Number>(blockIdx.x) * blockDim.y + threadIdx.y;
    const Number threads = static_cast<Number>(plan.words) * lanes;  // of an item
    if (item >= static_cast<Number>(plan.items)) return;
    const LanesOfWarp<Pass::shares> group(lanes, threadIdx.y * blockDim.x + threadIdx.x);
    for (Number column = static_cast<Number>(blockIdx.y) * blockDim.x + threadIdx.x;
         column < threads; column += gridDim.y * blockDim.x) {
      work(group, item, column >> (31 - __clz(lanes)));
    }
  }
  template <class Plan, class Element>
  static TORCH_OPS_FUNCTION void reduce(const Plan& plan, const Element& element) {
    let_next_kernel_begin();
    each(plan, [&](const LanesOfWarp<Pass::shares>& lanes, Number item, Number word) {
      Pass::reduce(plan, element, lanes, item, word);
    });
  }
  // Entries of a worker are as far apart as there are items: neighbours have neighbouring ones.
  template <class Plan, class Element>
  static TORCH_OPS_FUNCTION void entries(const Plan& plan, const Element& element) {
    each(plan, [&](const LanesOfWarp<Pass::shares>& lanes, Number item, Number word) {
      typename Pass::Sums none;
      Pass::run(plan, element, lanes, 0, word, item, static_cast<Number>(plan.positions),
                static_cast<Number>(plan.items), none);
    });
  }

  // A block looks at as many tiles as threads at most, and joins the rows that begin in them: warps
  // those of few parts, and all threads those of many.
  template <class Plan>
  static TORCH_OPS_FUNCTION void join(const Plan& plan) {
    using Sums = typename Pass::Sums;
    constexpr int threads = 256, few = 64;
    __shared__ Number rows[threads];
    __shared__ Number tiles[threads];
    __shared__ int counts[2];  // of rows of few parts, from the front, and of many, from the back
    __shared__ alignas(16) char space[threads / 32 * sizeof(Sums)];
    Sums* const of_warps = reinterpret_cast<Sums*>(space);
    const Number all = static_cast<Number>(plan.slots / 2);
    const Number share = (all + gridDim.x - 1) / gridDim.x, tile = blockIdx.x * share + threadIdx.x;
    if (threadIdx.x < 2) counts[threadIdx.x] = 0;
    __syncthreads();
    if (threadIdx.x < share && tile < all) {
      const Number row = Pass::long_row_of(plan, tile);
      if (row >= 0) {
        const bool has_many = Pass::parts_of(plan, tile, row) > few;
        const int place = atomicAdd(counts + has_many, 1);
        rows[has_many ? threads - 1 - place : place] = row;
        tiles[has_many ? threads - 1 - place : place] = tile;
      }
    }
    __syncthreads();
    wait_for_kernel_before();  // which writes the parts
    const LanesOfWarp<true> warp(32, threadIdx.x);
    const int number = threadIdx.x / 32;
    for (Number word = blockIdx.y; word < static_cast<Number>(plan.words); word += gridDim.y) {
      for (int k = number; k < counts[0]; k += threads / 32) {
        const Sums sums = Pass::join_parts(plan, tiles[k], rows[k], word, warp.lane(), 32, warp);
        if (warp.is_first()) Pass::store_joined(plan, rows[k], word, sums);
      }
      for (int k = threads - 1; k >= threads - counts[1]; --k) {
        const Sums sums =
            Pass::join_parts(plan, tiles[k], rows[k], word, threadIdx.x, threads, warp);
        if (warp.is_first()) of_warps[number] = sums;
        __syncthreads();
        if (threadIdx.x == 0) {
          for (int other = 1; other < threads / 32; ++other) of_warps[0].join(of_warps[other]);
          Pass::store_joined(plan, rows[k], word, of_warps[0]);
        }
        __syncthreads();
      }
    }
  }
};

}  // namespace torch_ops
