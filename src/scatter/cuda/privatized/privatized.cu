#include "scatter/cuda/privatized/privatized_launch.cuh"
#include "scatter/sum/ways.cuh"

namespace torch_ops {

template <class Value, class Result>
void sum_privatized(const ReduceCall<Value, Result>& call, const PrivatizedCut& cut, bool in_place,
                    const IndexErrorSite& errors) {
  using Sum = SumOf<Value>;
  if constexpr (std::is_same_v<Sum, float>) {
    if (cut.vector > 1) {
      return total_privatized<privatized::Sums<PrivatizedCut::kVector, Sum>>(call, cut, {in_place},
                                                                             errors);
    }
  }
  total_privatized<privatized::Sums<1, Sum>>(call, cut, {in_place}, errors);
}

#define INSTANTIATE_TO(T, Result)                                                        \
  template void sum_privatized(const ReduceCall<T, Result>&, const PrivatizedCut&, bool, \
                               const IndexErrorSite&);
#define INSTANTIATE(T) INSTANTIATE_TO(T, T)
TORCH_OPS_FOR_EACH_SUMMED(INSTANTIATE)
// Sums that are not rounded.
INSTANTIATE_TO(Float16, float)
INSTANTIATE_TO(BFloat16, float)
INSTANTIATE_TO(uint8_t, uint32_t)
INSTANTIATE_TO(uint16_t, uint32_t)

}  // namespace torch_ops
