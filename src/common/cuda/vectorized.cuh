// Aligned vector loads and stores.
#pragma once

#include <cstdint>
#include <cstring>

namespace torch_ops {

// N values moved as one machine word. sizeof must be a power of two, at most 16 bytes.
template <class T, int N>
struct alignas(sizeof(T) * N) Vector {
  T values[N];
};

// Stores a vector in global memory as one word. An assignment does not suffice: nvcc may store its
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

// A load of memory that the kernel does not write, and a store, of 1 to 16 bytes, which keep their
// order: nvcc moves other loads after stores where that saves registers, and then fewer of a
// thread's loads are in flight at a time.
template <class Word>
__device__ __forceinline__ Word load_in_order(const Word* from) {
  Word word;
  if constexpr (sizeof(Word) == 16) {
    auto& to = reinterpret_cast<uint32_t (&)[4]>(word);
    asm volatile("ld.global.nc.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "l"(from));
  } else if constexpr (sizeof(Word) == 8) {
    asm volatile("ld.global.nc.b64 %0, [%1];"
                 : "=l"(reinterpret_cast<uint64_t&>(word))
                 : "l"(from));
  } else if constexpr (sizeof(Word) == 4) {
    asm volatile("ld.global.nc.b32 %0, [%1];"
                 : "=r"(reinterpret_cast<uint32_t&>(word))
                 : "l"(from));
  } else if constexpr (sizeof(Word) == 2) {
    asm volatile("ld.global.nc.b16 %0, [%1];"
                 : "=h"(reinterpret_cast<uint16_t&>(word))
                 : "l"(from));
  } else {
    uint32_t byte;
    asm volatile("ld.global.nc.u8 %0, [%1];" : "=r"(byte) : "l"(from));
    word = static_cast<Word>(byte);
  }
  return word;
}

// The same of V values.
template <int V, class Value>
__device__ __forceinline__ Vector<Value, V> load_vector(const Value* from) {
  if constexpr (V == 1) {
    return {load_in_order(from)};
  } else {
    return load_in_order(reinterpret_cast<const Vector<Value, V>*>(from));
  }
}

template <class Word>
__device__ __forceinline__ void store_in_order(Word* to, const Word& word) {
  if constexpr (sizeof(Word) == 16) {
    const auto& from = reinterpret_cast<const uint32_t (&)[4]>(word);
    asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(from[0]), "r"(from[1]),
                 "r"(from[2]), "r"(from[3]));
  } else if constexpr (sizeof(Word) == 8) {
    asm volatile("st.global.b64 [%0], %1;" ::"l"(to), "l"(reinterpret_cast<const uint64_t&>(word)));
  } else if constexpr (sizeof(Word) == 4) {
    asm volatile("st.global.b32 [%0], %1;" ::"l"(to), "r"(reinterpret_cast<const uint32_t&>(word)));
  } else if constexpr (sizeof(Word) == 2) {
    asm volatile("st.global.b16 [%0], %1;" ::"l"(to), "h"(reinterpret_cast<const uint16_t&>(word)));
  } else {
    asm volatile("st.global.u8 [%0], %1;" ::"l"(to), "r"(static_cast<uint32_t>(word)));
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
