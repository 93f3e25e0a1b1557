// Checks of arguments for every op. Each message has the argument's name (the text of the
// macro's parameter), its value and the allowed values.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>

#include <string>

namespace torch_ops {
// As Python prints it: "torch.float64", where a stream would write "Double".
inline std::string dtype_name(at::ScalarType dtype) {
  return std::string("torch.").append(c10::getDtypeNames(dtype).first);
}
}  // namespace torch_ops

#define CHECK_CUDA(tensor)                                                         \
  TORCH_CHECK((tensor).is_cuda(), #tensor " must be a CUDA tensor, but it is on ", \
              (tensor).device(),                                                   \
              ". Move it with " #tensor                                            \
              ".cuda(), or call the public "                                       \
              "function torch_ops.<op>, which takes CPU tensors too.")

#define CHECK_CONTIGUOUS(tensor)                                                                \
  TORCH_CHECK_VALUE((tensor).is_contiguous(), #tensor " must be contiguous, but it has shape ", \
                    (tensor).sizes(), " and strides ", (tensor).strides(),                      \
                    ". Pass " #tensor                                                           \
                    ".contiguous(), or call the public function "                               \
                    "torch_ops.<op>, which takes any strides.")

// The binding's direct `forward` and `backward` accept only such tensors.
#define CHECK_INPUT(tensor)   \
  do {                        \
    CHECK_CUDA(tensor);       \
    CHECK_CONTIGUOUS(tensor); \
  } while (0)

// RuntimeError, as torch's own mixed-device errors are.
#define CHECK_SAME_DEVICE(op, a, b)                                                         \
  TORCH_CHECK((a).device() == (b).device(), op,                                             \
              ": " #a " and " #b " must be on one device, but " #a " is on ", (a).device(), \
              " and " #b " is on ", (b).device(), ".")

#define CHECK_SAME_TYPE(op, a, b)                                                 \
  TORCH_CHECK_TYPE((a).scalar_type() == (b).scalar_type(), op,                    \
                   ": " #a " and " #b " must have one dtype, but " #a " is ",     \
                   ::torch_ops::dtype_name((a).scalar_type()), " and " #b " is ", \
                   ::torch_ops::dtype_name((b).scalar_type()), ".")

// Symbolic sizes are compared too.
#define CHECK_SAME_SHAPE(op, a, b)                                                               \
  TORCH_CHECK_VALUE((a).sym_sizes() == (b).sym_sizes(), op,                                      \
                    ": " #a " and " #b " must have one shape, but " #a " has ", (a).sym_sizes(), \
                    " and " #b " has ", (b).sym_sizes(), ".")

// float16, bfloat16, float32, float64: what AT_DISPATCH_FLOATING_TYPES_AND2 covers.
namespace torch_ops {
inline bool is_kernel_float(const at::Tensor& tensor) {
  const at::ScalarType dtype = tensor.scalar_type();
  return dtype == at::kFloat || dtype == at::kDouble || dtype == at::kHalf ||
         dtype == at::kBFloat16;
}
}  // namespace torch_ops

#define CHECK_FLOATING(op, tensor)                                                            \
  TORCH_CHECK_TYPE(::torch_ops::is_kernel_float(tensor), op,                                  \
                   ": " #tensor " must be float16, bfloat16, float32 or float64, but it is ", \
                   ::torch_ops::dtype_name((tensor).scalar_type()), ".")
