// Aligned vector loads and stores.
#pragma once

#include <cstdint>

namespace torch_ops {

// N values moved as one machine word. sizeof must be a power of two, 16 bytes at most.
template <class T, int N>
struct alignas(sizeof(T) * N) Vector {
  T values[N];
};

constexpr int kVectorBytes = 16;  // the widest load and store of one thread

template <class T>
constexpr int kVectorSize = kVectorBytes / sizeof(T);

// Can `pointer` be read in words of `bytes`?
inline bool is_aligned(const void* pointer, int64_t bytes) {
  return reinterpret_cast<uintptr_t>(pointer) % bytes == 0;
}

}  // namespace torch_ops
