#include "common/index_errors.h"
#include "common/indexing.h"
#include "common/launch.cuh"
#include "gather/gather.h"
#include "gather/gather_launch.cuh"

namespace torch_ops {

void gather_cuda(const char* op, const at::Tensor& source, const at::Tensor& index,
                 const RowLayout& layout, const GatherPolicy& policy, const at::Tensor& output) {
  const c10::cuda::CUDAGuard guard(output.device());
  IndexErrorCall errors = before_launch(op, index, layout, policy.rule.mode());
  if (output.numel() == 0) return;
  const void* from = source.const_data_ptr();
  void* to = output.mutable_data_ptr();
  const gather_launch::GatherCall call(from, to, source.element_size(), layout);
  const RuledIndex any{{index.const_data_ptr(), static_cast<int>(index.element_size())}, policy};
  const auto launch = [&](const auto& entries) { call.launch(from, entries, any, to, errors); };
  const auto launch_typed = [&](auto zero) {
    using index_t = decltype(zero);
    const PlainIndex<index_t> plain{index.const_data_ptr<index_t>()};
    if (policy.rule.mode() == IndexMode::kFromEnd) {
      launch(FromEndIndex<index_t>{plain, layout.axis_size});
    } else {
      launch(plain);
    }
  };
  const bool simple = !policy.rule.rewrites() || policy.rule.mode() == IndexMode::kFromEnd;
  if (simple && index.scalar_type() == at::kLong) {
    launch_typed(int64_t{});
  } else if (simple && index.scalar_type() == at::kInt) {
    launch_typed(int32_t{});
  } else {
    launch(any);
  }
  errors.end();
}

}  // namespace torch_ops
