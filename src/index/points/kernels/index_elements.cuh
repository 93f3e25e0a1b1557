// Gathers elements at points whose places fit 32 bits, as in most calls: with less to compute
// than point_elements_kernel. No torch.
#pragma once

#include <cstdint>

#include "common/layout/row_layout.h"
#include "index/points/kernels/index_kernels.cuh"

namespace torch_ops {

// A call of rows of one word on one axis; choose_points_path says which.
struct PointPicks {
  static constexpr uint32_t kNowhere = UINT32_MAX;
  PointsCall points;

  // Adds to a point's place the offset of the entry of coordinate j. `good` becomes false if it
  // names no row.
  __device__ __forceinline__ void resolve(int j, int64_t entry, uint32_t& place, bool& good) const {
    const Coordinate& coordinate = points.layout.coordinate[j];
    const int64_t size = coordinate.rule.axis_size();
    const IndexMode mode = coordinate.rule.mode();
    const bool from_end = mode == IndexMode::kFromEnd || mode == IndexMode::kFill;
    const int64_t row = entry + (from_end && entry < 0 ? size : 0);
    good &= in_range(row, size);
    place += static_cast<uint32_t>(row) * static_cast<uint32_t>(coordinate.table_stride);
  }

  template <int C, int N>
  __device__ __forceinline__ void locate_packed(const int64_t (&rows)[N], uint32_t (&places)[N],
                                                bool (&good)[N]) const {
    int64_t entries[N][C];
    points.load_packed(rows, entries);
#pragma unroll
    for (int k = 0; k < N; ++k) {
#pragma unroll
      for (int j = 0; j < C; ++j) resolve(j, entries[k][j], places[k], good[k]);
    }
  }

  template <int N>
  __device__ __forceinline__ void locate(const int64_t (&rows)[N], uint32_t (&places)[N],
                                         bool (&good)[N]) const {
    const PointsLayout& layout = points.layout;
#pragma unroll
    for (int k = 0; k < N; ++k) {
      places[k] = static_cast<uint32_t>(rows[k] * layout.row_axis[0].table_stride);
      good[k] = true;
    }
    if (points.packed == 2) return locate_packed<2>(rows, places, good);
    if (points.packed == 3) return locate_packed<3>(rows, places, good);
    if (points.packed == 4) return locate_packed<4>(rows, places, good);
#pragma unroll 1
    for (int j = 0; j < layout.coordinates; ++j) {
      const Coordinate& coordinate = layout.coordinate[j];
      int64_t positions[N], entries[N];
#pragma unroll
      for (int k = 0; k < N; ++k) positions[k] = rows[k] * coordinate.strides[0];
      IndexView{coordinate.data, coordinate.entry_bytes}.load(positions, entries);
#pragma unroll
      for (int k = 0; k < N; ++k) resolve(j, entries[k], places[k], good[k]);
    }
  }

  // The places of a lane's points, `step` apart from `first` on: kNowhere, and a bit of `bad`, for
  // those that have none.
  template <int N>
  __device__ __forceinline__ void locate_all(uint32_t first, uint32_t step, uint32_t (&places)[N],
                                             uint32_t& bad) const {
    int64_t rows[N];
    bool good[N];
    // Beyond the end the last point is located again.
#pragma unroll
    for (int k = 0; k < N; ++k) {
      rows[k] = min(first + k * step, static_cast<uint32_t>(points.layout.rows) - 1);
    }
    locate(rows, places, good);
    bad = 0;
#pragma unroll
    for (int k = 0; k < N; ++k) {
      if (!good[k]) places[k] = kNowhere;
      bad |= good[k] ? 0 : 1u << k;
    }
  }

  // Writes the picked elements; the fill for points without a place, whose entries are recorded.
  template <int K, class Word>
  __device__ __forceinline__ void write(uint32_t first, uint32_t step, const Word (&words)[K],
                                        uint32_t bad, Word* output) const {
    const auto count = static_cast<uint32_t>(points.layout.rows);
#pragma unroll
    for (int k = 0; k < K; ++k) {
      if (first + k * step < count) output[first + k * step] = words[k];
    }
    if (bad == 0) return;
#pragma unroll 1
    for (int k = 0; k < K; ++k) {
      const int64_t row[1] = {first + k * step};
      if (!(bad >> k & 1) || row[0] >= count) continue;
      output[row[0]] = points.fill.word<Word>();
      int64_t unused[1];
      points.locate_rows</*kMayBePacked=*/false>(row, unused);  // which records the entry
    }
  }
};

template <class Word>
__global__ void __launch_bounds__(kPointThreads, 6)  // otherwise ptxas spills for two blocks more
    point_picks_kernel(const Word* __restrict__ table, Word* __restrict__ output,
                       const __grid_constant__ PointPicks call) {
  const uint32_t first = blockIdx.x * (kPointThreads * kPointUnroll) + threadIdx.x;
  uint32_t places[kPointUnroll], bad;
  call.locate_all(first, kPointThreads, places, bad);
  Word words[kPointUnroll];
#pragma unroll
  for (int k = 0; k < kPointUnroll; ++k) {
    if (places[k] != PointPicks::kNowhere) words[k] = __ldg(table + places[k]);
  }
  call.write(first, kPointThreads, words, bad, output);
}

}  // namespace torch_ops
