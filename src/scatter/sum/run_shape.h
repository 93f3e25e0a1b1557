// The shape of the kernels that total runs of entries (cuda/sorted/runs.cuh). No torch.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/host/ceil_div.h"
#include "common/host/host_device.h"

namespace torch_ops {

constexpr int kRunThreads = 256;
constexpr int kWindow = 4;  // entries whose values a lane loads together
constexpr int kSpan = 8;    // entries of a group; kWindow of them if there are few in all

// How the columns of a row are divided: `lanes` (a power of two up to 32) of V columns each are a
// piece, and a block takes one piece of its entries' rows.
struct RowPieces {
  int lanes;
  int pieces;

  RowPieces(int64_t inner, int columns_a_lane, int most_lanes = 32, int least_lanes = 1) {
    const int64_t vectors = ceil_div(inner, columns_a_lane);
    lanes = least_lanes;
    while (lanes < most_lanes && lanes < vectors) lanes *= 2;
    // Fewer lanes per piece if many would have no column: each piece costs about four lanes.
    const auto cost = [&](int n) { return ceil_div(vectors, n) * (n + 4); };
    while (lanes > std::max(least_lanes, 8) && cost(lanes / 2) < cost(lanes)) lanes /= 2;
    pieces = static_cast<int>(ceil_div(vectors, lanes));
  }

  TORCH_OPS_HOST_DEVICE int groups(int threads) const { return threads / lanes; }
};

}  // namespace torch_ops
