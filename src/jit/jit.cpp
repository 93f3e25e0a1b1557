// What Python sees of kernels that were compiled at run time: torch_ops/jit/.
#include "jit/jit.h"

#include "jit/call/python_arguments.h"
#include "jit/gpu_code.h"
#include "jit/library.h"

#include <ATen/ops/from_blob.h>
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

// Addresses are integers in Python, which hands them back unlooked at.
void bind_library(py::module_& m) {
  m.def(
      "load_library",
      [](const py::bytes& image) {
        const std::string copy = image;
        const py::gil_scoped_release release;
        return reinterpret_cast<intptr_t>(gpu_code().load_library(copy));
      },
      "Loads a cubin or PTX; returns its handle", py::arg("image"));
  m.def(
      "get_kernel",
      [](intptr_t library, const std::string& name) {
        return reinterpret_cast<intptr_t>(
            gpu_code().get_kernel(reinterpret_cast<Library>(library), name));
      },
      "The handle of a kernel in a library", py::arg("library"), py::arg("name"));
  m.def(
      "get_global",
      [](intptr_t library, const std::string& name, int64_t device) {
        const auto index = static_cast<c10::DeviceIndex>(device);
        const Global found = gpu_code().get_global(reinterpret_cast<Library>(library), name, index);
        const c10::Device on(c10::kCUDA, index);
        return at::for_blob(found.address, {found.bytes})
            .options(at::TensorOptions().dtype(at::kByte).device(on))
            .target_device(on)
            .make_tensor();
      },
      "The bytes of a variable in a library, as a tensor", py::arg("library"), py::arg("name"),
      py::arg("device"));
  m.def(
      "wait_for_stream",
      [](intptr_t stream, intptr_t producer, int64_t device) {
        gpu_code().wait_for_stream(reinterpret_cast<void*>(stream),
                                   reinterpret_cast<void*>(producer),
                                   static_cast<c10::DeviceIndex>(device));
      },
      "Makes a stream wait for what is queued on another", py::arg("stream"), py::arg("producer"),
      py::arg("device"));
  m.def(
      "load_host_library",
      [](const py::bytes& image) {
        return reinterpret_cast<intptr_t>(load_host_library(std::string_view(image)));
      },
      "Loads a shared object from memory; returns its handle", py::arg("image"));
  m.def(
      "host_symbol",
      [](intptr_t library, const std::string& name) {
        return reinterpret_cast<intptr_t>(host_symbol(reinterpret_cast<void*>(library), name));
      },
      "The address of a function in a shared object", py::arg("library"), py::arg("name"));
  m.def("demangle", &demangle, "The C++ name behind a mangled one, or None", py::arg("name"));
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
