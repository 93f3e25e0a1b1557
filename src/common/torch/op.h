// A registered op, to be called from C++.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

namespace torch_ops {

// `name` without its namespace. Keep the handle in a static: the look-up takes a lock.
template <class Signature>
c10::TypedOperatorHandle<Signature> find_op(const char* name, const char* overload = "") {
  return c10::Dispatcher::singleton()
      .findSchemaOrThrow((std::string("torch_ops::") + name).c_str(), overload)
      .template typed<Signature>();
}

}  // namespace torch_ops
