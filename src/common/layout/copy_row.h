// Copies of short rows on the CPU. No torch.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "common/host/host_device.h"

namespace torch_ops {

template <int kBytes>
struct UnalignedVector {
  typedef char type __attribute__((vector_size(kBytes), aligned(1), may_alias));
};

// Copies the first and the last kSize bytes, both read before either is written.
template <int kSize>
TORCH_OPS_HOST_DEVICE void copy_ends(char* to, const char* from, int64_t bytes) {
  if constexpr (kSize <= 16) {
    char first[kSize], last[kSize];
    std::memcpy(first, from, kSize);
    std::memcpy(last, from + bytes - kSize, kSize);
    std::memcpy(to, first, kSize);
    std::memcpy(to + bytes - kSize, last, kSize);
  } else {
    using Vector = typename UnalignedVector<kSize>::type;
    const Vector first = *reinterpret_cast<const Vector*>(from);
    const Vector last = *reinterpret_cast<const Vector*>(from + bytes - kSize);
    *reinterpret_cast<Vector*>(to) = first;
    *reinterpret_cast<Vector*>(to + bytes - kSize) = last;
  }
}

// Copies vectors of kVector bytes; the last may overlap the one before it.
template <int kVector>
TORCH_OPS_HOST_DEVICE void copy_vectors(char* to, const char* from, int64_t bytes) {
  using Vector = typename UnalignedVector<kVector>::type;
  const int64_t rest = bytes - kVector;
  const Vector last = *reinterpret_cast<const Vector*>(from + rest);
  for (int64_t n = 0; n < rest; n += kVector) {
    *reinterpret_cast<Vector*>(to + n) = *reinterpret_cast<const Vector*>(from + n);
  }
  *reinterpret_cast<Vector*>(to + rest) = last;
}

// Copies a row of kSize to 2 * kSize bytes; of any number from kVector on if kSize is that; or
// of any if it is 0.
template <int kSize, int kVector>
TORCH_OPS_HOST_DEVICE void copy_sized(void* to, const void* from, int64_t bytes) {
  if constexpr (kSize == 0) {
    std::memcpy(to, from, bytes);
  } else if constexpr (kSize == kVector) {
    copy_vectors<kVector>(static_cast<char*>(to), static_cast<const char*>(from), bytes);
  } else {
    copy_ends<kSize>(static_cast<char*>(to), static_cast<const char*>(from), bytes);
  }
}

// Calls use(kSize), a constant, with the argument of copy_sized for rows of `bytes` bytes. A call
// of memcpy takes longer than a short row; two copies of a constant size that overlap work for any
// number of bytes between one such size and the next. kVector is the longest vector, in bytes, that
// the function around it is compiled for.
template <int kVector, class Use>
TORCH_OPS_HOST_DEVICE void with_copy_size(int64_t bytes, Use use) {
  if (bytes > (kVector > 16 ? 1024 : 128)) {
    use(std::integral_constant<int, 0>());
  } else if (bytes > kVector) {
    use(std::integral_constant<int, kVector>());
  } else if (kVector > 32 && bytes > 32) {
    use(std::integral_constant<int, 32>());
  } else if (kVector > 16 && bytes > 16) {
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
