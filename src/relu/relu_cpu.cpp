#include <ATen/Dispatch.h>

#include "common/elementwise_cpu.h"
#include "common/elementwise_layout.h"
#include "relu/relu.h"
#include "relu/relu_kernels.h"
#include "relu/relu_masked.h"

namespace torch_ops {
namespace {

// Calls loop(simd, begin, end) over parts of a walk that share no byte of a mask.
template <class Loop>
void for_each_mask_part(int64_t numel, Loop loop) {
  const Simd simd = cpu_simd();
  const int64_t blocks = (numel + kPiece - 1) / kPiece;
  at::parallel_for(0, blocks, kElementsPerTask / kPiece, [&](int64_t begin, int64_t end) {
    loop(simd, begin * kPiece, std::min(end * kPiece, numel));
  });
}

}  // namespace

void relu_cpu(const at::Tensor& input, Slope slope, const at::Tensor& output,
              const at::Tensor& mask) {
  if (output.numel() == 0) return;
  const auto walk = make_walk(output, input);
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, input.scalar_type(), "relu", [&] {
    auto* const to = output.mutable_data_ptr<scalar_t>();
    const auto* const from = input.const_data_ptr<scalar_t>();
    with_activation<scalar_t>(slope, [&](auto activation) {
      if (!mask.defined()) return map_cpu(activation, walk, to, from);
      auto* const bits = mask.mutable_data_ptr<uint8_t>();
      for_each_mask_part(walk.numel, [&](Simd simd, int64_t begin, int64_t end) {
        write_masked(simd, activation, walk, begin, end, as_storage(to), as_storage(from), bits);
      });
    });
  });
}

void relu_backward_cpu(const at::Tensor& grad_output, const at::Tensor& output, Slope slope,
                       const at::Tensor& grad_input) {
  if (grad_input.numel() == 0) return;
  const auto walk = make_walk(grad_input, grad_output, output);
  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kHalf, at::kBFloat16, output.scalar_type(), "relu_backward", [&] {
        with_activation<scalar_t>(slope, [&](auto activation) {
          map_cpu(Backward(activation), walk, grad_input.mutable_data_ptr<scalar_t>(),
                  grad_output.const_data_ptr<scalar_t>(), output.const_data_ptr<scalar_t>());
        });
      });
}

void relu_mask_backward_cpu(const at::Tensor& grad_output, const at::Tensor& mask, Slope slope,
                            const at::Tensor& grad_input) {
  if (grad_input.numel() == 0) return;
  const auto walk = make_walk(grad_input, grad_output);
  const auto* const bits = mask.const_data_ptr<uint8_t>();
  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kHalf, at::kBFloat16, grad_output.scalar_type(), "relu_mask_backward", [&] {
        auto* const to = grad_input.mutable_data_ptr<scalar_t>();
        const auto* const from = grad_output.const_data_ptr<scalar_t>();
        with_activation<scalar_t>(slope, [&](auto activation) {
          for_each_mask_part(walk.numel, [&](Simd simd, int64_t begin, int64_t end) {
            read_masked(simd, activation, walk, begin, end, as_storage(to), as_storage(from), bits);
          });
        });
      });
}

}  // namespace torch_ops
