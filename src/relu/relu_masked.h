// The CPU's loops that write and read a mask. No torch.
#pragma once

#ifdef __x86_64__
#include <immintrin.h>
#endif

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "common/elementwise/bit_mask.h"
#include "common/elementwise/elementwise_cpu.h"
#include "common/host/float16.h"
#include "common/host/parallel.h"
#include "relu/relu_kernels.h"

namespace torch_ops {

// ---- AVX-512, whose comparisons give bits -------------------------------------------------------
//
// For float, and only relu for the 16-bit formats, which leaky_relu computes in float.

template <class Activation, class T>
constexpr bool kHasAvx512Loop =
#ifdef __x86_64__
    std::is_same_v<T, float> || (sizeof(T) == 2 && std::is_same_v<Activation, Relu>);
#else
    false;
#endif

#ifdef __x86_64__

// Each processes as many elements as fill its vectors, and returns their number.

template <class Activation, class T, std::enable_if_t<std::is_same_v<T, float>, int> = 0>
TORCH_OPS_AVX512 inline int64_t write_avx512(Activation activation, int64_t n, T* output,
                                             const T* input, uint8_t* mask) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const __m512 x = _mm512_loadu_ps(input + i);
    __mmask16 kept;
    __m512 y;
    if constexpr (std::is_same_v<Activation, Relu>) {
      // Two comparisons, since -0.0 is not kept but still returned: see Relu.
      kept = _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_NLE_UQ);
      y = _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_NLT_UQ), x);
    } else {
      kept = _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_GT_OQ);
      y = _mm512_mask_mov_ps(_mm512_mul_ps(x, _mm512_set1_ps(activation.slope)), kept, x);
    }
    _mm512_storeu_ps(output + i, y);
    std::memcpy(mask + i / 8, &kept, sizeof(kept));
  }
  return i;
}

template <class Activation, class T, std::enable_if_t<std::is_same_v<T, float>, int> = 0>
TORCH_OPS_AVX512 inline int64_t read_avx512(Activation activation, int64_t n, T* grad_input,
                                            const T* grad_output, const uint8_t* mask) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const __m512 grad = _mm512_loadu_ps(grad_output + i);
    __mmask16 kept;
    std::memcpy(&kept, mask + i / 8, sizeof(kept));
    if constexpr (std::is_same_v<Activation, Relu>) {
      _mm512_storeu_ps(grad_input + i, _mm512_maskz_mov_ps(kept, grad));
    } else {
      const __m512 off = _mm512_mul_ps(grad, _mm512_set1_ps(activation.slope));
      _mm512_storeu_ps(grad_input + i, _mm512_mask_mov_ps(off, kept, grad));
    }
  }
  return i;
}

// 16 bits, compared as integers: see at_most_zero and is_negative.
template <class T, std::enable_if_t<sizeof(T) == 2, int> = 0>
TORCH_OPS_AVX512 inline int64_t write_avx512(const Relu&, int64_t n, T* output, const T* input,
                                             uint8_t* mask) {
  const __m512i least = _mm512_set1_epi16(INT16_MIN);  // -0.0
  const __m512i infinity = _mm512_set1_epi16(T::kNegativeInfinity);
  int64_t i = 0;
  for (; i + 32 <= n; i += 32) {
    const __m512i x = _mm512_loadu_si512(input + i);
    const __mmask32 above = _mm512_cmpgt_epi16_mask(x, infinity);
    const __mmask32 kept = above & _mm512_test_epi16_mask(x, x);
    const __mmask32 shown = above | _mm512_cmpeq_epi16_mask(x, least);
    _mm512_storeu_si512(output + i, _mm512_maskz_mov_epi16(shown, x));
    std::memcpy(mask + i / 8, &kept, sizeof(kept));
  }
  return i;
}

template <class T, std::enable_if_t<sizeof(T) == 2, int> = 0>
TORCH_OPS_AVX512 inline int64_t read_avx512(const Relu&, int64_t n, T* grad_input,
                                            const T* grad_output, const uint8_t* mask) {
  int64_t i = 0;
  for (; i + 32 <= n; i += 32) {
    __mmask32 kept;
    std::memcpy(&kept, mask + i / 8, sizeof(kept));
    const __m512i grad = _mm512_loadu_si512(grad_output + i);
    _mm512_storeu_si512(grad_input + i, _mm512_maskz_mov_epi16(kept, grad));
  }
  return i;
}

#endif

// ---- Any instruction set, any type --------------------------------------------------------------

template <class Activation>
struct Keeps {
  Activation activation;

  template <class T>
  TORCH_OPS_HOST_DEVICE uint8_t operator()(T x) const {
    return activation.keeps(x);
  }
};

// kept where the flag is set, else off: by bits, since GCC vectorises no choice between structs.
struct Pick {
  template <class T>
  TORCH_OPS_HOST_DEVICE T operator()(uint8_t flag, T kept, T off) const {
    using Bits = BitsOf<T>;
    const Bits chosen = static_cast<Bits>(Bits{0} - flag);
    return bit_cast<T>(static_cast<Bits>((bit_cast<Bits>(kept) & chosen) |
                                         (bit_cast<Bits>(off) & static_cast<Bits>(~chosen))));
  }

  // off is 0.
  template <class T>
  TORCH_OPS_HOST_DEVICE T operator()(uint8_t flag, T kept) const {
    using Bits = BitsOf<T>;
    return bit_cast<T>(static_cast<Bits>(bit_cast<Bits>(kept) & (Bits{0} - flag)));
  }

 private:
  template <class T>
  using BitsOf = std::conditional_t<sizeof(T) == 8, uint64_t,
                                    std::conditional_t<sizeof(T) == 4, uint32_t, uint16_t>>;
};

template <class Activation>
struct Off : Activation {
  explicit Off(Activation activation) : Activation(activation) {}

  template <class T>
  TORCH_OPS_HOST_DEVICE T operator()(T x) const {
    return this->off(x);
  }
};

// The activation of `n` values, and their part of the mask.
template <class Activation, class T>
void write_masked_piece(Simd simd, Activation activation, int64_t n, T* output, const T* input,
                        uint8_t* mask) {
  int64_t done = 0;
  if constexpr (kHasAvx512Loop<Activation, T>) {
    if (simd == Simd::kAvx512) done = write_avx512(activation, n, output, input, mask);
  }
  if (done >= n) return;  // so that GCC sees that flags are written before they are read
  uint8_t flags[kPiece];
  map_range(simd, Keeps<Activation>{activation}, done, n, flags, input);
  pack_flags(flags + done, n - done, mask + done / 8);
  map_range(simd, activation, done, n, output, input);
}

// The gradient of `n` values by their part of the mask.
template <class Activation, class T>
void read_masked_piece(Simd simd, Activation activation, int64_t n, T* grad_input,
                       const T* grad_output, const uint8_t* mask) {
  int64_t done = 0;
  if constexpr (kHasAvx512Loop<Activation, T>) {
    if (simd == Simd::kAvx512) done = read_avx512(activation, n, grad_input, grad_output, mask);
  }
  if (done >= n) return;
  uint8_t flags[kPiece];
  unpack_flags(mask + done / 8, n - done, flags + done);
  if constexpr (std::is_same_v<Activation, Relu>) {
    map_range(simd, Pick(), done, n, grad_input, flags, grad_output);
  } else {
    T off[kPiece];
    map_range(simd, Off<Activation>(activation), done, n, off, grad_output);
    map_range(simd, Pick(), done, n, grad_input, flags, grad_output, off);
  }
}

// ---- Over a walk --------------------------------------------------------------------------------

// Calls each(simd, n, to, from, byte) for pieces of `n` values: where their results go, where the
// values are, and the position of their part of the mask.
template <class T, class Each>
void for_each_masked_piece(const StridedWalk<2>& walk, T* output, const T* input, Each each) {
  const Simd simd = cpu_simd();
  // Parts share no byte of the mask.
  const int64_t blocks = (walk.numel + kPiece - 1) / kPiece;
  parallel_for(blocks, kElementsPerTask / kPiece, [&](int64_t first, int64_t last) {
    const int64_t begin = first * kPiece, end = std::min(last * kPiece, walk.numel);
    Piece<T> source, result;
    for_each_piece(walk, Piece<T>::kTileRows, 8, begin, end, [&](const Spot& spot) {
      each(simd, spot.n, result.place(walk, 0, output, spot.begin, spot.n),
           source.read(walk, 1, input, spot), spot.begin / 8);
      result.write(walk, 0, output, spot.begin, spot.n);
    });
  });
}

}  // namespace torch_ops
