#include <ATen/Dispatch.h>

#include "common/index_errors.h"
#include "common/indexing.h"
#include "common/launch.cuh"
#include "scatter/along.h"
#include "scatter/along_atomic.cuh"
#include "scatter/scatter.h"

namespace torch_ops {
namespace {

IndexErrorCall begin(const at::Tensor& index, const ElementLayout& layout, const IndexRule& rule) {
  // A position of the index is its row.
  RowLayout rows{};
  rows.outer = 1;
  rows.entries = layout.count;
  rows.axis_size = layout.axis_size;
  return before_launch("scatter_elements_add", index, rows, rule.mode());
}

}  // namespace

void add_along_cuda(const at::Tensor& values, const at::Tensor& index, const ElementLayout& layout,
                    const IndexRule& rule, const at::Tensor& sums) {
  const c10::cuda::CUDAGuard guard(sums.device());
  IndexErrorCall errors = begin(index, layout, rule);
  const IndexView entries{index.const_data_ptr(), static_cast<int>(index.element_size())};
  const bool wide = sums.numel() > UINT32_MAX;
  const int64_t l2_bytes = current_device_limits().l2_bytes;
  TORCH_OPS_DISPATCH_VALUES(values.scalar_type(), [&] {
    const auto* from = static_cast<const value_t*>(values.const_data_ptr());
    auto* to = static_cast<sum_t*>(sums.mutable_data_ptr());
    for_each_part(layout, ElementGrid::kMaxPart, [&](const ElementLayout& part, auto offsets) {
      const atomic::AlongCall call(part, offsets.position, rule, wide, sizeof(sum_t), l2_bytes);
      const auto launch = [&](auto place) {
        using Place = decltype(place);
        auto* kernel = call.unroll == atomic::kManyAlong
                           ? atomic::add_along_kernel<atomic::kManyAlong, value_t, sum_t, Place>
                           : atomic::add_along_kernel<atomic::kFewAlong, value_t, sum_t, Place>;
        TORCH_OPS_LAUNCH(kernel, call.blocks(), call.threads(), 0, from + offsets.values,
                         entries.from(offsets.index), to + offsets.table, ElementGrid(part), call,
                         errors);
      };
      part.fits_32_bits() ? launch(uint32_t{}) : launch(int64_t{});
    });
  });
  errors.end();
}

void find_places_cuda(const at::Tensor& index, const ElementLayout& layout, const IndexRule& rule,
                      int64_t nowhere, const at::Tensor& places) {
  const c10::cuda::CUDAGuard guard(places.device());
  IndexErrorCall errors = begin(index, layout, rule);
  auto* to = places.mutable_data_ptr<int64_t>();
  TORCH_OPS_DISPATCH_INDEX(index, "scatter_elements_add", [&] {
    const index_t* entries = index.const_data_ptr<index_t>();
    for_each_part(layout, ElementGrid::kMaxPart, [&](const ElementLayout& part, auto offsets) {
      TORCH_OPS_LAUNCH(atomic::find_places_kernel<index_t>, grid_x(part.count, kThreads), kThreads,
                       0, entries + offsets.index, to + offsets.position, offsets.table, nowhere,
                       offsets.position, rule, ElementGrid(part), errors);
    });
  });
  errors.end();
}

}  // namespace torch_ops
