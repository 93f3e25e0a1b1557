// exp, expm1, log, log1p, tanh and erf for formulas: math::exp(x) etc. Kernels compiled at run time
// for the CPU have them too, so they stand where Python finds them.
#pragma once

#include <cmath>
#include <cstdint>

#include "common/host/float16.h"
// After what it needs.
#include "../../../torch_ops/jit/headers/vector_math.h"
