// What only a torch with CUDA has. The module torch_cuda provides it, and is the
// only one linked with torch's CUDA libraries: the others work with every build of a torch version.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include "common/host/host_program.h"

namespace torch_ops {

class IndexErrors;  // common/gather_family/index_errors.h

namespace jit {
class GpuCode;  // jit/gpu_code.h
}

struct TorchCuda {
  // Fills in the parts of a host program that concern CUDA.
  void (*complete)(HostProgram& program);
  at::Tensor (*empty_strided)(at::IntArrayRef sizes, at::IntArrayRef strides,
                              const at::TensorOptions& options);
  // Whether the current stream captures a CUDA graph.
  bool (*is_capturing)();
  void* (*stream)(c10::DeviceIndex device);  // the current one, a cudaStream_t
  IndexErrors* index_errors;
  jit::GpuCode* gpu_code;
};

// Null if that module is not loaded: with a torch without CUDA, or without CUDA kernels.
inline const TorchCuda* find_torch_cuda() {
  static const auto* const found = []() -> const TorchCuda* {
    const auto op = c10::Dispatcher::singleton().findSchema({"torch_ops::_torch_cuda", ""});
    if (!op) return nullptr;
    // redispatch: modes and transforms around the first call have no effect.
    return reinterpret_cast<const TorchCuda*>(
        op->typed<int64_t()>().redispatch(c10::DispatchKeySet()));
  }();
  return found;
}

inline const TorchCuda& torch_cuda() {
  const TorchCuda* found = find_torch_cuda();
  TORCH_CHECK(found != nullptr,
              "this torch_ops was built without CUDA kernels, so it cannot take CUDA tensors. "
              "Install nvcc (CUDA 13), then build again in the folder of the sources: pip "
              "install --no-build-isolation -e . (python -m torch_ops shows the present build.)");
  return *found;
}

}  // namespace torch_ops
