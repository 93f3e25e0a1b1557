// Checks of arguments for every op. Each message has the argument's name (of a macro, the text of
// its parameter), its value and the allowed values.
#pragma once

#include <ATen/MemoryOverlap.h>
#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>

#include <string>
#include <string_view>

#include "common/torch/calls/callers.h"

namespace torch_ops {
// As Python prints it: "torch.float64", where a stream would write "Double".
inline std::string dtype_name(at::ScalarType dtype) {
  return std::string("torch.").append(c10::getDtypeNames(dtype).first);
}

// The binding's direct `forward` and `backward` accept only such tensors.
inline void check_input(const char* name, const at::Tensor& tensor) {
  TORCH_CHECK(tensor.is_cuda(), name, " must be a CUDA tensor, but it is on ", tensor.device(),
              ". Move it with ", name,
              ".cuda(), or call the public function torch_ops.<op>, which takes CPU tensors too.");
  TORCH_CHECK_VALUE(tensor.is_contiguous(), name, " must be contiguous, but it has shape ",
                    tensor.sizes(), " and strides ", tensor.strides(), ". Pass ", name,
                    ".contiguous(), or call the public function torch_ops.<op>, which takes any "
                    "strides.");
}
#define CHECK_INPUT(tensor) ::torch_ops::check_input(#tensor, tensor)

// RuntimeError, as torch's own mixed-device errors are.
inline void check_one_device(std::string_view op, std::string_view a_name, const at::Tensor& a,
                             std::string_view b_name, const at::Tensor& b) {
  TORCH_CHECK(a.device() == b.device(), indexing::shown(op), ": ", a_name, " and ", b_name,
              " must be on one device, but ", a_name, " is on ", a.device(), " and ", b_name,
              " is on ", b.device(), ".");
}

inline void check_same_type(std::string_view op, std::string_view a_name, const at::Tensor& a,
                            std::string_view b_name, const at::Tensor& b) {
  TORCH_CHECK_TYPE(a.scalar_type() == b.scalar_type(), op, ": ", a_name, " and ", b_name,
                   " must have one dtype, but ", a_name, " is ", dtype_name(a.scalar_type()),
                   " and ", b_name, " is ", dtype_name(b.scalar_type()), ".");
}

// float16, bfloat16, float32, float64: what AT_DISPATCH_FLOATING_TYPES_AND2 covers.
inline bool is_kernel_float(const at::Tensor& tensor) {
  const at::ScalarType dtype = tensor.scalar_type();
  return dtype == at::kFloat || dtype == at::kDouble || dtype == at::kHalf ||
         dtype == at::kBFloat16;
}

inline void check_floating(std::string_view op, std::string_view name, const at::Tensor& tensor) {
  TORCH_CHECK_TYPE(is_kernel_float(tensor), op, ": ", name,
                   " must be float16, bfloat16, float32 or float64, but it is ",
                   dtype_name(tensor.scalar_type()), ".");
}

// Of a tensor that is written to.
inline void check_no_overlap(std::string_view op, std::string_view name, const at::Tensor& tensor) {
  TORCH_CHECK(
      tensor.layout() != at::kStrided || at::has_internal_overlap(tensor) != at::MemOverlap::Yes,
      op, ": elements of ", name, " must not share a single memory location, as those of an ",
      "expanded tensor do, but its shape is ", tensor.sym_sizes(), " and its strides are ",
      tensor.sym_strides(), ". Use ", name, ".clone().");
}

}  // namespace torch_ops
