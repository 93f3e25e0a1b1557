// What a call of a sum on CUDA would do, for Python: for tests, documents and
// `python -m torch_ops explain`.
#pragma once

#include <pybind11/pybind11.h>

namespace torch_ops {

void def_explain(pybind11::module_& m);

}  // namespace torch_ops
