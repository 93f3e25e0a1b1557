#include "common/elementwise/elementwise_cpu.h"
#include "sigmoid/sigmoid_float32.h"
#include "sigmoid/sigmoid_kernels.h"
#include "sigmoid/sigmoid_launch.h"

TORCH_OPS_DEFINE_LAUNCHERS(OnCpu, sigmoid, CpuSigmoid<T>, SigmoidBackward)
