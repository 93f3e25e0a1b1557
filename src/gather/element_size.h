// Dispatch on an element's size: what an element is does not matter to a copy.
#pragma once

#include <c10/util/Exception.h>

#include <cstdint>

namespace torch_ops {

struct Bytes16 {
  uint64_t halves[2];
};

// Calls `copy` with a value of a type of `bytes`: what an element is does not matter to a copy.
template <class Copy>
inline int64_t dispatch_size(int64_t bytes, Copy&& copy) {
  switch (bytes) {
    case 1:
      return copy(uint8_t());
    case 2:
      return copy(uint16_t());
    case 4:
      return copy(uint32_t());
    case 8:
      return copy(uint64_t());
    case 16:
      return copy(Bytes16());
  }
  TORCH_INTERNAL_ASSERT(false, "no element has ", bytes, " bytes");
}

}  // namespace torch_ops
