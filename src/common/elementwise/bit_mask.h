// A mask of one bit per element: element i of a walk has bit i % 8 of byte i / 8. The functions
// with which the CPU writes and reads one. No torch.
#pragma once

#include <cstdint>
#include <cstring>

namespace torch_ops {

template <class Size>
Size mask_bytes(const Size& elements) {
  return (elements + 7) / 8;
}

// Flags are bytes of 0 or 1: loops over those vectorise. One multiplication moves eight flags into
// a byte, or a byte into eight flags.

inline void pack_flags(const uint8_t* flags, int64_t n, uint8_t* mask) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    uint64_t eight;
    std::memcpy(&eight, flags + i, 8);
    mask[i / 8] = static_cast<uint8_t>(eight * 0x0102040810204080 >> 56);
  }
  if (i == n) return;
  uint8_t last = 0;
  for (int bit = 0; i + bit < n; ++bit) last |= static_cast<uint8_t>(flags[i + bit] << bit);
  mask[i / 8] = last;
}

// Writes n rounded up to a multiple of 8.
inline void unpack_flags(const uint8_t* mask, int64_t n, uint8_t* flags) {
  for (int64_t i = 0; i < n; i += 8) {
    // Bit k of the byte, alone in byte k of the word; then 1 for any bit.
    uint64_t eight = mask[i / 8] * 0x0101010101010101 & 0x8040201008040201;
    eight = (eight + 0x7f7f7f7f7f7f7f7f) >> 7 & 0x0101010101010101;
    std::memcpy(flags + i, &eight, 8);
  }
}

}  // namespace torch_ops
