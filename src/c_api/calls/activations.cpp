// The activations of torch_ops.h.
#include "c_api/calls/activations.h"

#include "c_api/frame/run.h"
#include "c_api/gpu/host_choice.h"

namespace torch_ops {
namespace {

struct Named {
  const char* name;
  const void* memory;
};

// Checks and runs a call of `function`. `saved` is an array only in a backward pass.
torch_ops_status activate(const char* function, Activation activation, const Named& first,
                          const Named& saved, const Named& output, int64_t size, Slope slope,
                          torch_ops_dtype dtype, torch_ops_memory memory, torch_ops_stream stream,
                          float* milliseconds) {
  return guarded(function, [&] {
    check_memory(memory);
    check_size("size", size);
    const int64_t element = element_bytes(dtype);
    if (dtype > TORCH_OPS_FLOAT64) {
      fail(TORCH_OPS_UNSUPPORTED_DTYPE,
           "dtype must be float16 (0), bfloat16 (1), float32 (2) or float64 (3), but it is ",
           dtype);
    }
    const int64_t bytes = checked_bytes(first.name, element, size);
    for (const Named& each : {first, saved, output}) {
      if (each.name != nullptr) check_pointer(each.name, each.memory, bytes, element);
    }
    const ActivationCall call{activation,
                              {first.memory, saved.memory},
                              const_cast<void*>(output.memory),
                              size,
                              dtype,
                              element,
                              slope};
    const int inputs = call.inputs_count();
    if (memory == TORCH_OPS_HOST_GPU ||
        (memory == TORCH_OPS_HOST &&
         stream_on_device((inputs + 1) * bytes, gpu::is_pinned, call.inputs[0],
                          call.inputs[inputs - 1], call.output) &&
         gpu::is_usable())) {
      return gpu::apply_host(call, stream, milliseconds);
    }
    const Arrays arrays{{"the first input", call.inputs[0], bytes, Array::kRead},
                        {"the second input", call.inputs[1], inputs > 1 ? bytes : 0, Array::kRead},
                        {"the output", call.output, bytes, Array::kWritten}};
    const EntryKind no_index{0, IndexMode::kUnchecked};
    run(arrays, no_index, memory, stream, milliseconds,
        [&](auto on, const Pointers&, const auto&...) {
          if (call.size > 0) apply(on, call);
        });
  });
}

}  // namespace
}  // namespace torch_ops

using namespace torch_ops;

extern "C" {

torch_ops_status torch_ops_relu(const void* input, void* output, int64_t size,
                                torch_ops_dtype dtype, torch_ops_memory memory,
                                torch_ops_stream stream, float* milliseconds) {
  return activate(__func__, Activation::kRelu, {"input", input}, {}, {"output", output}, size,
                  std::nullopt, dtype, memory, stream, milliseconds);
}

torch_ops_status torch_ops_relu_backward(const void* grad_output, const void* output,
                                         void* grad_input, int64_t size, torch_ops_dtype dtype,
                                         torch_ops_memory memory, torch_ops_stream stream,
                                         float* milliseconds) {
  return activate(__func__, Activation::kReluBackward, {"grad_output", grad_output},
                  {"output", output}, {"grad_input", grad_input}, size, std::nullopt, dtype, memory,
                  stream, milliseconds);
}

torch_ops_status torch_ops_leaky_relu(const void* input, void* output, int64_t size, double slope,
                                      torch_ops_dtype dtype, torch_ops_memory memory,
                                      torch_ops_stream stream, float* milliseconds) {
  return activate(__func__, Activation::kRelu, {"input", input}, {}, {"output", output}, size,
                  slope, dtype, memory, stream, milliseconds);
}

torch_ops_status torch_ops_leaky_relu_backward(const void* grad_output, const void* input,
                                               void* grad_input, int64_t size, double slope,
                                               torch_ops_dtype dtype, torch_ops_memory memory,
                                               torch_ops_stream stream, float* milliseconds) {
  return activate(__func__, Activation::kReluBackward, {"grad_output", grad_output},
                  {"input", input}, {"grad_input", grad_input}, size, slope, dtype, memory, stream,
                  milliseconds);
}

torch_ops_status torch_ops_sigmoid(const void* input, void* output, int64_t size,
                                   torch_ops_dtype dtype, torch_ops_memory memory,
                                   torch_ops_stream stream, float* milliseconds) {
  return activate(__func__, Activation::kSigmoid, {"input", input}, {}, {"output", output}, size,
                  std::nullopt, dtype, memory, stream, milliseconds);
}

torch_ops_status torch_ops_sigmoid_backward(const void* grad_output, const void* output,
                                            void* grad_input, int64_t size, torch_ops_dtype dtype,
                                            torch_ops_memory memory, torch_ops_stream stream,
                                            float* milliseconds) {
  return activate(__func__, Activation::kSigmoidBackward, {"grad_output", grad_output},
                  {"output", output}, {"grad_input", grad_input}, size, std::nullopt, dtype, memory,
                  stream, milliseconds);
}

}  // extern "C"
