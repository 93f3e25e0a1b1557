// The limits of a GPU on which choices by sizes depend. No torch, no CUDA.
#pragma once

#include <cstdint>

namespace torch_ops {

struct DeviceLimits {
  int64_t shared_bytes;  // that a block may have on request
  int64_t l2_bytes;
  int64_t multiprocessors;
  int64_t compute_capability;  // 90 for 9.0
};

}  // namespace torch_ops
