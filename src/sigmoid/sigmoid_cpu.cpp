#include <ATen/Dispatch.h>

#include "common/elementwise_cpu.h"
#include "common/elementwise_layout.h"
#include "sigmoid/sigmoid.h"
#include "sigmoid/sigmoid_float32.h"
#include "sigmoid/sigmoid_kernels.h"

namespace torch_ops {

void sigmoid_cpu(const at::Tensor& input, const at::Tensor& output) {
  if (output.numel() == 0) return;
  const auto walk = make_walk(output, input);
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, input.scalar_type(), "sigmoid", [&] {
    map_cpu(CpuSigmoid<scalar_t>(), walk, output.mutable_data_ptr<scalar_t>(),
            input.const_data_ptr<scalar_t>());
  });
}

void sigmoid_backward_cpu(const at::Tensor& grad_output, const at::Tensor& output,
                          const at::Tensor& grad_input) {
  if (grad_input.numel() == 0) return;
  const auto walk = make_walk(grad_input, grad_output, output);
  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kHalf, at::kBFloat16, output.scalar_type(), "sigmoid_backward", [&] {
        map_cpu(SigmoidBackward(), walk, grad_input.mutable_data_ptr<scalar_t>(),
                grad_output.const_data_ptr<scalar_t>(), output.const_data_ptr<scalar_t>());
      });
}

}  // namespace torch_ops
