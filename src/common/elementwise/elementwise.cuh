// The CUDA kernels of elementwise ops: output = op(inputs...), over tensors of one shape, one type
// and any strides; with or without a bit per element, which a forward pass writes and a backward
// pass reads.
//
// A thread has one vector of 16 bytes per array. On an H200 this reached 1.00 of a copy's speed
// (0.97 with two vectors, 0.955 with four; loads and stores that bypass or leave the L1 cache early
// lose another 2 to 6 %). docs/internals/log.md has more.
#pragma once

#include <cstdint>
#include <type_traits>

#include "common/cuda/fast_divisor.cuh"
#include "common/cuda/vectorized.cuh"
#include "common/elementwise/bit_mask.h"
#include "common/elementwise/strided_walk.h"

namespace torch_ops {

// What an op does with the mask. kWrites: op(x), and the bit is op.keeps(x). kReads: op(bit, x).
enum class Bits { kNone, kWrites, kReads };

template <class T, int kInputs>
struct Arrays {
  T* output;
  const T* inputs[kInputs];
};

// Applies the op to the i-th value of each input's vector; `bits` are those of the vector.
template <Bits kBits, class Op, class T, int N, int kInputs>
__device__ __forceinline__ T apply(const Op& op, const Vector<T, N> (&in)[kInputs], int i,
                                   uint32_t& bits) {
  if constexpr (kBits == Bits::kWrites) {
    bits |= static_cast<uint32_t>(op.keeps(in[0].values[i])) << i;
    return op(in[0].values[i]);
  } else if constexpr (kBits == Bits::kReads) {
    return op((bits >> i & 1) != 0, in[0].values[i]);
  } else if constexpr (kInputs == 2) {
    return op(in[0].values[i], in[1].values[i]);
  } else {
    return op(in[0].values[i]);
  }
}

// The bits of the vector at `position`, from the byte that contains them. To be called once the
// vector's loads are issued: the shift waits for the byte, and would delay them.
template <Bits kBits>
__device__ __forceinline__ void take(uint32_t& bits, int64_t position) {
  if constexpr (kBits == Bits::kReads) bits >>= static_cast<uint32_t>(position) % 8;
}

// ---- The mask -----------------------------------------------------------------------------------

// Writes the bits of a thread's vector of N elements; all lanes of a warp must call this, those
// after the last element with no bits.
template <int N>
__device__ __forceinline__ void write_bits(uint8_t* mask, int64_t position, int64_t numel,
                                           uint32_t bits) {
  // 8 / N lanes share a byte.
#pragma unroll
  for (int lanes = 1; lanes < 8 / N; lanes *= 2) {
    bits |= __shfl_down_sync(0xffffffff, bits, lanes) << (lanes * N);
  }
  if (position < numel && position % 8 == 0) mask[position / 8] = static_cast<uint8_t>(bits);
}

// ---- Where a vector of a walk is: the elements [position, position + count), count <= N ---------

// Every array is in the order of the walk, and starts at a whole vector.
struct FlatWalk {
  int64_t numel;

  template <Bits kBits, class Op, class T, int kInputs>
  __device__ __forceinline__ void map(const Op& op, const Arrays<T, kInputs>& arrays,
                                      int64_t position, int count, uint32_t& bits) const {
    constexpr int N = kVectorSize<T>;
    Vector<T, N> in[kInputs], result;
    if (count == N) {
#pragma unroll
      for (int a = 0; a < kInputs; ++a) {
        in[a] = *reinterpret_cast<const Vector<T, N>*>(arrays.inputs[a] + position);
      }
      take<kBits>(bits, position);
#pragma unroll
      for (int i = 0; i < N; ++i) result.values[i] = apply<kBits>(op, in, i, bits);
      store(arrays.output + position, result);
    } else {
      take<kBits>(bits, position);
#pragma unroll
      for (int i = 0; i < N; ++i) {
        if (i >= count) break;
#pragma unroll
        for (int a = 0; a < kInputs; ++a) in[a].values[i] = arrays.inputs[a][position + i];
        arrays.output[position + i] = apply<kBits>(op, in, i, bits);
      }
    }
  }
};

constexpr int kSingles = 4;  // elements of a thread that has no vector

template <int kArrays>
struct DeviceWalk : StridedWalk<kArrays> {
  FastDivisor by_size[kMaxAxes];
  bool small;          // positions and offsets are below 2^31
  bool in_rows;        // no vector is in two rows of the innermost axis, and all are whole
  bool wide[kArrays];  // given in_rows: a vector of the array is an aligned word

  // Where the elements at the positions first, first + step, ... are in each array.
  template <int kCount, class Number>
  __device__ __forceinline__ void place(int64_t first, int step,
                                        Number (&offset)[kArrays][kCount]) const {
    Number left[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      left[i] = static_cast<Number>(first + i * step);
#pragma unroll
      for (int a = 0; a < kArrays; ++a) offset[a][i] = 0;
    }
    for (int axis = 0; axis < this->axes; ++axis) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        Number at = left[i];
        if (axis + 1 < this->axes) {  // the outermost axis gets the rest
          if constexpr (std::is_same_v<Number, uint32_t>) {
            left[i] = by_size[axis].divide(left[i], at);
          } else {
            left[i] /= this->size[axis];
            at -= left[i] * this->size[axis];
          }
        }
#pragma unroll
        for (int a = 0; a < kArrays; ++a) {
          offset[a][i] += at * static_cast<Number>(this->stride[a][axis]);
        }
      }
    }
  }

  // Given in_rows.
  template <Bits kBits, class Op, class T, int kInputs>
  __device__ __forceinline__ void map(const Op& op, const Arrays<T, kInputs>& arrays,
                                      int64_t position, int /*count*/, uint32_t& bits) const {
    if (small) return map_vector<uint32_t, kBits>(op, arrays, position, bits);
    map_vector<int64_t, kBits>(op, arrays, position, bits);
  }

  template <class Number, Bits kBits, class Op, class T, int kInputs>
  __device__ __forceinline__ void map_vector(const Op& op, const Arrays<T, kInputs>& arrays,
                                             int64_t position, uint32_t& bits) const {
    constexpr int N = kVectorSize<T>;
    Vector<T, N> in[kInputs], result;
    Number offset[kArrays][1];
    place(position, 0, offset);
#pragma unroll
    for (int a = 0; a < kInputs; ++a) {
      const T* from = arrays.inputs[a] + offset[1 + a][0];
      const int64_t apart = this->stride[1 + a][0];
      if (wide[1 + a]) {
        in[a] = *reinterpret_cast<const Vector<T, N>*>(from);
      } else if (apart == 0) {
        const T value = *from;
#pragma unroll
        for (int i = 0; i < N; ++i) in[a].values[i] = value;
      } else {
#pragma unroll
        for (int i = 0; i < N; ++i) in[a].values[i] = from[i * apart];
      }
    }
    take<kBits>(bits, position);
#pragma unroll
    for (int i = 0; i < N; ++i) result.values[i] = apply<kBits>(op, in, i, bits);
    T* to = arrays.output + offset[0][0];
    if (wide[0]) return store(to, result);
#pragma unroll
    for (int i = 0; i < N; ++i) to[i * this->stride[0][0]] = result.values[i];
  }

  // The elements first, first + step, ..., which are loaded before the first is stored.
  template <class Number, Bits kBits, class Op, class T, int kInputs>
  __device__ __forceinline__ void map_singly(const Op& op, const Arrays<T, kInputs>& arrays,
                                             int64_t first, int step, uint8_t* mask) const {
    Vector<T, kSingles> in[kInputs];
    Number offset[kArrays][kSingles];
    place(first, step, offset);
    uint32_t bits = 0;
#pragma unroll
    for (int i = 0; i < kSingles; ++i) {
      const int64_t position = first + i * step;
      if (position >= this->numel) break;
#pragma unroll
      for (int a = 0; a < kInputs; ++a) in[a].values[i] = arrays.inputs[a][offset[1 + a][i]];
      if constexpr (kBits == Bits::kReads) bits |= (mask[position / 8] >> position % 8 & 1) << i;
    }
#pragma unroll
    for (int i = 0; i < kSingles; ++i) {
      const int64_t position = first + i * step;
      if (position < this->numel) arrays.output[offset[0][i]] = apply<kBits>(op, in, i, bits);
      if constexpr (kBits == Bits::kWrites) {
        write_bits<1>(mask, position, this->numel, bits >> i & 1);
      }
    }
  }
};

// ---- The kernel ---------------------------------------------------------------------------------

// The most threads of a multiprocessor.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ == 800 || \
    (__CUDA_ARCH__ >= 900 && __CUDA_ARCH__ < 1100)
constexpr int kResidentThreads = 2048;
#elif __CUDA_ARCH__ == 750
constexpr int kResidentThreads = 1024;
#else
constexpr int kResidentThreads = 1536;
#endif

constexpr int kMapThreads = 256;  // a block

// If all arrays are flat, no op may use more registers than keep a multiprocessor full: with 33
// leaky_relu of float16 with a mask reached 0.91 of the copy.
template <Bits kBits, class Op, class Walk, class T, int kInputs>
__global__ void __launch_bounds__(kMapThreads, std::is_same_v<Walk, FlatWalk>
                                                   ? kResidentThreads / kMapThreads
                                                   : 1)
    map_kernel(Op op, const __grid_constant__ Walk walk, Arrays<T, kInputs> arrays, uint8_t* mask) {
  constexpr int N = kVectorSize<T>;
  const int64_t position = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) * N;
  const int64_t left = walk.numel - position;
  uint32_t bits = 0;
  if (left > 0) {
    // Only loaded here: waiting for it would delay the loads of the vector. See `take`.
    if constexpr (kBits == Bits::kReads) bits = mask[position / 8];
    walk.template map<kBits>(op, arrays, position, left < N ? static_cast<int>(left) : N, bits);
  }
  if constexpr (kBits == Bits::kWrites) write_bits<N>(mask, position, walk.numel, bits);
}

// Where rows are not of whole vectors: a warp has 32 neighbours in the walk at a time.
template <Bits kBits, class Op, class T, int kInputs>
__global__ void __launch_bounds__(kMapThreads, kResidentThreads / kMapThreads / 2)
    map_singly_kernel(Op op, const __grid_constant__ DeviceWalk<1 + kInputs> walk,
                      Arrays<T, kInputs> arrays, uint8_t* mask) {
  const int64_t first = int64_t{blockIdx.x} * (kMapThreads * kSingles) + threadIdx.x;
  if (walk.small) {
    walk.template map_singly<uint32_t, kBits>(op, arrays, first, kMapThreads, mask);
  } else {
    walk.template map_singly<int64_t, kBits>(op, arrays, first, kMapThreads, mask);
  }
}

}  // namespace torch_ops
