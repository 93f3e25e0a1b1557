// An index in memory, of any of the integer types that an index may have, and dispatch on types
// that are a kernel's template parameters. No torch.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace torch_ops {

struct IndexArray {
  const void* data;
  int entry_bytes;  // 1: uint8, 2: int16, 4: int32, 8: int64
};

// Calls use(entries) with a pointer to the entries' type.
template <class Use>
auto dispatch_index(const IndexArray& index, Use&& use) {
  switch (index.entry_bytes) {
    case 1:
      return use(static_cast<const uint8_t*>(index.data));
    case 2:
      return use(static_cast<const int16_t*>(index.data));
    case 4:
      return use(static_cast<const int32_t*>(index.data));
    case 8:
      return use(static_cast<const int64_t*>(index.data));
  }
  throw std::logic_error("torch_ops: no index has entries of " + std::to_string(index.entry_bytes) +
                         " bytes");
}

// A word of 16 bytes.
struct Bytes16 {
  uint64_t halves[2];
};

// Calls copy(word) with a word of the size of an element: a copy does not depend on what an element
// is. CUDA has other types for words of 8 and 16 bytes.
template <class Word8 = uint64_t, class Word16 = Bytes16, class Copy>
auto dispatch_size(int64_t bytes, Copy&& copy) {
  switch (bytes) {
    case 1:
      return copy(uint8_t());
    case 2:
      return copy(uint16_t());
    case 4:
      return copy(uint32_t());
    case 8:
      return copy(Word8());
    case 16:
      return copy(Word16());
  }
  throw std::logic_error("torch_ops: no element has " + std::to_string(bytes) + " bytes");
}

}  // namespace torch_ops
