#include "common/cuda/launch.cuh"
#include "common/indexing/index_view.cuh"
#include "scatter/cuda/small/small.cuh"
#include "scatter/sum/ways.cuh"

namespace torch_ops {
namespace {

template <bool sparse, int V, class Value>
void run(const ReduceCall<Value, Value>& call, const SmallCut& cut, const IndexErrorSite& errors) {
  using Sum = SumOf<Value>;
  auto* kernel = small::sum_kernel<sparse, V, Value, Sum>;
  const auto bytes = static_cast<int>(cut.bytes(sizeof(Sum)));
  allow_shared_bytes(kernel, bytes);
  const dim3 grid(static_cast<unsigned>(call.layout.slabs()), static_cast<unsigned>(cut.row_blocks),
                  static_cast<unsigned>(cut.strips));
  const bool zeroed = sparse && !cut.fills;
  if (zeroed) zero(call.result, call.result_count() * sizeof(Value), /*leave_shared=*/true);
  launch(zeroed, kernel, grid, cut.threads, bytes, call.values, IndexView{call.index}, call.result,
         call.layout, call.rule, cut, errors);
}

}  // namespace

template <class Value>
void sum_small(const ReduceCall<Value, Value>& call, const SmallCut& cut,
               const IndexErrorSite& errors) {
  // Integers are rare: a lane per value suffices for them.
  constexpr bool kFloat = !std::is_integral_v<Value>;
  constexpr int kWide = kFloat ? std::min<int>(kVectorSize<Value>, SmallCut::kColumns) : 1;
  const bool wide =
      call.layout.inner % kWide == 0 && is_aligned(call.values, kWide * sizeof(Value));
  auto* sum = wide ? run<false, kWide, Value> : run<false, 1, Value>;
  if (cut.sparse) {
    if constexpr (kFloat) {
      sum = wide ? run<true, kWide, Value> : run<true, 1, Value>;
    } else {
      fail_without_kernel("sparse");
    }
  }
  sum(call, cut, errors);
}

#define INSTANTIATE(T) \
  template void sum_small(const ReduceCall<T, T>&, const SmallCut&, const IndexErrorSite&);
TORCH_OPS_FOR_EACH_SUMMED(INSTANTIATE)

}  // namespace torch_ops
