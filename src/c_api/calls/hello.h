// What a thread of hello prints: its number, and the number of threads.
#pragma once

#include <cstdint>

#define TORCH_OPS_HELLO "Hello from thread %d of %d\n"

namespace torch_ops {

void hello_on_cpu(int32_t threads);

}  // namespace torch_ops
