// Copies of short rows on the CPU. No torch.
#pragma once

#include <cstdint>
#include <cstring>

#include "common/host_device.h"

namespace torch_ops {

template <int kBytes>
struct UnalignedVector {
  typedef char type __attribute__((vector_size(kBytes), aligned(1), may_alias));
};

// Copies the first and the last kSize bytes, all of them read before any is written, with vectors
// of kVector bytes where there are so many.
template <int kSize, int kVector>
TORCH_OPS_HOST_DEVICE void copy_ends(char* to, const char* from, int64_t bytes) {
  if constexpr (kSize <= 16) {
    char first[kSize], last[kSize];
    std::memcpy(first, from, kSize);
    std::memcpy(last, from + bytes - kSize, kSize);
    std::memcpy(to, first, kSize);
    std::memcpy(to + bytes - kSize, last, kSize);
  } else {
    constexpr int kStep = kSize < kVector ? kSize : kVector;
    using Vector = typename UnalignedVector<kStep>::type;
    const auto at = [](auto* base, int n) { return base + n * kStep; };
    Vector first[kSize / kStep], last[kSize / kStep];
    const char* from_last = from + bytes - kSize;
    char* to_last = to + bytes - kSize;
    for (int n = 0; n < kSize / kStep; ++n) {
      first[n] = *reinterpret_cast<const Vector*>(at(from, n));
      last[n] = *reinterpret_cast<const Vector*>(at(from_last, n));
    }
    for (int n = 0; n < kSize / kStep; ++n) {
      *reinterpret_cast<Vector*>(at(to, n)) = first[n];
      *reinterpret_cast<Vector*>(at(to_last, n)) = last[n];
    }
  }
}

// Copies a row. A call of memcpy costs more than a short row; two copies of a constant size that
// overlap do for any number of bytes between one such size and the next. kVector is the longest
// vector, in bytes, that the function around it is compiled for.
template <int kVector = 16>
TORCH_OPS_HOST_DEVICE void copy_row(void* out, const void* in, int64_t bytes) {
  auto* to = static_cast<char*>(out);
  const auto* from = static_cast<const char*>(in);
  if (bytes > (kVector > 16 ? 256 : 128)) {
    std::memcpy(out, in, bytes);
  } else if (bytes > 128) {
    copy_ends<128, kVector>(to, from, bytes);
  } else if (bytes > 64) {
    copy_ends<64, kVector>(to, from, bytes);
  } else if (bytes > 32) {
    copy_ends<32, kVector>(to, from, bytes);
  } else if (bytes > 16) {
    copy_ends<16, kVector>(to, from, bytes);
  } else if (bytes > 8) {
    copy_ends<8, kVector>(to, from, bytes);
  } else if (bytes >= 4) {
    copy_ends<4, kVector>(to, from, bytes);
  } else if (bytes >= 2) {
    copy_ends<2, kVector>(to, from, bytes);
  } else {
    *to = *from;
  }
}

}  // namespace torch_ops
