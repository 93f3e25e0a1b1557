// Libraries of code that was compiled at run time, for GPUs and for the CPU, and the names in it.
#include <ATen/ops/from_blob.h>
#include <cxxabi.h>
#include <dlfcn.h>
#include <sys/mman.h>
#include <torch/csrc/utils/pybind.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>

#include "common/torch/calls/checks.h"
#include "jit/gpu_code.h"
#include "jit/jit.h"

namespace torch_ops::jit {
namespace py = pybind11;
namespace {

// dlopen gives back an earlier library whose path was spelled the same, and the numbers of closed
// files are used again. So each path is spelled in a way of its own, by the bits of a counter.
std::string unique_detour() {
  static std::atomic<uint64_t> counter{0};
  std::string detour;
  for (uint64_t bits = ++counter; bits != 0; bits >>= 1) {
    detour += (bits & 1) != 0 ? ".//" : "./";
  }
  return detour;
}

// Never unloaded, as libraries for GPUs are not.
void* load_host_library(std::string_view image) {
  // A file that has no name: nobody can change it or take it away while it is mapped.
  const int file = memfd_create("torch_ops_jit", MFD_CLOEXEC);
  TORCH_CHECK(file >= 0, "torch_ops.jit: memfd_create fails: ", std::strerror(errno));
  size_t written = 0;
  while (written < image.size()) {
    const ssize_t count = write(file, image.data() + written, image.size() - written);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      const int error = errno;
      close(file);
      TORCH_CHECK(false, "torch_ops.jit: writing a kernel to memory fails: ", std::strerror(error));
    }
    written += static_cast<size_t>(count);
  }
  const std::string path = "/proc/self/fd/" + unique_detour() + std::to_string(file);
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  const char* error = library == nullptr ? dlerror() : nullptr;
  close(file);
  TORCH_CHECK(library != nullptr, "torch_ops.jit: a kernel does not load: ",
              error != nullptr ? error : "dlopen gives no reason");
  return library;
}

void* host_symbol(void* library, const std::string& name) {
  void* address = dlsym(library, name.c_str());
  TORCH_CHECK_VALUE(address != nullptr, "the compiled code has no function \"", name, "\".");
  return address;
}

std::optional<std::string> demangle(const std::string& name) {
  int status = 0;
  char* const text = abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status);
  if (status != 0) return std::nullopt;
  std::string demangled = text;
  std::free(text);
  return demangled;
}

}  // namespace

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
