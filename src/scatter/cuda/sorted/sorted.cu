// Sums of sorted entries, and plans.
#include "scatter/cuda/sorted/sorted_launch.cuh"
#include "scatter/sum/ways.cuh"

namespace torch_ops {

template <class Value, class Result>
void sum_sorted(const ReduceCall<Value, Result>& call, const IndexErrorSite& errors) {
  with_shape(call.layout, [&](const auto& shape) {
    const auto entries = entries_in_order(call, shape, errors);
    constexpr int kWide = kVectorSize<Result>;  // a lane writes 16 bytes
    const auto total = [&](auto columns) {
      total_sorted<Sums<columns(), SumOf<Value>>>(call.values, call.result, shape, entries, {},
                                                  Result(0));
    };
    if (shape.inner % kWide == 0 && is_aligned(call.values, kWide * sizeof(Value))) {
      total(std::integral_constant<int, kWide>());
    } else {
      total(std::integral_constant<int, 1>());
    }
  });
}

#define INSTANTIATE(T) template void sum_sorted(const ReduceCall<T, T>&, const IndexErrorSite&);
TORCH_OPS_FOR_EACH_FLOAT(INSTANTIATE)
template void sum_sorted(const ReduceCall<Float16, float>&, const IndexErrorSite&);
template void sum_sorted(const ReduceCall<BFloat16, float>&, const IndexErrorSite&);

namespace kernels {

template <class Id>
void sort_entries(OnCuda on, const IndexArray& index, const RowLayout& layout, Id* rows, Id* order,
                  const IndexErrorSite& errors) {
  const HostScope scope(on.program);
  const sorted::Shape<Id> shape{layout.batch, layout.outer, layout.entries, layout.axis_size,
                                layout.inner};
  if (shape.all_entries() == 0) return;
  const IndexRule rule(IndexMode::kRaise, layout.axis_size);
  const SortedEntries<Id> entries = torch_ops::sort_entries(index, layout, rule, shape, errors);
  const auto copy = [&](Id* to, const Id* from) {
    TORCH_OPS_CUDA_CALL(cudaMemcpyAsync(to, from, shape.all_entries() * sizeof(Id),
                                        cudaMemcpyDeviceToDevice, current_stream()));
  };
  copy(rows, entries.keys);
  copy(order, entries.positions);
}
template void sort_entries(OnCuda, const IndexArray&, const RowLayout&, uint32_t*, uint32_t*,
                           const IndexErrorSite&);
template void sort_entries(OnCuda, const IndexArray&, const RowLayout&, uint64_t*, uint64_t*,
                           const IndexErrorSite&);

}  // namespace kernels
}  // namespace torch_ops
