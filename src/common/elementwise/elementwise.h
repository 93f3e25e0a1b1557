// The CPU loops of elementwise ops: output[i] = op(inputs[i]...), where the output may be one of
// the inputs. map_range is for arrays without gaps, map_walk for arrays of any strides. Compile it
// with -fno-trapping-math (see setup.py): otherwise GCC vectorises no loop that chooses between two
// results.
#pragma once

#include <algorithm>
#include <cstdint>
#include <tuple>
#include <type_traits>
#include <utility>

#ifdef __x86_64__
#include <immintrin.h>
#endif

#include "common/elementwise/strided_walk.h"
#include "common/host/float16.h"
#include "common/host/host_device.h"
#include "common/host/simd.h"

namespace torch_ops {

constexpr int64_t kPiece = 512;  // elements of a piece that stays in the first-level cache

#ifdef __x86_64__
// F16C's conversions, in at most half the time of Float16's own; compilers do not generate them
// from a loop.
TORCH_OPS_AVX2 inline void widen(const Float16* source, int64_t n, float* result) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(source + i));
    _mm256_storeu_ps(result + i, _mm256_cvtph_ps(halves));
  }
  for (; i < n; ++i) result[i] = _cvtsh_ss(source[i].bits);
}

TORCH_OPS_AVX2 inline void narrow(const float* source, int64_t n, Float16* result) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m256 floats = _mm256_loadu_ps(source + i);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(result + i),
                     _mm256_cvtps_ph(floats, _MM_FROUND_TO_NEAREST_INT));
  }
  for (; i < n; ++i) result[i].bits = _cvtss_sh(source[i], _MM_FROUND_TO_NEAREST_INT);
}

struct Widened {
  float values[kPiece];

  Widened(const Float16* source, int64_t n) { widen(source, n, values); }
};
#endif

// Are values converted to float some at a time, in a buffer?
template <class Op, class T>
constexpr bool kWidens = std::is_same_v<T, Float16> && std::is_base_of_v<ComputesInFloat, Op>;

template <class Op, class T, class... Inputs>
void map_range(Simd simd, Op op, int64_t begin, int64_t end, T* output, const Inputs*... inputs) {
#ifdef __x86_64__
  if constexpr (kWidens<Op, T>) {
    if (simd != Simd::kBaseline) {
      float results[kPiece];
      for (int64_t first = begin; first < end; first += kPiece) {
        const int64_t n = std::min(kPiece, end - first);
        map_range(simd, op, 0, n, results, Widened(inputs + first, n).values...);
        narrow(results, n, output + first);
      }
      return;
    }
  }
#endif
  const auto loop = [](auto, Op op, int64_t begin, int64_t end, T* output, const Inputs*... inputs)
                        TORCH_OPS_INLINE_LAMBDA {
                          for (int64_t i = begin; i < end; ++i) output[i] = op(inputs[i]...);
                        };
  with_simd(simd, loop, op, begin, end, output, inputs...);
}

// ---- Arrays of any strides ----------------------------------------------------------------------

// The elements [begin, begin + n) of a walk form runs along the innermost axis. Calls
// use(done, offset, length) for each: the run's place in [0, n), and in each array.
template <int kArrays, class Use>
TORCH_OPS_HOST_DEVICE void for_each_run(const StridedWalk<kArrays>& walk, int64_t begin, int64_t n,
                                        Use use) {
  int64_t at[kMaxAxes];
  int64_t offset[kArrays] = {};
  int64_t rest = begin;
  const auto move = [&](int axis, int64_t steps) {
    for (int a = 0; a < kArrays; ++a) offset[a] += steps * walk.stride[a][axis];
  };
  for (int axis = 0; axis < walk.axes; ++axis) {
    at[axis] = rest % walk.size[axis];
    rest /= walk.size[axis];
    move(axis, at[axis]);
  }
  for (int64_t done = 0; done < n;) {
    const int64_t length = std::min(walk.size[0] - at[0], n - done);
    use(done, offset, length);
    done += length;
    at[0] += length;
    move(0, length);
    for (int axis = 0; axis + 1 < walk.axes && at[axis] == walk.size[axis]; ++axis) {
      at[axis] = 0;
      ++at[axis + 1];
      move(axis, -walk.size[axis]);
      move(axis + 1, 1);
    }
  }
}

// A piece of a walk, at most kPiece elements. With a tile, the piece is row `row` of `rows` rows
// that are adjacent along the second axis, all of them within one run along the first; their
// pieces follow each other.
struct Spot {
  int64_t begin;
  int64_t n;
  int64_t row = 0;
  int64_t rows = 0;  // 0: no tile
};

// Calls body(spot) for the pieces of [begin, end). If an array is crossed, they come in tiles, so
// that the elements of it in a cache line are used at once. In these each piece begins at a
// multiple of `multiple`.
template <int kArrays, class Body>
void for_each_piece(const StridedWalk<kArrays>& walk, int64_t tile_rows, int64_t multiple,
                    int64_t begin, int64_t end, Body body) {
  const auto in_order = [&](int64_t from, int64_t to) {
    for (; from < to; from += kPiece) body(Spot{from, std::min(kPiece, to - from)});
  };
  bool crossed = false;
  for (int a = 0; a < kArrays; ++a) crossed |= walk.is_crossed(a);
  if (!crossed || walk.size[0] % multiple != 0) return in_order(begin, end);
  const int64_t width = walk.size[0], height = walk.size[1];
  const int64_t last = end / width;
  int64_t row = (begin + width - 1) / width;
  if (row >= last) return in_order(begin, end);
  in_order(begin, row * width);
  while (row < last) {
    const int64_t rows = std::min({tile_rows, last - row, height - row % height});
    for (int64_t column = 0; column < width; column += kPiece) {
      for (int64_t r = 0; r < rows; ++r) {
        body(Spot{(row + r) * width + column, std::min(kPiece, width - column), r, rows});
      }
    }
    row += rows;
  }
  in_order(last * width, end);
}

// A piece of an array, at most kPiece elements: in place if it has no gaps, else a copy.
template <class T>
class Piece {
 public:
  template <int kArrays>
  T* place(const StridedWalk<kArrays>& walk, int array, T* base, int64_t begin, int64_t n) {
    values_ = nullptr;
    if (walk.is_flat(array)) return values_ = base + begin;
    if (walk.stride[array][0] == 1 && walk.size[0] >= n) {
      for_each_run(walk, begin, n, [&](int64_t, const auto& offset, int64_t length) {
        values_ = length == n ? base + offset[array] : nullptr;
      });
    }
    return values_ ? values_ : buffer_;
  }

  // Rows of a tile: as many as a cache line has elements.
  static constexpr int64_t kTileRows = 64 / sizeof(T);

  template <int kArrays>
  const T* read(const StridedWalk<kArrays>& walk, int array, const T* base, const Spot& spot) {
    const int64_t begin = spot.begin, n = spot.n;
    if (spot.rows > 0 && walk.is_crossed(array)) {
      if (spot.row == 0) read_tile(walk, array, base, spot);
      return tile_ + spot.row * kTileStride;
    }
    if (walk.is_constant(array)) {  // such as an expanded gradient: one fill serves all pieces
      if (!filled_) std::fill_n(buffer_, kPiece, *base);
      filled_ = true;
      return buffer_;
    }
    const T* values = place(walk, array, const_cast<T*>(base), begin, n);
    if (values_) return values;
    const int64_t stride = walk.stride[array][0];
    for_each_run(walk, begin, n, [&](int64_t done, const auto& offset, int64_t length) {
      const T* from = base + offset[array];
      if (stride == 1) {
        std::copy_n(from, length, buffer_ + done);
      } else {
        for (int64_t i = 0; i < length; ++i) buffer_[done + i] = from[i * stride];
      }
    });
    return buffer_;
  }

  // Copies what was written to place() to the array, if it is not there.
  template <int kArrays>
  void write(const StridedWalk<kArrays>& walk, int array, T* base, int64_t begin, int64_t n) {
    if (values_) return;
    const int64_t stride = walk.stride[array][0];
    for_each_run(walk, begin, n, [&](int64_t done, const auto& offset, int64_t length) {
      T* to = base + offset[array];
      if (stride == 1) {
        std::copy_n(buffer_ + done, length, to);
      } else {
        for (int64_t i = 0; i < length; ++i) to[i * stride] = buffer_[done + i];
      }
    });
  }

 private:
  template <int kArrays>
  void read_tile(const StridedWalk<kArrays>& walk, int array, const T* base, const Spot& spot) {
    constexpr int64_t kAhead = 16;
    const int64_t stride = walk.stride[array][0];
    for_each_run(walk, spot.begin, 1, [&](int64_t, const auto& offset, int64_t) {
      const T* from = base + offset[array];
      const auto copy = [&](auto rows) {
        for (int64_t i = 0; i < spot.n; ++i) {
          __builtin_prefetch(from + std::min(i + kAhead, spot.n - 1) * stride);
          for (int64_t r = 0; r < rows; ++r) tile_[r * kTileStride + i] = from[i * stride + r];
        }
      };
      if (spot.rows == kTileRows) {
        copy(std::integral_constant<int64_t, kTileRows>());
      } else {
        copy(spot.rows);
      }
    });
  }

  // Rows that are a power of two apart would share few sets of the cache.
  static constexpr int64_t kTileStride = kPiece + 64 / sizeof(T);

  T* values_ = nullptr;
  bool filled_ = false;
  T buffer_[kPiece];
  T tile_[kTileRows * kTileStride];
};

template <class Op, class T, size_t... kInput, class... Inputs>
void map_strided(Simd simd, Op op, const StridedWalk<1 + sizeof...(Inputs)>& walk, int64_t begin,
                 int64_t end, T* output, std::index_sequence<kInput...>, const Inputs*... inputs) {
  // Rows of so many values are worth a loop of their own: of vectors, or of calls that convert.
  constexpr int64_t kFullVectors = sizeof(T) < 4 ? 32 : 32 / sizeof(T);
  constexpr int64_t kLongRun = kWidens<Op, T> ? 128 : kFullVectors;
  const bool rows = walk.stride[0][0] == 1 && ((walk.stride[1 + kInput][0] == 1) && ...);
  if (rows && walk.size[0] >= kLongRun) {
    if constexpr (kWidens<Op, T>) {
      for_each_run(walk, begin, end - begin, [&](int64_t, const auto& offset, int64_t n) {
        map_range(simd, op, 0, n, output + offset[0], inputs + offset[1 + kInput]...);
      });
    } else {
      const auto loop = [](auto, Op op, const auto& walk, int64_t begin, int64_t end, T* output,
                           const Inputs*... inputs) TORCH_OPS_INLINE_LAMBDA {
        const auto run = [&](T* to, int64_t n, const Inputs*... from) TORCH_OPS_INLINE_LAMBDA {
          for (int64_t i = 0; i < n; ++i) to[i] = op(from[i]...);
        };
        for_each_run(walk, begin, end - begin,
                     [&](int64_t, const auto& offset, int64_t n) TORCH_OPS_INLINE_LAMBDA {
                       run(output + offset[0], n, inputs + offset[1 + kInput]...);
                     });
      };
      with_simd(simd, loop, op, walk, begin, end, output, inputs...);
    }
    return;
  }
  Piece<T> result;
  std::tuple<Piece<Inputs>...> sources;
  for_each_piece(walk, Piece<T>::kTileRows, 1, begin, end, [&](const Spot& spot) {
    map_range(simd, op, 0, spot.n, result.place(walk, 0, output, spot.begin, spot.n),
              std::get<kInput>(sources).read(walk, 1 + kInput, inputs, spot)...);
    result.write(walk, 0, output, spot.begin, spot.n);
  });
}

template <class Op, class T, class... Inputs>
void map_walk(Simd simd, Op op, const StridedWalk<1 + sizeof...(Inputs)>& walk, int64_t begin,
              int64_t end, T* output, const Inputs*... inputs) {
  if (walk.is_flat()) return map_range(simd, op, begin, end, output, inputs...);
  map_strided(simd, op, walk, begin, end, output, std::index_sequence_for<Inputs...>(), inputs...);
}

}  // namespace torch_ops
