// What a gather on CUDA would do, for Python: for tests and `python -m torch_ops explain`.
#pragma once

#include <pybind11/pybind11.h>

namespace torch_ops {

void def_explain(pybind11::module_& m);

}  // namespace torch_ops
