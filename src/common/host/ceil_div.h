// Integers: division that rounds up, rounding to a multiple, powers of two that divide. No torch.
#pragma once

#include <cstdint>

namespace torch_ops {

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
constexpr int64_t round_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }

// The bytes of the widest word, up to 16, that divides sizes and addresses; `all` is their `or`.
constexpr int64_t widest_word(uint64_t all) {
  const uint64_t bits = all | 16;
  return static_cast<int64_t>(bits & -bits);
}

}  // namespace torch_ops
