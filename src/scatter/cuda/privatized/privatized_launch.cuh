// Launches the kernels of privatized.cuh on a grid. No torch.
#pragma once

#include "common/cuda/launch.cuh"
#include "common/cuda/scratch.h"
#include "scatter/cuda/privatized/privatized.cuh"
#include "scatter/scatter_launch.h"

namespace torch_ops {

// Writes all totals of a call that the cut fits. Total has as many columns as a lane of the cut.
template <class Total, class Value, class Result>
void total_privatized(const ReduceCall<Value, Result>& call, const PrivatizedCut& cut,
                      typename Total::Options options, const IndexErrorSite& errors) {
  using Column = typename Total::Column;
  const RowLayout& layout = call.layout;
  auto* kernel = privatized::total_kernel<Total, Value, Result>;
  allow_shared_bytes(kernel, cut.shared_bytes);
  const DeviceScratch memory(cut.scratch);
  const dim3 grid(static_cast<unsigned>(layout.slabs() * cut.parts),
                  static_cast<unsigned>(cut.strips));
  TORCH_OPS_LAUNCH(kernel, grid, cut.threads, cut.shared_bytes, call.values, IndexView{call.index},
                   call.result, static_cast<Total*>(memory.get()), layout, call.rule, cut, options,
                   errors);
  if (cut.parts == 1) return;
  // Few lanes per column if there are few parts.
  int lanes = 1;
  while (lanes < 16 && 8 * lanes < cut.parts) lanes *= 2;
  const int columns = privatized::kJoinThreads / lanes;
  const int64_t slab_columns = layout.axis_size * layout.inner;
  launch_early(privatized::join_kernel<Column, Result>,
               grid_x(layout.slabs() * slab_columns, columns), dim3(columns, lanes),
               privatized::kJoinThreads * sizeof(Column), static_cast<const Column*>(memory.get()),
               call.result, layout.slabs(), slab_columns, cut.parts, options);
}

}  // namespace torch_ops
