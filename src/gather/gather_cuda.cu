#include <ATen/Dispatch.h>

#include "common/index_errors.h"
#include "common/indexing.h"
#include "common/launch.cuh"
#include "gather/gather.h"
#include "gather/gather_launch.cuh"

namespace torch_ops {

void gather_cuda(const char* op, const at::Tensor& source, const at::Tensor& index,
                 const RowLayout& layout, const GatherPolicy& policy, const at::Tensor& output) {
  const c10::cuda::CUDAGuard guard(output.device());
  const IndexErrorSite errors = before_launch(op, index, layout, policy.rule.mode());
  if (output.numel() == 0) return;
  const void* from = source.const_data_ptr();
  void* to = output.mutable_data_ptr();
  const gather_launch::GatherCall call(from, to, source.element_size(), layout);
  const IndexView view{index.const_data_ptr(), static_cast<int>(index.element_size())};
  const auto launch = [&](const auto& entries) {
    call.launch(from, entries, view, to, policy, errors);
  };
  const bool from_end = policy.rule.mode() == IndexMode::kFromEnd;
  if (from_end && index.scalar_type() == at::kLong) {
    launch(FromEndIndex<int64_t>{{index.const_data_ptr<int64_t>()}, layout.axis_size});
  } else if (from_end && index.scalar_type() == at::kInt) {
    launch(FromEndIndex<int32_t>{{index.const_data_ptr<int32_t>()}, layout.axis_size});
  } else if (policy.rule.rewrites()) {
    launch(RuledIndex{view, policy});
  } else {
    TORCH_OPS_DISPATCH_INDEX(index, "gather",
                             [&] { launch(PlainIndex<index_t>{index.const_data_ptr<index_t>()}); });
  }
  after_launch();
}

}  // namespace torch_ops
