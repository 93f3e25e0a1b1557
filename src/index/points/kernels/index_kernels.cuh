// Gathers and writes at points on the GPU, on raw pointers. No torch.
//
// A thread finds where its rows are, all coordinates at once, and keeps the offsets; then the words
// move. So an index is read once per row and never copied. A row that an entry does not name gets
// the fill, or is dropped; if that is an error, the entry is recorded. Strides count words of the
// kernel's type. 32-bit arithmetic works for up to kMaxPoints rows of more than one axis, and for
// as many words of a row of more than one: the launcher cuts larger calls (points_parts.h).
#pragma once

#include <cstdint>

#include "common/cuda/fast_divisor.cuh"
#include "common/cuda/vectorized.cuh"
#include "common/indexing/index_error.cuh"
#include "common/indexing/index_mode.h"
#include "common/indexing/index_view.cuh"
#include "index/points/kernels/points_layout.h"
#include "index/points/kernels/points_path.h"

namespace torch_ops {

constexpr int kPointThreads = 256;
constexpr int kPointUnroll = 4;  // rows, then words, that a thread has in flight

struct PointsCall {
  PointsLayout layout;
  FastDivisor by_row_axis[kMaxPointAxes];
  FastDivisor by_inner_axis[kMaxPointAxes];
  FastDivisor by_words;  // of a tile
  int64_t first_row;     // of the call, for messages: the launch may be a part of it
  int32_t tile_rows;
  int32_t tile_words;  // of a row
  // How many adjacent int64 coordinates a point has, as in the index of gather_nd: 2, 3 or
  // 4; 0 if they are not adjacent.
  int32_t packed;
  FillPattern fill;
  IndexErrorSite errors;

  // The sum of `number`'s coordinates times `strides`. Uniform branches.
  template <class Stride>
  static __device__ __forceinline__ int64_t locate(int64_t number, int32_t axes,
                                                   const FastDivisor* by_axis, Stride&& stride) {
    if (axes == 1) return number * stride(0);
    auto rest = static_cast<uint32_t>(number);
    int64_t offset = 0;
#pragma unroll 1
    for (int a = axes - 1; a > 0; --a) {
      uint32_t at;
      rest = by_axis[a].divide(rest, at);
      offset += at * stride(a);
    }
    return offset + rest * stride(0);
  }

  template <class Stride>
  __device__ __forceinline__ int64_t locate_row(int64_t row, Stride&& stride) const {
    return locate(row, layout.row_axes, by_row_axis, stride);
  }

  // Where a column of a row is, counted from the row's start.
  template <bool kInTable>
  __device__ __forceinline__ int64_t locate_column(int64_t column) const {
    return locate(column, layout.inner_axes, by_inner_axis, [&](int a) {
      return kInTable ? layout.inner_axis[a].table_stride : layout.inner_axis[a].rows_stride;
    });
  }

  // A coordinate of a row: adds the offset of its entry to the row's offset.
  __device__ __forceinline__ void resolve(int j, int64_t entry, int64_t row,
                                          int64_t& offset) const {
    const Coordinate& coordinate = layout.coordinate[j];
    const int64_t size = coordinate.rule.axis_size();
    const bool rewrites = coordinate.rule.mode() != IndexMode::kRaise;
    const int64_t picked = rewrites ? coordinate.rule.resolve(entry) : entry;
    if (static_cast<uint64_t>(picked) < static_cast<uint64_t>(size)) {
      offset += picked * coordinate.table_stride;
    } else {
      offset = kBadOffset;
      if (coordinate.rule.raises()) {
        const BadCoordinate bad{coordinate.axis, size};
        record_bad_entry(errors, first_row + row, entry, &bad);
      }
    }
  }

  // The C coordinates of each point in few loads, none of which waits for another.
  template <int C, int N>
  __device__ __forceinline__ void load_packed(const int64_t (&rows)[N],
                                              int64_t (&entries)[N][C]) const {
    const auto* data = static_cast<const int64_t*>(layout.coordinate[0].data);
#pragma unroll
    for (int k = 0; k < N; ++k) {
      if constexpr (C % 2 == 0) {
#pragma unroll
        for (int j = 0; j < C; j += 2) {
          const auto two = *reinterpret_cast<const Vector<int64_t, 2>*>(data + rows[k] * C + j);
          entries[k][j] = two.values[0];
          entries[k][j + 1] = two.values[1];
        }
      } else {
#pragma unroll
        for (int j = 0; j < C; ++j) entries[k][j] = data[rows[k] * C + j];
      }
    }
  }

  template <int C, int N>
  __device__ __forceinline__ void locate_packed(const int64_t (&rows)[N],
                                                int64_t (&offsets)[N]) const {
    int64_t entries[N][C];
    load_packed(rows, entries);
#pragma unroll
    for (int j = 0; j < C; ++j) {
#pragma unroll
      for (int k = 0; k < N; ++k) resolve(j, entries[k][j], rows[k], offsets[k]);
    }
  }

  // Where N rows begin in the table; negative for a bad one. The loads of a coordinate do not wait
  // for each other. kMayBePacked: the kernel has registers for all coordinates of its rows.
  template <bool kMayBePacked, int N>
  __device__ __forceinline__ void locate_rows(const int64_t (&rows)[N],
                                              int64_t (&offsets)[N]) const {
#pragma unroll
    for (int k = 0; k < N; ++k) {
      offsets[k] = locate_row(rows[k], [&](int a) { return layout.row_axis[a].table_stride; });
    }
    if constexpr (kMayBePacked) {
      if (packed == 2) return locate_packed<2>(rows, offsets);
      if (packed == 3) return locate_packed<3>(rows, offsets);
      if (packed == 4) return locate_packed<4>(rows, offsets);
    }
#pragma unroll 1
    for (int j = 0; j < layout.coordinates; ++j) {
      const Coordinate& coordinate = layout.coordinate[j];
      int64_t positions[N], entries[N];
#pragma unroll
      for (int k = 0; k < N; ++k) {
        positions[k] = locate_row(rows[k], [&](int a) { return coordinate.strides[a]; });
      }
      IndexView{coordinate.data, coordinate.entry_bytes}.load(positions, entries);
#pragma unroll
      for (int k = 0; k < N; ++k) resolve(j, entries[k], rows[k], offsets[k]);
    }
  }
};

// ---- Rows of one word ---------------------------------------------------------------------------

// kPut: from the rows to the table; otherwise from the table to the rows, which are contiguous.
template <bool kPut, class Word>
__global__ void __launch_bounds__(kPointThreads)
    point_elements_kernel(Word* __restrict__ table, Word* __restrict__ rows,
                          const __grid_constant__ PointsCall call) {
  const int64_t first = int64_t{blockIdx.x} * (kPointThreads * kPointUnroll) + threadIdx.x;
  int64_t numbers[kPointUnroll], offsets[kPointUnroll];
#pragma unroll
  for (int k = 0; k < kPointUnroll; ++k) {
    // Beyond the end the last row is located again, and not moved.
    numbers[k] = min(first + k * kPointThreads, call.layout.rows - 1);
  }
  call.locate_rows</*kMayBePacked=*/true>(numbers, offsets);
  Word words[kPointUnroll];
#pragma unroll
  for (int k = 0; k < kPointUnroll; ++k) {
    if constexpr (kPut) {
      words[k] = rows[call.locate_row(numbers[k],
                                      [&](int a) { return call.layout.row_axis[a].rows_stride; })];
    } else {
      words[k] = __ldg(table + max(offsets[k], int64_t{0}));
      if (offsets[k] < 0) words[k] = call.fill.word<Word>();
    }
  }
#pragma unroll
  for (int k = 0; k < kPointUnroll; ++k) {
    if (first + k * kPointThreads >= call.layout.rows) break;
    if constexpr (kPut) {
      if (offsets[k] >= 0) table[offsets[k]] = words[k];
    } else {
      rows[numbers[k]] = words[k];
    }
  }
}

// ---- Longer rows --------------------------------------------------------------------------------

// The block's threads locate a tile's rows, a row each, and leave the offsets in shared memory.
template <bool kPut, class Word>
__global__ void __launch_bounds__(kPointThreads)
    point_rows_kernel(Word* __restrict__ table, Word* __restrict__ rows,
                      const __grid_constant__ PointsCall call) {
  __shared__ int64_t in_table[kPointTile / 2];
  __shared__ int64_t in_rows[kPut ? kPointTile / 2 : 1];
  const PointsLayout& layout = call.layout;
  const int64_t first_row = int64_t{blockIdx.x} * call.tile_rows;
  const auto count = static_cast<int>(min(layout.rows - first_row, int64_t{call.tile_rows}));
  for (int n = threadIdx.x; n < count; n += kPointThreads) {
    const int64_t number[1] = {first_row + n};
    int64_t offset[1];
    call.locate_rows</*kMayBePacked=*/false>(number, offset);
    in_table[n] = offset[0];
    if constexpr (kPut) {
      in_rows[n] =
          call.locate_row(number[0], [&](int a) { return layout.row_axis[a].rows_stride; });
    }
  }
  __syncthreads();

  for (int64_t column0 = int64_t{blockIdx.y} * call.tile_words; column0 < layout.inner;
       column0 += int64_t{gridDim.y} * call.tile_words) {
    const auto width = static_cast<int>(min(layout.inner - column0, int64_t{call.tile_words}));
    const int total = count * width;
    // A row is cut only if a tile has one, so that a tile of contiguous rows is contiguous.
    Word* tile = rows + first_row * layout.inner + column0;
    for (int first = threadIdx.x; first < total; first += kPointThreads * kPointUnroll) {
      Word words[kPointUnroll];
      int64_t to[kPointUnroll];
#pragma unroll
      for (int k = 0; k < kPointUnroll; ++k) {
        // Beyond the end the last word is read again, and not written.
        const uint32_t word = min(first + k * kPointThreads, total - 1);
        uint32_t column = word;
        const uint32_t n = count > 1 ? call.by_words.divide(word, column) : 0;
        const int64_t at = column0 + column, place = in_table[n];
        if constexpr (kPut) {
          words[k] = rows[in_rows[n] + call.locate_column<false>(at)];
          to[k] = place < 0 ? kBadOffset : place + call.locate_column<true>(at);
        } else {
          words[k] = __ldg(table + max(place, int64_t{0}) + call.locate_column<true>(at));
          if (place < 0) words[k] = call.fill.word<Word>();
        }
      }
#pragma unroll
      for (int k = 0; k < kPointUnroll; ++k) {
        const int word = first + k * kPointThreads;
        if (word >= total) break;
        if constexpr (kPut) {
          if (to[k] >= 0) table[to[k]] = words[k];
        } else {
          tile[word] = words[k];
        }
      }
    }
  }
}

// ---- Offsets ------------------------------------------------------------------------------------

template <class Offset>
__global__ void __launch_bounds__(kPointThreads)
    point_offsets_kernel(Offset* __restrict__ out, Offset none,
                         const __grid_constant__ PointsCall call) {
  const int64_t first = int64_t{blockIdx.x} * (kPointThreads * kPointUnroll) + threadIdx.x;
  int64_t numbers[kPointUnroll], offsets[kPointUnroll];
#pragma unroll
  for (int k = 0; k < kPointUnroll; ++k) {
    numbers[k] = min(first + k * kPointThreads, call.layout.rows - 1);
  }
  call.locate_rows</*kMayBePacked=*/true>(numbers, offsets);
#pragma unroll
  for (int k = 0; k < kPointUnroll; ++k) {
    if (first + k * kPointThreads >= call.layout.rows) break;
    out[numbers[k]] = offsets[k] < 0 ? none : static_cast<Offset>(offsets[k]);
  }
}

}  // namespace torch_ops
