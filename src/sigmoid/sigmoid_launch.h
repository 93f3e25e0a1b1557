// sigmoid in the kernel library: sigmoid_cpu.cpp and sigmoid_cuda.cu. No torch.
#pragma once

#include "common/elementwise/launchers.h"

TORCH_OPS_DECLARE_LAUNCHERS(sigmoid)
