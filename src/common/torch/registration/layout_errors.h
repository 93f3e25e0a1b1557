// Errors for tensors that kernels do not take: nested, sparse and quantized ones, those of MKL-DNN,
// and those on other devices. Jagged ones reach an op only where torch hands it their values
// (layout=torch.jagged).
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <string>
#include <string_view>

#include "common/torch/calls/callers.h"

namespace torch_ops {

// What a tensor is that no kernel takes, and what to do; empty for the others.
inline std::string refusal_of(const at::Tensor& tensor, bool takes_jagged) {
  if (!tensor.defined()) return "";
  if (tensor.is_nested()) {
    return takes_jagged ? "must be a dense tensor or a jagged one (layout=torch.jagged), but it is "
                          "a nested tensor of another layout."
                        : "must be a dense tensor, but it is a nested one. The values() of a "
                          "jagged tensor are dense.";
  }
  if (tensor.layout() != at::kStrided) {
    return c10::str("must be a dense tensor, but its layout is ", tensor.layout(),
                    ". Its to_dense() is dense.");
  }
  if (tensor.is_quantized()) {
    return "must be a dense tensor, but it is quantized. Its dequantize() is dense.";
  }
  const bool is_known = tensor.is_cpu() || tensor.is_cuda() || tensor.is_meta();
  return is_known ? ""
                  : c10::str("must be on the CPU or on a CUDA device, but its device is ",
                             tensor.device(), ".");
}

inline std::string refusal_of(const c10::IValue& value, bool takes_jagged) {
  if (value.isTensor()) return refusal_of(value.toTensor(), takes_jagged);
  if (!value.isList()) return "";
  for (const c10::IValue& each : value.toListRef()) {
    if (auto refusal = refusal_of(each, takes_jagged); !refusal.empty()) return refusal;
  }
  return "";
}

// For compositions, which may call torch's ops before a kernel of ours.
inline void check_dense(const char* op, const char* name, const at::Tensor& tensor) {
  if (tensor.layout() == at::kStrided && !tensor.is_nested() && !tensor.is_quantized()) return;
  TORCH_CHECK_TYPE(false, op, ": ", name, " ", refusal_of(tensor, /*takes_jagged=*/false));
}

inline void check_jagged_or_dense(std::string_view op, const char* name, const at::Tensor& tensor) {
  const std::string refusal = refusal_of(tensor, /*takes_jagged=*/true);
  TORCH_CHECK_TYPE(refusal.empty(), op, ": ", name, " ", refusal);
}

// Is it sparse, quantized, of MKL-DNN, or nested and not jagged?
inline bool has_other_layout(const at::Tensor& tensor) {
  const at::Layout layout = tensor.layout();
  if (layout == at::kStrided) return tensor.is_quantized() || tensor.is_nested();
  return layout != at::kJagged;
}

// In the place of an op's kernel for such tensors.
inline void refuse_layout(const c10::OperatorHandle& op, c10::DispatchKeySet,
                          torch::jit::Stack* stack) {
  const c10::FunctionSchema& schema = op.schema();
  const auto given = torch::jit::last(*stack, schema.arguments().size());
  std::string_view name = schema.name();
  name.remove_prefix(name.find("::") + 2);
  if (name[0] == '_') name.remove_prefix(1);  // an op that users' functions are made of
  for (size_t k = 0; k < given.size(); ++k) {
    if (schema.arguments()[k].name() == "name" && given[k].isString()) {
      name = given[k].toStringView();
    }
  }
  const bool takes_jagged = op.hasTag(at::Tag::pointwise) || name == "embedding";
  std::string_view which;
  std::string refusal;
  for (size_t k = 0; k < given.size() && refusal.empty(); ++k) {
    refusal = refusal_of(given[k], takes_jagged);
    which = schema.arguments()[k].name();
  }
  const indexing::Caller caller = indexing::names_of(name);
  if (which == "index") which = caller.index;
  if (which == "source") which = caller.table;
  TORCH_CHECK_TYPE(false, indexing::shown(name), ": ", which, " ", refusal);
}

}  // namespace torch_ops
