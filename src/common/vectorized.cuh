// Aligned vector loads and stores.
#pragma once

#include <cstdint>
#include <cstring>

namespace torch_ops {

// N values moved as one machine word. sizeof must be a power of two, 16 bytes at most.
template <class T, int N>
struct alignas(sizeof(T) * N) Vector {
  T values[N];
};

// Stores a vector in global memory as one word. An assignment does not do: nvcc may store its
// values one by one, which is up to eight times the traffic to the cache.
template <class T, int N>
__device__ __forceinline__ void store(T* to, const Vector<T, N>& vector) {
  if constexpr (sizeof(vector) == 16) {
    uint32_t word[4];
    memcpy(word, &vector, sizeof(word));
    asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(word[0]), "r"(word[1]),
                 "r"(word[2]), "r"(word[3])
                 : "memory");
  } else if constexpr (sizeof(vector) == 8) {
    uint32_t word[2];
    memcpy(word, &vector, sizeof(word));
    asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(to), "r"(word[0]), "r"(word[1])
                 : "memory");
  } else if constexpr (sizeof(vector) == 4) {
    uint32_t word;
    memcpy(&word, &vector, sizeof(word));
    asm volatile("st.global.b32 [%0], %1;" ::"l"(to), "r"(word) : "memory");
  } else {
    *reinterpret_cast<Vector<T, N>*>(to) = vector;
  }
}

constexpr int kVectorBytes = 16;  // the widest load and store of one thread

template <class T>
constexpr int kVectorSize = kVectorBytes / sizeof(T);

// Can `pointer` be read in words of `bytes`?
inline bool is_aligned(const void* pointer, int64_t bytes) {
  return reinterpret_cast<uintptr_t>(pointer) % bytes == 0;
}

}  // namespace torch_ops
