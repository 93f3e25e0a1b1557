#include <ATen/Dispatch.h>

#include "common/elementwise_cuda.cuh"
#include "common/elementwise_layout.h"
#include "relu/relu.h"
#include "relu/relu_kernels.h"

namespace torch_ops {

void relu_cuda(const at::Tensor& input, Slope slope, const at::Tensor& output,
               const at::Tensor& mask) {
  if (output.numel() == 0) return;
  const c10::cuda::CUDAGuard guard(output.device());
  const auto walk = make_walk(output, input);
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, input.scalar_type(), "relu", [&] {
    auto* const to = output.mutable_data_ptr<scalar_t>();
    const auto* const from = input.const_data_ptr<scalar_t>();
    with_activation<scalar_t>(slope, [&](auto activation) {
      if (mask.defined()) {
        map_cuda<Bits::kWrites>(activation, walk, mask.mutable_data_ptr<uint8_t>(), to, from);
      } else {
        map_cuda(activation, walk, nullptr, to, from);
      }
    });
  });
}

void relu_backward_cuda(const at::Tensor& grad_output, const at::Tensor& output, Slope slope,
                        const at::Tensor& grad_input) {
  if (grad_input.numel() == 0) return;
  const c10::cuda::CUDAGuard guard(grad_input.device());
  const auto walk = make_walk(grad_input, grad_output, output);
  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kHalf, at::kBFloat16, output.scalar_type(), "relu_backward", [&] {
        with_activation<scalar_t>(slope, [&](auto activation) {
          map_cuda(Backward(activation), walk, nullptr, grad_input.mutable_data_ptr<scalar_t>(),
                   grad_output.const_data_ptr<scalar_t>(), output.const_data_ptr<scalar_t>());
        });
      });
}

void relu_mask_backward_cuda(const at::Tensor& grad_output, const at::Tensor& mask, Slope slope,
                             const at::Tensor& grad_input) {
  if (grad_input.numel() == 0) return;
  const c10::cuda::CUDAGuard guard(grad_input.device());
  const auto walk = make_walk(grad_input, grad_output);
  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kHalf, at::kBFloat16, grad_output.scalar_type(), "relu_mask_backward", [&] {
        with_activation<scalar_t>(slope, [&](auto activation) {
          map_cuda<Bits::kReads>(
              BackwardByBit(activation), walk, const_cast<uint8_t*>(mask.const_data_ptr<uint8_t>()),
              grad_input.mutable_data_ptr<scalar_t>(), grad_output.const_data_ptr<scalar_t>());
        });
      });
}

}  // namespace torch_ops
