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

// Room comes back when everything that was taken has come back.
thread_local Workspace the_workspace;
thread_local int64_t taken_bytes = 0, taken_blocks = 0;

}  // namespace

WorkspaceScope::WorkspaceScope(const Workspace& workspace) { the_workspace = workspace; }

WorkspaceScope::~WorkspaceScope() {
  the_workspace = {};
  taken_bytes = taken_blocks = 0;
}

void* take_from_workspace(int64_t bytes) {
  const int64_t first =
      (taken_bytes + kWorkspaceAlignment - 1) / kWorkspaceAlignment * kWorkspaceAlignment;
  if (the_workspace.memory == nullptr || bytes > the_workspace.bytes - first) return nullptr;
  taken_bytes = first + bytes;
  ++taken_blocks;
  return static_cast<char*>(the_workspace.memory) + first;
}

bool give_to_workspace(void* memory) {
  const auto at = reinterpret_cast<uintptr_t>(memory);
  const auto begin = reinterpret_cast<uintptr_t>(the_workspace.memory);
  if (at < begin || at >= begin + static_cast<uint64_t>(the_workspace.bytes)) return false;
  if (--taken_blocks == 0) taken_bytes = 0;
  return true;
}

}  // namespace own

const HostProgram& host_program() { return *own::the_program; }

HostScope::HostScope(const HostProgram& program)
    : before_(std::exchange(own::the_program, &program)) {}

HostScope::~HostScope() { own::the_program = before_; }

}  // namespace torch_ops
