// The parts of the module, as torch_cuda.cpp puts them together.
#pragma once

#include <c10/core/Device.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <optional>

namespace at::cuda {

// torch's own. Their header, ATen/cuda/CUDAContextLight.h, includes those of cuBLAS and cuSPARSE,
// and these need headers that come with nvcc alone.
cudaDeviceProp* getCurrentDeviceProperties();
cudaDeviceProp* getDeviceProperties(c10::DeviceIndex device);

}  // namespace at::cuda

namespace torch_ops {

class IndexErrors;
namespace jit {
class GpuCode;
}

IndexErrors& cuda_index_errors();
jit::GpuCode& cuda_gpu_code();

// Does each call wait for its kernels, to raise their errors itself?
void set_sync_errors(bool sync);

// Waits for a device, or for all that have a record, and raises the error that is recorded there.
void check_cuda_errors(std::optional<int64_t> device);

}  // namespace torch_ops
