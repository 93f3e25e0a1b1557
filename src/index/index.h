// The launchers of gathers and writes at points: they check nothing but the entries' values.
#pragma once

#include <ATen/core/Tensor.h>

#include "common/checks.h"
#include "index/points_layout.h"

namespace torch_ops {

// What a launcher tells of an entry that names no row. Sizes are those of the points: the axes of
// the index arrays, broadcast, or of gather_nd's index but its last.
struct PointsSite {
  const char* op;  // a literal
  at::IntArrayRef sizes;
  int64_t outer;    // how many times the rows pass over all points of a batch
  int64_t entries;  // points a batch
};

// rows[r] = table[where the layout says]; rows are contiguous. What names no row gives `fill`, and
// an IndexError in a mode with errors: here ...
void gather_points_cpu(const at::Tensor& table, const PointsLayout& layout, const FillPattern& fill,
                       const PointsSite& site, const at::Tensor& rows);
// ... and here at the next call, or at this one in sync mode (common/index_errors.h).
TORCH_OPS_CUDA_LAUNCHER(void gather_points_cuda(const at::Tensor& table, const PointsLayout& layout,
                                                const FillPattern& fill, const PointsSite& site,
                                                const at::Tensor& rows))

// table[where the layout says] = rows[r]. Of several rows for one place any is written, or some
// elements of each. On the CPU nothing is written where there is an error; on CUDA the row that it
// is about is dropped.
void put_points_cpu(const at::Tensor& table, const PointsLayout& layout, const PointsSite& site,
                    const at::Tensor& rows);
TORCH_OPS_CUDA_LAUNCHER(void put_points_cuda(const at::Tensor& table, const PointsLayout& layout,
                                             const PointsSite& site, const at::Tensor& rows))

// offsets[r] = where the layout says, or `none` where an entry names no row; errors are as above.
// int32 or int64, contiguous.
void write_offsets_cpu(const PointsLayout& layout, int64_t none, const PointsSite& site,
                       const at::Tensor& offsets);
TORCH_OPS_CUDA_LAUNCHER(void write_offsets_cuda(const PointsLayout& layout, int64_t none,
                                                const PointsSite& site, const at::Tensor& offsets))

}  // namespace torch_ops
