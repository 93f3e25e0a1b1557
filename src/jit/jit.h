// The parts of the module, each bound in its own file.
#pragma once

#include <pybind11/pybind11.h>

#include <string>

namespace torch_ops::jit {

void bind_library(pybind11::module_& m);
void bind_elementwise(pybind11::module_& m);
void bind_indexed(pybind11::module_& m);
void bind_reduction(pybind11::module_& m);
void bind_raw(pybind11::module_& m);

// A bool; a TypeError that names the argument for anything else.
bool bool_of(const std::string& callee, const char* name, const pybind11::handle& value);

}  // namespace torch_ops::jit
