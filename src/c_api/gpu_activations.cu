// The activations on the device: the kernels of src/relu and src/sigmoid.
#include "c_api/activations.h"
#include "c_api/gpu.h"
#include "c_api/gpu_runtime.cuh"

namespace torch_ops::gpu {

void launch_activation(const ActivationCall& call) { call_kernels(OnCuda{host_program()}, call); }

void apply(const ActivationCall& call, torch_ops_stream stream, float* milliseconds) {
  const int64_t bytes = call.size * call.element_bytes;
  queue({{"the first input", call.inputs[0], bytes},
         {"the second input", call.inputs[1], call.inputs[1] == nullptr ? 0 : bytes},
         {"the output", call.output, bytes}},
        stream, milliseconds, [&](Reports) {
          if (call.size > 0) launch_activation(call);
        });
}

}  // namespace torch_ops::gpu
