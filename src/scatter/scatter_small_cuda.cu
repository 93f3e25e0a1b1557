#include "common/index_errors.h"
#include "common/index_view.cuh"
#include "common/launch.cuh"
#include "scatter/scatter.h"
#include "scatter/scatter_small.cuh"

namespace torch_ops {
namespace {

template <bool sparse, int V, class Value, class Sum>
void launch(const at::Tensor& values, const at::Tensor& index, const RowLayout& layout,
            const IndexRule& rule, const SmallCut& cut, const at::Tensor& result,
            const IndexErrorSite& errors) {
  auto* kernel = small::sum_kernel<sparse, V, Value, Sum>;
  const auto bytes = static_cast<int>(cut.bytes(sizeof(Sum)));
  allow_shared_bytes(kernel, bytes);
  const dim3 grid(static_cast<unsigned>(layout.slabs()), static_cast<unsigned>(cut.row_blocks),
                  static_cast<unsigned>(cut.strips));
  const auto* from = static_cast<const Value*>(values.const_data_ptr());
  auto* to = static_cast<Value*>(result.mutable_data_ptr());
  const IndexView view{index.const_data_ptr(), static_cast<int>(index.element_size())};
  if (sparse && !cut.fills) {
    launch_early(kernel, grid, cut.threads, bytes, from, view, to, layout, rule, cut, errors);
  } else {
    TORCH_OPS_LAUNCH(kernel, grid, cut.threads, bytes, from, view, to, layout, rule, cut, errors);
  }
}

}  // namespace

void scatter_add_small_cuda(const char* op, const at::Tensor& values, const at::Tensor& index,
                            const RowLayout& layout, const IndexRule& rule, const SmallCut& cut,
                            const at::Tensor& result) {
  const c10::cuda::CUDAGuard guard(result.device());
  IndexErrorCall errors = before_launch(op, index, layout, rule.mode());
  TORCH_OPS_DISPATCH_VALUES(values.scalar_type(), [&] {
    // Integers are rare: a lane a value serves for them.
    constexpr bool kFloat = !std::is_integral_v<value_t>;
    constexpr int kWide = kFloat ? std::min<int>(kVectorSize<value_t>, SmallCut::kColumns) : 1;
    const bool wide =
        layout.inner % kWide == 0 && is_aligned(values.const_data_ptr(), kWide * sizeof(value_t));
    auto* run = wide ? launch<false, kWide, value_t, sum_t> : launch<false, 1, value_t, sum_t>;
    if (cut.sparse) {
      if constexpr (kFloat && sizeof(value_t) == 2) {
        run = wide ? launch<true, kWide, value_t, sum_t> : launch<true, 1, value_t, sum_t>;
      } else {
        fail_without_kernel("ScatterWay::kSparse");
      }
    }
    run(values, index, layout, rule, cut, result, errors);
  });
  errors.end();
}

}  // namespace torch_ops
