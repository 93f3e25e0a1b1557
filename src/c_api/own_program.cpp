#include "c_api/own_program.h"

#include <algorithm>
#include <cstdlib>
#include <new>
#include <utility>

namespace torch_ops {
namespace own {
namespace {

Simd simd() {
#ifdef __x86_64__
  static const Simd found = [] {
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                      __builtin_cpu_supports("f16c");
    const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    return !avx2 ? Simd::kBaseline : avx512 ? Simd::kAvx512 : Simd::kAvx2;
  }();
  return found;
#else
  return Simd::kBaseline;
#endif
}

void* allocate(int64_t bytes) {
  constexpr size_t kAlignment = 64;
  const size_t lines = (std::max<size_t>(bytes, 1) + kAlignment - 1) / kAlignment;
  void* const memory = std::aligned_alloc(kAlignment, lines * kAlignment);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

constexpr HostProgram kProgram{num_threads,     run_parts,          simd,
                               allocate,        std::free,          stream,
                               device_limits,   allocate_on_device, release_on_device,
                               throw_cuda_error};

thread_local const HostProgram* the_program = &kProgram;

}  // namespace
}  // namespace own

const HostProgram& host_program() { return *own::the_program; }

HostScope::HostScope(const HostProgram& program)
    : before_(std::exchange(own::the_program, &program)) {}

HostScope::~HostScope() { own::the_program = before_; }

}  // namespace torch_ops
