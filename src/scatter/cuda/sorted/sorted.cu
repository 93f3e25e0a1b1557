// Sums of sorted entries.
#include "scatter/cuda/sorted/sorted_launch.cuh"
#include "scatter/sum/ways.cuh"

namespace torch_ops {

template <class Value, class Result>
void sum_sorted(const ReduceCall<Value, Result>& call, const IndexErrorSite& errors) {
  with_shape(call.layout, [&](const auto& shape) {
    const auto entries = entries_in_order(call, shape, errors);
    // A lane writes up to 16 bytes.
    with_columns<kVectorSize<Result>>(call.values, shape.inner, [&](auto columns) {
      total_sorted<Sums<columns(), SumOf<Value>>>(call.values, call.result, shape, entries, {},
                                                  Result(0));
    });
  });
}

#define INSTANTIATE(T) template void sum_sorted(const ReduceCall<T, T>&, const IndexErrorSite&);
TORCH_OPS_FOR_EACH_FLOAT(INSTANTIATE)
template void sum_sorted(const ReduceCall<Float16, float>&, const IndexErrorSite&);
template void sum_sorted(const ReduceCall<BFloat16, float>&, const IndexErrorSite&);

}  // namespace torch_ops
