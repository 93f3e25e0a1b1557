#include "c_api/calls/hello.h"

#include <cstdio>

#include "c_api/own_program.h"

namespace torch_ops {

void hello_on_cpu(int32_t threads) {
  const auto greet = [](void* context, int64_t n) {
    std::printf(TORCH_OPS_HELLO, static_cast<int>(n), *static_cast<const int32_t*>(context));
  };
  own::run_parts(threads, greet, &threads);
  std::fflush(stdout);
}

}  // namespace torch_ops
