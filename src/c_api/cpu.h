// The calls on the CPU. Arguments are right, but for the values of an index.
#pragma once

#include "c_api/arguments.h"

namespace torch_ops::cpu {

void gather(const RowCall& call);
void scatter_add(const RowCall& call);
void apply(const ActivationCall& call);
void hello(int32_t threads);

}  // namespace torch_ops::cpu
