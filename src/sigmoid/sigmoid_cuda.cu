#include "common/elementwise/elementwise_cuda.cuh"
#include "sigmoid/sigmoid_kernels.h"
#include "sigmoid/sigmoid_launch.h"

TORCH_OPS_DEFINE_LAUNCHERS(OnCuda, sigmoid, Sigmoid, SigmoidBackward)
