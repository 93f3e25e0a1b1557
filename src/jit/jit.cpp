// What Python sees of kernels that were compiled at run time: torch_ops/jit/.
#include "jit/jit.h"

#include "jit/call/python_arguments.h"

#include <torch/csrc/utils/pybind.h>

namespace torch_ops::jit {
namespace py = pybind11;

bool bool_of(const std::string& callee, const char* name, const py::handle& value) {
  try {
    return value.cast<bool>();
  } catch (const py::cast_error&) {
    TORCH_CHECK_TYPE(false, callee, ": ", name, " must be a bool, but it is ",
                     py::repr(value).cast<std::string>(), ".");
  }
}

// What kernels of all kinds have.
void bind_signature(py::module_& m) {
  py::class_<Signature, std::shared_ptr<Signature>>(m, "Signature")
      .def_readonly("op_name", &Signature::op_name)
      .def("output_dtypes", &output_dtypes,
           "The dtypes of the outputs, for tensors in the order of their parameters",
           py::arg("tensors"), py::arg("numbers"), py::arg("positions"));
}

}  // namespace torch_ops::jit

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.doc() = "Loads, checks and launches kernels that were compiled at run time.";
  torch_ops::jit::bind_library(m);
  torch_ops::jit::bind_signature(m);
  torch_ops::jit::bind_elementwise(m);
  torch_ops::jit::bind_indexed(m);
  torch_ops::jit::bind_reduction(m);
  torch_ops::jit::bind_raw(m);
}
