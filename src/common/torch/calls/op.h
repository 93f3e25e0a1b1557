// A registered op, to be called from C++.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>
#include <string>
#include <string_view>

namespace torch_ops {

// `name` without its namespace, but with the overload's: "scatter.plan". Keep the handle in a
// static: the look-up takes a lock.
template <class Signature>
c10::TypedOperatorHandle<Signature> find_op(std::string_view name) {
  const size_t dot = std::min(name.find('.'), name.size());
  const std::string op = std::string("torch_ops::").append(name.substr(0, dot));
  const std::string overload(name.substr(std::min(dot + 1, name.size())));
  return c10::Dispatcher::singleton()
      .findSchemaOrThrow(op.c_str(), overload.c_str())
      .template typed<Signature>();
}

}  // namespace torch_ops
