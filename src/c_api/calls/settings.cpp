// The functions of torch_ops.h that are not operations.
#include <cstdio>
#include <cstdlib>
#include <limits>

#include "c_api/frame/arguments.h"
#include "c_api/gpu/gpu.h"
#include "c_api/own_program.h"

using namespace torch_ops;

extern "C" {

torch_ops_status torch_ops_check_errors(torch_ops_stream stream) {
  return guarded(__func__, [&] {
    if (gpu::device_count() > 0) gpu::check_errors(stream);
  });
}

torch_ops_status torch_ops_hello(int32_t threads, torch_ops_memory memory) {
  return guarded(__func__, [&] {
    check_memory(memory);
    if (threads < 0 || threads > 1024) {
      fail(TORCH_OPS_INVALID_ARGUMENT, "threads must be between 0 and 1024, but it is ", threads);
    }
    const bool on_cpu =
        memory == TORCH_OPS_HOST_CPU || (memory == TORCH_OPS_HOST && !gpu::is_usable());
    if (!on_cpu) return gpu::hello(threads);
    const auto greet = [](void* context, int64_t n) {
      std::printf(TORCH_OPS_HELLO, static_cast<int>(n), *static_cast<const int32_t*>(context));
    };
    own::run_parts(threads, greet, &threads);
    std::fflush(stdout);
  });
}

torch_ops_status torch_ops_set_device_memory_limit(int64_t bytes) {
  return guarded(__func__, [&] {
    check_size("bytes", bytes);
    gpu::memory_limit = bytes;
  });
}

torch_ops_status torch_ops_host_alloc(int64_t bytes, void** memory) {
  return guarded(__func__, [&] {
    check_size("bytes", bytes);
    if (memory == nullptr) fail(TORCH_OPS_NULL_POINTER, "memory is NULL");
    *memory = nullptr;
    if (gpu::device_count() > 0) {
      *memory = gpu::pinned_alloc(bytes);
      return;
    }
    constexpr int64_t kAlignment = 64;
    if (bytes > std::numeric_limits<int64_t>::max() - kAlignment) throw std::bad_alloc();
    *memory = std::aligned_alloc(kAlignment, (bytes + kAlignment) / kAlignment * kAlignment);
    if (*memory == nullptr) {
      fail(TORCH_OPS_OUT_OF_MEMORY, bytes, " bytes of host memory are asked for");
    }
  });
}

torch_ops_status torch_ops_host_free(void* memory) {
  return guarded(__func__, [&] {
    if (!gpu::pinned_free(memory)) std::free(memory);
  });
}

int32_t torch_ops_api_version(void) { return TORCH_OPS_API_VERSION; }
const char* torch_ops_version(void) { return TORCH_OPS_VERSION; }
const char* torch_ops_build_config(void) {
  return TORCH_OPS_BUILD_CONFIG "; compiler=" __VERSION__;
}
int32_t torch_ops_device_count(void) { return gpu::device_count(); }

}  // extern "C"
