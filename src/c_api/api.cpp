// The functions of torch_ops.h: checks, the choice of who computes, and the clock of the CPU.
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <limits>

#include "c_api/arguments.h"
#include "c_api/cpu.h"
#include "c_api/gpu.h"
#include "c_api/host_choice.h"

namespace torch_ops {
namespace {

std::atomic<int64_t> the_memory_limit{0};

// Does the call, and tells how long it took.
template <class Body>
void timed_on_cpu(float* milliseconds, Body&& body) {
  const auto start = std::chrono::steady_clock::now();
  body();
  if (milliseconds == nullptr) return;
  const std::chrono::duration<float, std::milli> taken = std::chrono::steady_clock::now() - start;
  *milliseconds = taken.count();
}

void gather(const RowCall& call, torch_ops_memory memory, torch_ops_stream stream,
            float* milliseconds) {
  if (memory == TORCH_OPS_DEVICE) return gpu::gather(call, stream, milliseconds);
  const bool on_device =
      memory == TORCH_OPS_HOST_GPU ||
      (memory == TORCH_OPS_HOST && gather_on_device(call, gpu::is_pinned) && gpu::is_usable());
  if (on_device) return gpu::gather_host(call, stream, milliseconds);
  timed_on_cpu(milliseconds, [&] { cpu::gather(call); });
}

void scatter_add(const RowCall& call, torch_ops_memory memory, torch_ops_stream stream,
                 void* workspace, int64_t workspace_bytes, float* milliseconds) {
  if (memory == TORCH_OPS_DEVICE) {
    return gpu::scatter_add(call, stream, workspace, workspace_bytes, milliseconds);
  }
  const bool on_device =
      memory == TORCH_OPS_HOST_GPU || (memory == TORCH_OPS_HOST &&
                                       stream_on_device(call.rows_bytes() + call.table_bytes(),
                                                        gpu::is_pinned, call.from, call.to) &&
                                       gpu::is_usable());
  if (on_device) return gpu::scatter_add_host(call, stream, milliseconds);
  timed_on_cpu(milliseconds, [&] { cpu::scatter_add(call); });
}

void apply(const ActivationCall& call, torch_ops_memory memory, torch_ops_stream stream,
           float* milliseconds) {
  if (memory == TORCH_OPS_DEVICE) return gpu::apply(call, stream, milliseconds);
  const int64_t bytes = (call.inputs_count() + 1) * call.size * call.element_bytes;
  const void* last_input = call.inputs[call.inputs_count() - 1];
  const bool on_device =
      memory == TORCH_OPS_HOST_GPU ||
      (memory == TORCH_OPS_HOST &&
       stream_on_device(bytes, gpu::is_pinned, call.inputs[0], last_input, call.output) &&
       gpu::is_usable());
  if (on_device) return gpu::apply_host(call, stream, milliseconds);
  timed_on_cpu(milliseconds, [&] { cpu::apply(call); });
}

// The plain forms return the status, negated, where others return it.
float plain_gather(const char* function, const float* source, const int* index, float* res,
                   int64_t N, int64_t M, int64_t B) {
  float milliseconds = 0;
  const torch_ops_status status = guarded(function, [&] {
    check_size("B", B);
    check_size("N", N);
    check_size("M", M);
    const RowCall call =
        check_rows("source", source, index, "res", res, /*table_first=*/true, B, M, N, /*inner=*/1,
                   TORCH_OPS_FLOAT32, TORCH_OPS_INDEX_INT32, TORCH_OPS_HOST);
    gather(call, TORCH_OPS_HOST, nullptr, &milliseconds);
  });
  return status == TORCH_OPS_SUCCESS ? milliseconds : -static_cast<float>(status);
}

}  // namespace

namespace gpu {

void set_memory_limit(int64_t bytes) { the_memory_limit.store(bytes); }
int64_t memory_limit() { return the_memory_limit.load(); }

}  // namespace gpu
}  // namespace torch_ops

using namespace torch_ops;

extern "C" {

torch_ops_status torch_ops_gather(const void* source, const void* index, void* output,
                                  int64_t axis_size, int64_t entries, int64_t inner,
                                  torch_ops_dtype dtype, torch_ops_index_type index_type,
                                  torch_ops_memory memory, torch_ops_stream stream,
                                  float* milliseconds) {
  return guarded(__func__, [&] {
    gather(check_rows("source", source, index, "output", output, /*table_first=*/true, /*batch=*/1,
                      axis_size, entries, inner, dtype, index_type, memory),
           memory, stream, milliseconds);
  });
}

torch_ops_status torch_ops_batch_gather(const void* source, const void* index, void* output,
                                        int64_t batch, int64_t axis_size, int64_t entries,
                                        int64_t inner, torch_ops_dtype dtype,
                                        torch_ops_index_type index_type, torch_ops_memory memory,
                                        torch_ops_stream stream, float* milliseconds) {
  return guarded(__func__, [&] {
    gather(check_rows("source", source, index, "output", output, /*table_first=*/true, batch,
                      axis_size, entries, inner, dtype, index_type, memory),
           memory, stream, milliseconds);
  });
}

torch_ops_status torch_ops_scatter_add(const void* values, const void* index, void* result,
                                       int64_t batch, int64_t axis_size, int64_t entries,
                                       int64_t inner, torch_ops_dtype dtype,
                                       torch_ops_index_type index_type, torch_ops_memory memory,
                                       torch_ops_stream stream, void* workspace,
                                       int64_t workspace_bytes, float* milliseconds) {
  return guarded(__func__, [&] {
    check_size("workspace_bytes", workspace_bytes);
    scatter_add(check_rows("values", values, index, "result", result, /*table_first=*/false, batch,
                           axis_size, entries, inner, dtype, index_type, memory),
                memory, stream, workspace, workspace_bytes, milliseconds);
  });
}

torch_ops_status torch_ops_scatter_add_workspace(int64_t batch, int64_t axis_size, int64_t inner,
                                                 torch_ops_dtype dtype, torch_ops_memory memory,
                                                 int64_t* bytes) {
  return guarded(__func__, [&] {
    check_memory(memory);
    check_size("batch", batch);
    check_size("axis_size", axis_size);
    check_size("inner", inner);
    const int64_t element = element_bytes(dtype);
    if (bytes == nullptr) fail(TORCH_OPS_NULL_POINTER, "bytes is NULL");
    const int64_t sums = checked_bytes("the workspace", 4, batch, axis_size, inner);
    *bytes = memory == TORCH_OPS_DEVICE && element < 4 ? sums : 0;
  });
}

torch_ops_status torch_ops_relu(const void* input, void* output, int64_t size,
                                torch_ops_dtype dtype, torch_ops_memory memory,
                                torch_ops_stream stream, float* milliseconds) {
  return guarded(__func__, [&] {
    apply(check_activation(Activation::kRelu, "input", input, nullptr, nullptr, "output", output,
                           size, dtype, memory),
          memory, stream, milliseconds);
  });
}

torch_ops_status torch_ops_relu_backward(const void* grad_output, const void* output,
                                         void* grad_input, int64_t size, torch_ops_dtype dtype,
                                         torch_ops_memory memory, torch_ops_stream stream,
                                         float* milliseconds) {
  return guarded(__func__, [&] {
    apply(check_activation(Activation::kReluBackward, "grad_output", grad_output, "output", output,
                           "grad_input", grad_input, size, dtype, memory),
          memory, stream, milliseconds);
  });
}

torch_ops_status torch_ops_sigmoid(const void* input, void* output, int64_t size,
                                   torch_ops_dtype dtype, torch_ops_memory memory,
                                   torch_ops_stream stream, float* milliseconds) {
  return guarded(__func__, [&] {
    apply(check_activation(Activation::kSigmoid, "input", input, nullptr, nullptr, "output", output,
                           size, dtype, memory),
          memory, stream, milliseconds);
  });
}

torch_ops_status torch_ops_sigmoid_backward(const void* grad_output, const void* output,
                                            void* grad_input, int64_t size, torch_ops_dtype dtype,
                                            torch_ops_memory memory, torch_ops_stream stream,
                                            float* milliseconds) {
  return guarded(__func__, [&] {
    apply(check_activation(Activation::kSigmoidBackward, "grad_output", grad_output, "output",
                           output, "grad_input", grad_input, size, dtype, memory),
          memory, stream, milliseconds);
  });
}

float torch_ops_gather_host(const float* source, const int* index, float* res, int N, int M) {
  return plain_gather(__func__, source, index, res, N, M, 1);
}

float torch_ops_batch_gather_host(const float* source, const int* index, float* res, int N, int M,
                                  int B) {
  return plain_gather(__func__, source, index, res, N, M, B);
}

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
    on_cpu ? cpu::hello(threads) : gpu::hello(threads);
  });
}

torch_ops_status torch_ops_set_device_memory_limit(int64_t bytes) {
  return guarded(__func__, [&] {
    check_size("bytes", bytes);
    gpu::set_memory_limit(bytes);
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
