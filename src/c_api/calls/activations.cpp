// The activations of torch_ops.h.
#include "c_api/calls/activations.h"

#include "c_api/frame/run.h"
#include "c_api/gpu/host_choice.h"

namespace torch_ops {
namespace {

void run_activation(const ActivationCall& call, torch_ops_memory memory, torch_ops_stream stream,
                    float* milliseconds) {
  const int64_t bytes = call.size * call.element_bytes;
  const auto in_pieces = [&] {
    const void* last_input = call.inputs[call.inputs_count() - 1];
    return memory == TORCH_OPS_HOST_GPU ||
           (memory == TORCH_OPS_HOST &&
            stream_on_device((call.inputs_count() + 1) * bytes, gpu::is_pinned, call.inputs[0],
                             last_input, call.output) &&
            gpu::is_usable());
  };
  if (in_pieces()) return gpu::apply_host(call, stream, milliseconds);
  const Arrays arrays{
      {"the first input", call.inputs[0], bytes, Array::kRead},
      {"the second input", call.inputs[1], call.inputs_count() > 1 ? bytes : 0, Array::kRead},
      {"the output", call.output, bytes, Array::kWritten}};
  const EntryKind no_index{0, IndexMode::kUnchecked};
  run(arrays, no_index, memory, stream, milliseconds,
      [&](auto on, const Pointers&, const auto&...) {
        if (call.size > 0) apply(on, call);
      });
}

}  // namespace
}  // namespace torch_ops

using namespace torch_ops;

extern "C" {

torch_ops_status torch_ops_relu(const void* input, void* output, int64_t size,
                                torch_ops_dtype dtype, torch_ops_memory memory,
                                torch_ops_stream stream, float* milliseconds) {
  return guarded(__func__, [&] {
    run_activation(check_activation(Activation::kRelu, "input", input, nullptr, nullptr, "output",
                                    output, size, dtype, memory),
                   memory, stream, milliseconds);
  });
}

torch_ops_status torch_ops_relu_backward(const void* grad_output, const void* output,
                                         void* grad_input, int64_t size, torch_ops_dtype dtype,
                                         torch_ops_memory memory, torch_ops_stream stream,
                                         float* milliseconds) {
  return guarded(__func__, [&] {
    run_activation(check_activation(Activation::kReluBackward, "grad_output", grad_output, "output",
                                    output, "grad_input", grad_input, size, dtype, memory),
                   memory, stream, milliseconds);
  });
}

torch_ops_status torch_ops_leaky_relu(const void* input, void* output, int64_t size, double slope,
                                      torch_ops_dtype dtype, torch_ops_memory memory,
                                      torch_ops_stream stream, float* milliseconds) {
  return guarded(__func__, [&] {
    ActivationCall call = check_activation(Activation::kRelu, "input", input, nullptr, nullptr,
                                           "output", output, size, dtype, memory);
    call.slope = slope;
    run_activation(call, memory, stream, milliseconds);
  });
}

torch_ops_status torch_ops_leaky_relu_backward(const void* grad_output, const void* input,
                                               void* grad_input, int64_t size, double slope,
                                               torch_ops_dtype dtype, torch_ops_memory memory,
                                               torch_ops_stream stream, float* milliseconds) {
  return guarded(__func__, [&] {
    ActivationCall call =
        check_activation(Activation::kReluBackward, "grad_output", grad_output, "input", input,
                         "grad_input", grad_input, size, dtype, memory);
    call.slope = slope;
    run_activation(call, memory, stream, milliseconds);
  });
}

torch_ops_status torch_ops_sigmoid(const void* input, void* output, int64_t size,
                                   torch_ops_dtype dtype, torch_ops_memory memory,
                                   torch_ops_stream stream, float* milliseconds) {
  return guarded(__func__, [&] {
    run_activation(check_activation(Activation::kSigmoid, "input", input, nullptr, nullptr,
                                    "output", output, size, dtype, memory),
                   memory, stream, milliseconds);
  });
}

torch_ops_status torch_ops_sigmoid_backward(const void* grad_output, const void* output,
                                            void* grad_input, int64_t size, torch_ops_dtype dtype,
                                            torch_ops_memory memory, torch_ops_stream stream,
                                            float* milliseconds) {
  return guarded(__func__, [&] {
    run_activation(
        check_activation(Activation::kSigmoidBackward, "grad_output", grad_output, "output", output,
                         "grad_input", grad_input, size, dtype, memory),
        memory, stream, milliseconds);
  });
}

}  // extern "C"
