#include <ATen/Dispatch.h>

#include "common/index_errors.h"
#include "common/indexing.h"
#include "common/launch.cuh"
#include "scatter/along.h"
#include "scatter/along_atomic.cuh"
#include "scatter/scatter.h"

namespace torch_ops {
namespace {

IndexErrorSite begin(const at::Tensor& index, const ElementLayout& layout, const IndexRule& rule) {
  // A position of the index is its row.
  RowLayout rows{};
  rows.outer = 1;
  rows.entries = layout.count;
  rows.axis_size = layout.axis_size;
  return before_launch("scatter_elements_add", index, rows, rule.mode());
}

// How many elements lie side by side that differ in other coordinates than that on the axis.
int64_t count_columns(const ElementLayout& layout) {
  int64_t columns = 1;
  for (int d = layout.axis + 1; d < layout.rank; ++d) columns *= layout.sizes[d];
  return columns;
}

// How a launch deals out the elements of `layout`. Lanes that are neighbours can go to one place
// where there are fewer columns than lanes in a warp.
atomic::AlongCall deal_out(const ElementLayout& layout, int64_t position, const IndexRule& rule,
                           bool wide) {
  constexpr int64_t kLanes = 32;
  const int64_t columns = count_columns(layout);
  const bool merge = layout.axis >= 0 && columns < kLanes;
  const bool by_column = !merge && columns * atomic::kUnroll <= layout.count;
  const int64_t step = by_column ? columns : int64_t{atomic::kThreads};
  // Several rounds where there is work for all of the GPU many times over.
  constexpr int64_t kRounds = 8, kLanesWanted = int64_t{1} << 19;
  const int64_t most = layout.count / std::max(step * atomic::kUnroll, kLanesWanted);
  const int64_t rounds = by_column ? std::clamp<int64_t>(most, 1, kRounds) : 1;
  return {position,
          rule,
          merge,
          wide,
          static_cast<uint32_t>(step),
          FastDivisor(static_cast<uint32_t>(step)),
          static_cast<uint32_t>(rounds)};
}

// The threads of such a launch: of whole groups of step * kUnroll * rounds elements.
int64_t count_threads(const ElementLayout& layout, const atomic::AlongCall& call) {
  return ceil_div(layout.count, int64_t{call.step} * atomic::kUnroll * call.rounds) * call.step;
}

}  // namespace

void add_along_cuda(const at::Tensor& values, const at::Tensor& index, const ElementLayout& layout,
                    const IndexRule& rule, const at::Tensor& sums) {
  const c10::cuda::CUDAGuard guard(sums.device());
  const IndexErrorSite errors = begin(index, layout, rule);
  const IndexView entries{index.const_data_ptr(), static_cast<int>(index.element_size())};
  const bool wide = sums.numel() > UINT32_MAX;
  TORCH_OPS_DISPATCH_VALUES(values.scalar_type(), [&] {
    const auto* from = static_cast<const value_t*>(values.const_data_ptr());
    auto* to = static_cast<sum_t*>(sums.mutable_data_ptr());
    for_each_part(layout, ElementGrid::kMaxPart, [&](const ElementLayout& part, auto offsets) {
      auto* kernel = part.fits_32_bits() ? atomic::add_along_kernel<value_t, sum_t, uint32_t>
                                         : atomic::add_along_kernel<value_t, sum_t, int64_t>;
      const atomic::AlongCall call = deal_out(part, offsets.position, rule, wide);
      TORCH_OPS_LAUNCH(kernel, grid_x(count_threads(part, call), atomic::kThreads),
                       atomic::kThreads, 0, from + offsets.values, entries.from(offsets.index),
                       to + offsets.table, ElementGrid(part), call, errors);
    });
  });
  after_launch();
}

void find_places_cuda(const at::Tensor& index, const ElementLayout& layout, const IndexRule& rule,
                      int64_t nowhere, const at::Tensor& places) {
  const c10::cuda::CUDAGuard guard(places.device());
  const IndexErrorSite errors = begin(index, layout, rule);
  auto* to = places.mutable_data_ptr<int64_t>();
  TORCH_OPS_DISPATCH_INDEX(index, "scatter_elements_add", [&] {
    const index_t* entries = index.const_data_ptr<index_t>();
    for_each_part(layout, ElementGrid::kMaxPart, [&](const ElementLayout& part, auto offsets) {
      TORCH_OPS_LAUNCH(atomic::find_places_kernel<index_t>, grid_x(part.count, kThreads), kThreads,
                       0, entries + offsets.index, to + offsets.position, offsets.table, nowhere,
                       ElementGrid(part), (atomic::AlongCall{offsets.position, rule}), errors);
    });
  });
  after_launch();
}

}  // namespace torch_ops
