// Copies of short rows on the CPU. No torch.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

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

// Copies a row of kSize to 2 * kSize bytes, or of any number where kSize is 0.
template <int kSize, int kVector>
TORCH_OPS_HOST_DEVICE void copy_sized(void* to, const void* from, int64_t bytes) {
  if constexpr (kSize == 0) {
    std::memcpy(to, from, bytes);
  } else {
    copy_ends<kSize, kVector>(static_cast<char*>(to), static_cast<const char*>(from), bytes);
  }
}

// Calls use(kSize), a constant, with what copy_sized needs for rows of `bytes` bytes. A call of
// memcpy costs more than a short row; two copies of a constant size that overlap do for any number
// of bytes between one such size and the next. kVector is the longest vector, in bytes, that the
// function around it is compiled for.
template <int kVector, class Use>
TORCH_OPS_HOST_DEVICE void with_copy_size(int64_t bytes, Use use) {
  if (bytes > (kVector > 16 ? 256 : 128)) {
    use(std::integral_constant<int, 0>());
  } else if (bytes > 128) {
    use(std::integral_constant<int, 128>());
  } else if (bytes > 64) {
    use(std::integral_constant<int, 64>());
  } else if (bytes > 32) {
    use(std::integral_constant<int, 32>());
  } else if (bytes > 16) {
    use(std::integral_constant<int, 16>());
  } else if (bytes > 8) {
    use(std::integral_constant<int, 8>());
  } else if (bytes >= 4) {
    use(std::integral_constant<int, 4>());
  } else if (bytes >= 2) {
    use(std::integral_constant<int, 2>());
  } else {
    use(std::integral_constant<int, 1>());
  }
}

// Copies a row.
template <int kVector = 16>
TORCH_OPS_HOST_DEVICE void copy_row(void* to, const void* from, int64_t bytes) {
  with_copy_size<kVector>(bytes, [&](auto size) TORCH_OPS_INLINE_LAMBDA {
    copy_sized<size(), kVector>(to, from, bytes);
  });
}

}  // namespace torch_ops
