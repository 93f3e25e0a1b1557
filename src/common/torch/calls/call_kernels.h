// How the bindings call the kernel library: torch as the host program (common/host/host_program.h),
// the device of a tensor, and pointers to its values as the kernels' types.
#pragma once

#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <ATen/core/Tensor.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Exception.h>
#include <c10/util/Half.h>

#include <string>
#include <type_traits>

#include "common/host/float16.h"
#include "common/host/host_program.h"
#include "common/torch/calls/torch_cuda.h"

namespace torch_ops {

inline const HostProgram& torch_program() {
  static const HostProgram program = [] {
    HostProgram made{};
    made.num_threads = [] { return int64_t{at::get_num_threads()}; };
    made.run_parts = [](int64_t parts, void (*part)(void*, int64_t), void* context) {
      at::parallel_for(0, parts, 1, [&](int64_t begin, int64_t end) {
        for (int64_t n = begin; n < end; ++n) part(context, n);
      });
    };
    // torch's own choice: the CPU's instruction set, or less if the variable ATEN_CPU_CAPABILITY
    // (default, avx2, avx512) says so.
    made.simd = [] {
      static const Simd simd = [] {
        const std::string capability = at::get_cpu_capability();
        if (capability == "AVX512") return Simd::kAvx512;
        return capability == "AVX2" ? Simd::kAvx2 : Simd::kBaseline;
      }();
      return simd;
    };
    made.allocate = [](int64_t bytes) { return c10::GetCPUAllocator()->raw_allocate(bytes); };
    made.release = [](void* memory) { c10::GetCPUAllocator()->raw_deallocate(memory); };
    if (const TorchCuda* cuda = find_torch_cuda()) cuda->complete(made);
    return made;
  }();
  return program;
}

// No kernels at all: for a Meta kernel.
struct OnMeta {};

// Calls use(on) for kernels on `tensor`'s device, which is of the kind that On names, and current
// meanwhile; does nothing on Meta. `use` is a generic lambda, so that a build without CUDA needs
// no kernels of CUDA from the library.
template <class On, class Use>
void with_kernels([[maybe_unused]] const at::Tensor& tensor, Use&& use) {
  if constexpr (std::is_same_v<On, OnCpu>) {
    use(OnCpu{torch_program()});
  } else if constexpr (std::is_same_v<On, OnCuda>) {
    torch_cuda();  // raises an error in a build without CUDA kernels
#ifdef TORCH_OPS_WITH_CUDA
    const c10::DeviceGuard guard(tensor.device());
    use(OnCuda{torch_program()});
#endif
  }
}

// The kernels' type for torch's: the 16-bit floats are plain storage there.
template <class T>
struct KernelTypeOf {
  using type = T;
};
template <>
struct KernelTypeOf<c10::Half> {
  using type = Float16;
};
template <>
struct KernelTypeOf<c10::BFloat16> {
  using type = BFloat16;
};

// A tensor's values, to read and to write, where T is its type in torch.
template <class T>
const auto* input_of(const at::Tensor& tensor) {
  return reinterpret_cast<const typename KernelTypeOf<T>::type*>(tensor.const_data_ptr<T>());
}
template <class T>
auto* output_of(const at::Tensor& tensor) {
  return reinterpret_cast<typename KernelTypeOf<T>::type*>(tensor.mutable_data_ptr<T>());
}

}  // namespace torch_ops
