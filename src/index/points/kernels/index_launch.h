// Gathers and writes at points in the kernel library: index_cpu.cpp and index_cuda.cu. Only the
// entries' values are checked. No torch.
#pragma once

#include <cstdint>

#include "common/host/host_program.h"
#include "common/indexing/index_error.h"
#include "common/indexing/index_mode.h"
#include "index/points/kernels/points_layout.h"

namespace torch_ops::kernels {

// An entry that names no row is an error in a mode with errors. On the CPU the result gives the
// first: its row times kMaxCoordinates, plus the number of the coordinate; or kNoBadPoint. On CUDA
// it is recorded.

// rows[r] = table[where the layout says]; rows are contiguous. A point without a row gives `fill`.
TORCH_OPS_KERNELS_API int64_t gather_points(OnCpu on, const void* table, int64_t element_bytes,
                                            const PointsLayout& layout, const FillPattern& fill,
                                            void* rows);
TORCH_OPS_KERNELS_API void gather_points(OnCuda on, const void* table, int64_t element_bytes,
                                         const PointsLayout& layout, const FillPattern& fill,
                                         void* rows, const IndexErrorSite& errors);

// table[where the layout says] = rows[r]. Of several rows for one place any is written, or some
// elements of each. On the CPU nothing is written if there is an error; on CUDA, and in modes
// without errors, the row of a bad entry is dropped.
TORCH_OPS_KERNELS_API int64_t put_points(OnCpu on, void* table, int64_t element_bytes,
                                         const PointsLayout& layout, const void* rows);
TORCH_OPS_KERNELS_API void put_points(OnCuda on, void* table, int64_t element_bytes,
                                      const PointsLayout& layout, const void* rows,
                                      const IndexErrorSite& errors);

// offsets[r] = where the layout says, or `none` if an entry names no row. Offset is int32_t or
// int64_t.
template <class Offset>
TORCH_OPS_KERNELS_API int64_t write_offsets(OnCpu on, const PointsLayout& layout, Offset none,
                                            Offset* offsets);
template <class Offset>
TORCH_OPS_KERNELS_API void write_offsets(OnCuda on, const PointsLayout& layout, Offset none,
                                         Offset* offsets, const IndexErrorSite& errors);

}  // namespace torch_ops::kernels
