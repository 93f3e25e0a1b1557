// The activations on the CPU: the kernels of src/relu and src/sigmoid.
#include "c_api/activations.h"
#include "c_api/cpu.h"

namespace torch_ops::cpu {

void apply(const ActivationCall& call) { call_kernels(OnCpu{host_program()}, call); }

}  // namespace torch_ops::cpu
