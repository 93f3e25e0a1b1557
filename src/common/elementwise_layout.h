// The kernels of elementwise ops run over flat memory. This brings any tensor to that.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>

namespace torch_ops {

// `input` itself where it fills its memory without gaps or overlaps, in whatever order of axes;
// otherwise a copy that does, in the memory format that at::empty_like keeps.
inline at::Tensor dense(const at::Tensor& input) {
  if (input.is_non_overlapping_and_dense()) return input;
  return at::empty_like(input).copy_(input);
}

// `input` with the memory layout of `like`, a dense tensor of the same shape.
inline at::Tensor dense_like(const at::Tensor& input, const at::Tensor& like) {
  if (input.is_non_overlapping_and_dense() && input.strides() == like.strides()) return input;
  return at::empty_like(like, input.options()).copy_(input);
}

}  // namespace torch_ops
