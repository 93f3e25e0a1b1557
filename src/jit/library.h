// Shared objects of code that was compiled at run time, and the names in such code.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "common/torch/checks.h"

namespace torch_ops::jit {

// Loads a shared object from memory; never unloaded either.
void* load_host_library(std::string_view image);
// The address of a function in it.
void* host_symbol(void* library, const std::string& name);

// The C++ name behind a mangled one; none if it is not mangled.
std::optional<std::string> demangle(const std::string& name);

}  // namespace torch_ops::jit
