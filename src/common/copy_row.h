// Copies of short rows on the CPU. No torch.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

namespace torch_ops {

// Copies a row. A call of memcpy costs more than a short row; two copies of a constant size that
// overlap do for any number of bytes between one such size and the next.
inline void copy_row(void* out, const void* in, int64_t bytes) {
  auto* to = static_cast<char*>(out);
  const auto* from = static_cast<const char*>(in);
  const auto ends = [=](auto size) {
    char first[size], last[size];
    std::memcpy(first, from, size);
    std::memcpy(last, from + bytes - size, size);
    std::memcpy(to, first, size);
    std::memcpy(to + bytes - size, last, size);
  };
  if (bytes > 128) {
    std::memcpy(out, in, bytes);
  } else if (bytes > 64) {
    ends(std::integral_constant<int, 64>());
  } else if (bytes > 32) {
    ends(std::integral_constant<int, 32>());
  } else if (bytes > 16) {
    ends(std::integral_constant<int, 16>());
  } else if (bytes > 8) {
    ends(std::integral_constant<int, 8>());
  } else if (bytes >= 4) {
    ends(std::integral_constant<int, 4>());
  } else if (bytes >= 2) {
    ends(std::integral_constant<int, 2>());
  } else {
    *to = *from;
  }
}

}  // namespace torch_ops
