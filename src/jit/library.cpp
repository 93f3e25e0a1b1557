// Shared objects from memory, and the names in compiled code.
#include "jit/library.h"

#include <cxxabi.h>
#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>

namespace torch_ops::jit {
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

}  // namespace

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

}  // namespace torch_ops::jit
