// The checks of arguments of every function of the C library, and the calls made from them.
#pragma once

#include <cstdint>
#include <vector>

#include "c_api/frame/failure.h"
#include "common/indexing/index_array.h"
#include "common/indexing/index_mode.h"
#include "common/layout/row_layout.h"
#include "relu/relu_launch.h"
#include "torch_ops.h"

namespace torch_ops {

// An array of a call, contiguous.
struct Array {
  enum Access { kRead = 1, kWritten = 2, kReadAndWritten = 3 };
  const char* name;
  const void* pointer;
  int64_t bytes;
  Access access;
};
using Arrays = std::vector<Array>;

// Where the arrays of a call are for the computing device, in the order of the call's Arrays.
using Pointers = std::vector<void*>;

inline Pointers pointers_of(const Arrays& arrays) {
  Pointers pointers;
  for (const Array& each : arrays) pointers.push_back(const_cast<void*>(each.pointer));
  return pointers;
}

// What an error of an index's entry says about the index.
struct EntryKind {
  int64_t bound;  // of the entries; unused if they are coordinates
  IndexMode mode;
  bool is_point = false;

  // The entry for which a kernel has recorded `value`: by IndexMode::kFromEnd, the row that it is.
  int64_t entry_of(int64_t value, int64_t axis_size) const {
    const bool counted = mode == IndexMode::kFromEnd && !is_point && value < 0;
    return counted ? value - axis_size : value;
  }
};

// A gather or scatter_add whose arguments are known to be right. All arrays are contiguous.
struct RowCall {
  const void* from;  // source or values
  const void* index;
  void* to;  // output or result
  int64_t batch, axis_size, entries, inner;
  torch_ops_dtype dtype;
  int64_t element_bytes;
  int64_t index_bytes;  // of an entry: 4 or 8
  // Names of `from` and `to`, and which of the two has the axis.
  const char* from_name = nullptr;
  const char* to_name = nullptr;
  bool table_first = true;
  IndexMode mode = IndexMode::kRaise;
  FillPattern fill{};

  Arrays arrays(Array::Access access = Array::kWritten) const {
    return {{from_name, from, table_first ? table_bytes() : rows_bytes(), Array::kRead},
            {"index", index, all_index_bytes(), Array::kRead},
            {to_name, to, table_first ? rows_bytes() : table_bytes(), access}};
  }
  // The same with other pointers.
  RowCall at(const Pointers& pointers) const {
    RowCall call = *this;
    call.from = pointers[0];
    call.index = pointers[1];
    call.to = pointers[2];
    return call;
  }

  EntryKind entry_kind() const { return {axis_size, mode}; }
  int64_t all_entries() const { return batch * entries; }
  int64_t table_bytes() const { return batch * axis_size * inner * element_bytes; }
  int64_t rows_bytes() const { return batch * entries * inner * element_bytes; }
  int64_t all_index_bytes() const { return all_entries() * index_bytes; }

  IndexArray index_array() const { return {index, static_cast<int>(index_bytes)}; }

  RowLayout layout() const {
    return RowLayout::contiguous(batch, /*outer=*/1, axis_size, entries, inner);
  }
};

enum class Activation { kRelu, kReluBackward, kSigmoid, kSigmoidBackward };

struct ActivationCall {
  Activation activation;
  const void* inputs[2];  // the second is null except for a backward pass
  void* output;
  int64_t size;
  torch_ops_dtype dtype;
  int64_t element_bytes;
  Slope slope{};  // of leaky_relu

  int inputs_count() const { return inputs[1] != nullptr ? 2 : 1; }
};

inline int64_t element_bytes(torch_ops_dtype dtype) {
  if (dtype < TORCH_OPS_FLOAT16 || dtype > TORCH_OPS_UINT64) {
    fail(TORCH_OPS_UNKNOWN_DTYPE, "dtype must be one of TORCH_OPS_FLOAT16 (", TORCH_OPS_FLOAT16,
         ") to TORCH_OPS_UINT64 (", TORCH_OPS_UINT64, "), but it is ", dtype);
  }
  constexpr int64_t kBytes[] = {2, 2, 4, 8, 1, 1, 2, 2, 4, 4, 8, 8};  // in the enum's order
  return kBytes[dtype];
}

inline int64_t index_bytes(torch_ops_index_type type) {
  switch (type) {
    case TORCH_OPS_INDEX_INT32:
      return 4;
    case TORCH_OPS_INDEX_INT64:
      return 8;
    default:
      fail(TORCH_OPS_UNKNOWN_INDEX_TYPE, "index_type must be TORCH_OPS_INDEX_INT32 (",
           TORCH_OPS_INDEX_INT32, ") or TORCH_OPS_INDEX_INT64 (", TORCH_OPS_INDEX_INT64,
           "), but it is ", type);
  }
}

inline void check_memory(torch_ops_memory memory) {
  if (memory < TORCH_OPS_HOST || memory > TORCH_OPS_HOST_GPU) {
    fail(TORCH_OPS_UNKNOWN_MEMORY,
         "memory must be TORCH_OPS_HOST (0), TORCH_OPS_DEVICE (1), TORCH_OPS_HOST_CPU (2) or "
         "TORCH_OPS_HOST_GPU (3), but it is ",
         memory);
  }
}

inline IndexMode index_mode(torch_ops_mode mode) {
  static_assert(TORCH_OPS_MODE_RAISE == static_cast<int>(IndexMode::kRaise) &&
                TORCH_OPS_MODE_WRAP == static_cast<int>(IndexMode::kWrap) &&
                TORCH_OPS_MODE_CLIP == static_cast<int>(IndexMode::kClip) &&
                TORCH_OPS_MODE_FILL == static_cast<int>(IndexMode::kFill) &&
                TORCH_OPS_MODE_UNCHECKED == static_cast<int>(IndexMode::kUnchecked) &&
                TORCH_OPS_MODE_FROM_END == static_cast<int>(IndexMode::kFromEnd));
  if (mode < TORCH_OPS_MODE_RAISE || mode > TORCH_OPS_MODE_FROM_END) {
    fail(TORCH_OPS_INVALID_ARGUMENT, "mode must be one of TORCH_OPS_MODE_RAISE (",
         TORCH_OPS_MODE_RAISE, ") to TORCH_OPS_MODE_FROM_END (", TORCH_OPS_MODE_FROM_END,
         "), but it is ", mode);
  }
  return static_cast<IndexMode>(mode);
}

// `fill` is an element of the dtype, or null for zero.
inline FillPattern fill_pattern(const void* fill, int64_t element_bytes) {
  return fill == nullptr ? FillPattern() : FillPattern(fill, element_bytes);
}

inline void check_flags(int32_t flags, int32_t known) {
  if ((flags & ~known) != 0) {
    fail(TORCH_OPS_INVALID_ARGUMENT, "flags may have the bits ", known, ", but they are ", flags);
  }
}

inline void check_size(const char* name, int64_t size) {
  if (size < 0) {
    fail(TORCH_OPS_NEGATIVE_SIZE, name, " must not be negative, but it is ", size);
  }
}

// The bytes of the array with these sizes, some of which may be zero.
template <class... Sizes>
int64_t checked_bytes(const char* name, int64_t element_bytes, Sizes... sizes) {
  int64_t bytes = element_bytes;
  bool empty = false, fits = true;
  ((empty = empty || sizes == 0), ...);
  if (empty) return 0;
  ((fits = fits && !__builtin_mul_overflow(bytes, int64_t{sizes}, &bytes)), ...);
  if (!fits) {
    std::ostringstream shape;
    const char* separator = "";
    ((shape << separator << sizes, separator = ", "), ...);
    fail(TORCH_OPS_SIZE_OVERFLOW, name, " of the shape [", shape.str(),
         "] must have less than 2^63 bytes, counted at ", element_bytes, " an element");
  }
  return bytes;
}

inline void check_pointer(const char* name, const void* pointer, int64_t bytes, int64_t alignment) {
  if (bytes == 0) return;
  if (pointer == nullptr) {
    fail(TORCH_OPS_NULL_POINTER, name, " is NULL, but it has ", bytes, " bytes");
  }
  if (reinterpret_cast<uintptr_t>(pointer) % alignment != 0) {
    fail(TORCH_OPS_MISALIGNED_POINTER, name, " must be at a multiple of ", alignment,
         " bytes, but it is at ", pointer);
  }
}

inline RowCall check_rows(const char* from_name, const void* from, const void* index,
                          const char* to_name, void* to, bool table_first, int64_t batch,
                          int64_t axis_size, int64_t entries, int64_t inner, torch_ops_dtype dtype,
                          torch_ops_index_type index_type, torch_ops_memory memory,
                          int64_t index_inner = 1) {
  check_memory(memory);
  check_size("batch", batch);
  check_size("axis_size", axis_size);
  check_size("entries", entries);
  check_size("inner", inner);
  const RowCall call{from,
                     index,
                     to,
                     batch,
                     axis_size,
                     entries,
                     inner,
                     dtype,
                     element_bytes(dtype),
                     index_bytes(index_type),
                     from_name,
                     to_name,
                     table_first};
  const auto bytes_of = [&](const char* name, bool table) {
    return checked_bytes(name, call.element_bytes, batch, table ? axis_size : entries, inner);
  };
  check_pointer(from_name, from, bytes_of(from_name, table_first), call.element_bytes);
  check_pointer("index", index,
                checked_bytes("index", call.index_bytes, batch, entries, index_inner),
                call.index_bytes);
  check_pointer(to_name, to, bytes_of(to_name, !table_first), call.element_bytes);
  // Kernels also count rows and their elements in int64, and have tables of wider elements.
  checked_bytes("the array of all rows", 16, batch, axis_size, inner);
  checked_bytes("the array of all entries", 16, batch, entries, inner);
  return call;
}

}  // namespace torch_ops
