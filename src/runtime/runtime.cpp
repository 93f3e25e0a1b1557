// What Python sees of the runtime: torch_ops/errors.py.
#include "runtime/runtime.h"

#include <torch/csrc/utils/pybind.h>

namespace torch_ops {

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.doc() = "The state that all ops share: the errors that GPUs have recorded.";
  // Without the GIL: what the device waits for may need it.
  m.def("check_errors", &check_cuda_errors, "Waits for a device, or all, and raises its error",
        py::arg("device"), py::call_guard<py::gil_scoped_release>());
  m.def(
      "set_sync", [](bool sync) { sync_errors = sync; }, "Sets whether each call waits",
      py::arg("sync"));
  m.def("is_sync", [] { return sync_errors.load(); }, "Tells whether each call waits");
}

}  // namespace torch_ops
