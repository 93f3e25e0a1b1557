// Host code alone: loading and launching what NVRTC compiled.
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAGuard.h>

#include "jit/gpu_code.h"

#include "torch_cuda/parts.h"

namespace torch_ops::jit {
namespace {

// Loading is no part of what a capture in this or another thread records.
using RelaxedCapture = c10::cuda::CUDAStreamCaptureModeGuard;

// The names of the kernels of a library, as a message has them.
std::string kernel_names(Library library) {
  unsigned count = 0;
  auto* const handle = static_cast<cudaLibrary_t>(library);
  C10_CUDA_CHECK(cudaLibraryGetKernelCount(&count, handle));
  std::vector<cudaKernel_t> kernels(count);
  C10_CUDA_CHECK(cudaLibraryEnumerateKernels(kernels.data(), count, handle));
  std::string names;
  for (cudaKernel_t kernel : kernels) {
    const char* name = nullptr;
    C10_CUDA_CHECK(cudaFuncGetName(&name, kernel));
    names += (names.empty() ? "" : ", ") + std::string(name);
  }
  return names.empty() ? "none" : names;
}

int device_attribute(cudaDeviceAttr attribute, c10::DeviceIndex device) {
  int value = 0;
  C10_CUDA_CHECK(cudaDeviceGetAttribute(&value, attribute, device));
  return value;
}

class CudaGpuCode final : public GpuCode {
 public:
  Library load_library(const std::string& image) override {
    const RelaxedCapture relaxed(cudaStreamCaptureModeRelaxed);
    cudaLibrary_t library = nullptr;
    // c_str() ends in a zero, as PTX must; the runtime copies.
    const cudaError_t status =
        cudaLibraryLoadData(&library, image.c_str(), nullptr, nullptr, 0, nullptr, nullptr, 0);
    if (status != cudaSuccess) {
      (void)cudaGetLastError();
      TORCH_CHECK(false, "the compiled code does not load: ", cudaGetErrorString(status),
                  status == cudaErrorNoKernelImageForDevice
                      ? ". It was compiled for another architecture than this GPU's."
                      : ".");
    }
    return library;
  }

  Kernel get_kernel(Library library, const std::string& name) override {
    cudaKernel_t kernel = nullptr;
    const cudaError_t status =
        cudaLibraryGetKernel(&kernel, static_cast<cudaLibrary_t>(library), name.c_str());
    if (status == cudaErrorSymbolNotFound) {
      (void)cudaGetLastError();
      TORCH_CHECK_VALUE(false, "the compiled code has no kernel \"", name, "\"; it has ",
                        kernel_names(library), ".");
    }
    C10_CUDA_CHECK(status);
    return kernel;
  }

  Global get_global(Library library, const std::string& name, c10::DeviceIndex device) override {
    const RelaxedCapture relaxed(cudaStreamCaptureModeRelaxed);
    const c10::cuda::CUDAGuard guard(device);  // each has a copy of its own
    void* address = nullptr;
    size_t bytes = 0;
    const cudaError_t status =
        cudaLibraryGetGlobal(&address, &bytes, static_cast<cudaLibrary_t>(library), name.c_str());
    if (status == cudaErrorSymbolNotFound) {
      (void)cudaGetLastError();
      TORCH_CHECK_VALUE(false, "the compiled code has no variable \"", name,
                        "\". It must be declared __device__ or __constant__, and be neither static "
                        "nor in an unnamed namespace.");
    }
    C10_CUDA_CHECK(status);
    return {address, static_cast<int64_t>(bytes)};
  }

  KernelAttributes prepare_kernel(Kernel kernel, c10::DeviceIndex device) override {
    const RelaxedCapture relaxed(cudaStreamCaptureModeRelaxed);
    const c10::cuda::CUDAGuard guard(device);
    cudaFuncAttributes of_cuda{};
    C10_CUDA_CHECK(cudaFuncGetAttributes(&of_cuda, kernel));
    KernelAttributes attributes;
    attributes.num_regs = of_cuda.numRegs;
    attributes.shared_size_bytes = static_cast<int64_t>(of_cuda.sharedSizeBytes);
    attributes.local_size_bytes = static_cast<int64_t>(of_cuda.localSizeBytes);
    attributes.max_threads_per_block = of_cuda.maxThreadsPerBlock;
    attributes.max_dynamic_shared =
        device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, device) -
        attributes.shared_size_bytes;
    // More than 48 KB a block must be asked for; asked for once, it costs no launch anything.
    C10_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                        static_cast<int>(attributes.max_dynamic_shared)));
    size_t offset = 0, size = 0;
    for (size_t i = 0; cudaFuncGetParamInfo(kernel, i, &offset, &size) == cudaSuccess; ++i) {
      attributes.param_sizes.push_back(static_cast<int64_t>(size));
    }
    (void)cudaGetLastError();  // of the parameter after the last
    return attributes;
  }

  int suggest_block(Kernel kernel, c10::DeviceIndex device, int64_t shared_bytes,
                    int limit) override {
    const c10::cuda::CUDAGuard guard(device);
    const int warp = device_attribute(cudaDevAttrWarpSize, device);
    int best = warp, most = 0;
    for (int block = limit / warp * warp; block >= warp; block -= warp) {
      int blocks = 0;
      C10_CUDA_CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(
          &blocks, kernel, block, static_cast<size_t>(shared_bytes)));
      // Of equals the smaller one, down to 128: its blocks end, and are replaced, one by one.
      if (blocks * block > most || (blocks * block == most && block >= 128)) {
        best = block;
        most = blocks * block;
      }
    }
    return best;
  }

  int64_t count_resident_blocks(Kernel kernel, c10::DeviceIndex device, int64_t threads,
                                int64_t shared_bytes) override {
    const c10::cuda::CUDAGuard guard(device);
    int blocks = 0;
    C10_CUDA_CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(
        &blocks, kernel, static_cast<int>(threads), static_cast<size_t>(shared_bytes)));
    return blocks * count_multiprocessors(device);
  }

  void launch_kernel(Kernel kernel, c10::DeviceIndex device, const LaunchShape& shape, void* stream,
                     void** arguments) override {
    const c10::cuda::CUDAGuard guard(device);
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(shape.grid[0], shape.grid[1], shape.grid[2]);
    config.blockDim = dim3(shape.block[0], shape.block[1], shape.block[2]);
    config.dynamicSmemBytes = static_cast<size_t>(shape.shared_bytes);
    config.stream = static_cast<cudaStream_t>(stream);
    cudaLaunchAttribute attribute{};
    if (shape.cooperative) {
      attribute.id = cudaLaunchAttributeCooperative;
      attribute.val.cooperative = 1;
    } else {
      attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
      attribute.val.programmaticStreamSerializationAllowed = 1;
    }
    config.attrs = &attribute;
    config.numAttrs = shape.cooperative || shape.early ? 1 : 0;
    C10_CUDA_CHECK(cudaLaunchKernelExC(&config, kernel, arguments));
  }

  int64_t count_multiprocessors(c10::DeviceIndex device) override {
    return at::cuda::getDeviceProperties(device)->multiProcessorCount;
  }

  void wait_for_stream(void* stream, void* producer, c10::DeviceIndex device) override {
    if (stream == producer) return;
    const c10::cuda::CUDAGuard guard(device);
    cudaEvent_t event = nullptr;
    C10_CUDA_CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    const cudaError_t recorded = cudaEventRecord(event, static_cast<cudaStream_t>(producer));
    const cudaError_t waits = recorded == cudaSuccess
                                  ? cudaStreamWaitEvent(static_cast<cudaStream_t>(stream), event, 0)
                                  : recorded;
    C10_CUDA_CHECK(cudaEventDestroy(event));  // CUDA frees it once it has happened
    C10_CUDA_CHECK(waits);
  }
};

}  // namespace
}  // namespace torch_ops::jit

namespace torch_ops {

jit::GpuCode& cuda_gpu_code() {
  static jit::CudaGpuCode code;
  return code;
}

}  // namespace torch_ops
