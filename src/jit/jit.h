// The parts of the module, each bound in its own file.
#pragma once

#include <pybind11/pybind11.h>

namespace torch_ops::jit {

void bind_library(pybind11::module_& m);
void bind_elementwise(pybind11::module_& m);
void bind_reduction(pybind11::module_& m);
void bind_raw(pybind11::module_& m);

}  // namespace torch_ops::jit
