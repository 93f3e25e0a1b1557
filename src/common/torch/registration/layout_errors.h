// Errors for nested tensors, which dense kernels do not take. Jagged ones reach an op only where
// torch hands it their values (layout=torch.jagged).
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <string>
#include <string_view>

#include "common/torch/calls/callers.h"

namespace torch_ops {

inline bool holds_nested(const c10::IValue& value) {
  if (value.isTensor()) return value.toTensor().defined() && value.toTensor().is_nested();
  if (!value.isList()) return false;
  for (const c10::IValue& each : value.toListRef()) {
    if (holds_nested(each)) return true;
  }
  return false;
}

// In the place of an op's kernel for nested tensors.
inline void refuse_nested(const c10::OperatorHandle& op, c10::DispatchKeySet,
                          torch::jit::Stack* stack) {
  const c10::FunctionSchema& schema = op.schema();
  const auto given = torch::jit::last(*stack, schema.arguments().size());
  std::string_view name = schema.name();
  name.remove_prefix(name.find("::") + 2);
  if (name[0] == '_') name.remove_prefix(1);  // an op that users' functions are made of
  std::string_view which;
  for (size_t k = 0; k < given.size(); ++k) {
    const std::string& argument = schema.arguments()[k].name();
    if (argument == "name" && given[k].isString()) name = given[k].toStringView();
    if (which.empty() && holds_nested(given[k])) which = argument;
  }
  const indexing::Caller caller = indexing::names_of(name);
  if (which == "index") which = caller.index;
  if (which == "source") which = caller.table;
  const bool takes_jagged = op.hasTag(at::Tag::pointwise) || name == "embedding";
  TORCH_CHECK_TYPE(false, indexing::shown(name), ": ", which,
                   takes_jagged ? " must be a dense tensor or a jagged one (layout=torch.jagged), "
                                  "but it is a nested tensor of another layout."
                                : " must be a dense tensor, but it is a nested one. The values() "
                                  "of a jagged tensor are dense.");
}

}  // namespace torch_ops
