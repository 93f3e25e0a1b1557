// The module that is linked with torch's CUDA libraries: what it gives the others
// (common/torch/calls/torch_cuda.h), and what Python sees of it (torch_ops/errors.py).
#include <ATen/cuda/EmptyTensor.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/library.h>

#include "common/torch/calls/torch_cuda.h"
#include "torch_cuda/parts.h"

namespace torch_ops {
namespace {

void complete(HostProgram& program) {
  program.stream = [] { return static_cast<void*>(c10::cuda::getCurrentCUDAStream().stream()); };
  program.device_limits = [] {
    const cudaDeviceProp& device = *at::cuda::getCurrentDeviceProperties();
    return DeviceLimits{static_cast<int64_t>(device.sharedMemPerBlockOptin), device.l2CacheSize,
                        device.multiProcessorCount, 10 * device.major + device.minor};
  };
  program.allocate_on_device = [](int64_t bytes) {
    return c10::cuda::CUDACachingAllocator::raw_alloc(bytes);
  };
  program.release_on_device = [](void* memory) {
    c10::cuda::CUDACachingAllocator::raw_delete(memory);
  };
  program.throw_cuda_error = [](int error, const char* expression, const char* file, int line) {
    c10::cuda::c10_cuda_check_implementation(error, file, expression, line,
                                             /*include_device_assertions=*/false);
  };
}

at::Tensor empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides,
                         const at::TensorOptions& options) {
  return at::detail::empty_strided_cuda(sizes, strides, options);
}

bool is_capturing() {
  return c10::cuda::currentStreamCaptureStatusMayInitCtx() != c10::cuda::CaptureStatus::None;
}

void* stream(c10::DeviceIndex device) { return c10::cuda::getCurrentCUDAStream(device).stream(); }

int64_t address() {
  static const TorchCuda table{complete, empty_strided,        is_capturing,
                               stream,   &cuda_index_errors(), &cuda_gpu_code()};
  return reinterpret_cast<int64_t>(&table);
}

}  // namespace

// How the ops' modules find the table.
TORCH_LIBRARY_FRAGMENT(torch_ops, m) { m.def("_torch_cuda", address); }

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.doc() = "What only a torch with CUDA has: streams, memory, the errors that GPUs have recorded.";
  // Without the GIL: what the device waits for may need it.
  m.def("check_errors", &check_cuda_errors, "Waits for a device, or all, and raises its error",
        py::arg("device"), py::call_guard<py::gil_scoped_release>());
  m.def("set_sync", &set_sync_errors, "Sets whether each call waits", py::arg("sync"));
}

}  // namespace torch_ops
