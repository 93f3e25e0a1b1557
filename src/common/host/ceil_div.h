// Division that rounds up, and rounding to a multiple. No torch.
#pragma once

#include <cstdint>

namespace torch_ops {

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
constexpr int64_t round_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }

}  // namespace torch_ops
