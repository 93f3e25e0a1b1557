#include "common/cuda/launch.cuh"
#include "scatter/cuda/elements/along.cuh"
#include "scatter/scatter_launch.h"
#include "scatter/sum/ways.cuh"

namespace torch_ops::kernels {

template <class Value>
void add_along(OnCuda on, const AlongCall<Value>& call, const IndexErrorSite& errors) {
  using Sum = SumOf<Value>;
  const HostScope scope(on.program);
  zero(call.sums, call.sums_count * sizeof(Sum));
  const IndexView entries{call.index};
  const bool wide = call.sums_count > UINT32_MAX;
  const DeviceLimits device = current_device_limits();
  for_each_part(call.layout, ElementGrid::kMaxPart, [&](const ElementLayout& part, auto offsets) {
    const atomic::AlongCall cut(part, offsets.position, call.rule, wide, sizeof(Sum), device);
    const auto launch = [&](auto place) {
      using Place = decltype(place);
      auto* kernel = cut.unroll == atomic::kManyAlong
                         ? atomic::add_along_kernel<atomic::kManyAlong, Value, Sum, Place>
                         : atomic::add_along_kernel<atomic::kFewAlong, Value, Sum, Place>;
      TORCH_OPS_LAUNCH(kernel, cut.blocks(), cut.threads(), 0, call.values + offsets.values,
                       entries.from(offsets.index), call.sums + offsets.table, ElementGrid(part),
                       cut, errors);
    };
    part.fits_32_bits() ? launch(uint32_t{}) : launch(int64_t{});
  });
}

#define INSTANTIATE(T) template void add_along(OnCuda, const AlongCall<T>&, const IndexErrorSite&);
TORCH_OPS_FOR_EACH_SUMMED(INSTANTIATE)

void find_places(OnCuda on, const IndexArray& index, const ElementLayout& layout,
                 const IndexRule& rule, int64_t nowhere, int64_t* places,
                 const IndexErrorSite& errors) {
  const HostScope scope(on.program);
  dispatch_index(index, [&](const auto* entries) {
    using Index = std::remove_const_t<std::remove_pointer_t<decltype(entries)>>;
    for_each_part(layout, ElementGrid::kMaxPart, [&](const ElementLayout& part, auto offsets) {
      TORCH_OPS_LAUNCH(atomic::find_places_kernel<Index>, grid_x(part.count, kThreads), kThreads, 0,
                       entries + offsets.index, places + offsets.position, offsets.table, nowhere,
                       offsets.position, rule, ElementGrid(part), errors);
    });
  });
}

}  // namespace torch_ops::kernels
