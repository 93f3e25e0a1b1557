// The arguments of a raw kernel's launch: checked against its signature, and laid out for CUDA.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/util/Exception.h>
#include <c10/util/SmallVector.h>
#include <pybind11/pybind11.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace torch_ops::jit {

enum class ParamKind {
  kPointer,
  kBool,
  kInt,
  kUnsigned,
  kBits,  // an integer of unknown sign: of PTX
  kFloat,
  kHalf,
  kBFloat16,
  kComplex,  // two floats or two doubles
  kBytes,    // a struct
  kUnknown,  // of a cubin, which tells sizes alone: a pointer or a number
};

// A parameter of a kernel. Sizes in bytes.
struct Param {
  std::string text;  // "const float* x": what messages show
  ParamKind kind = ParamKind::kUnknown;
  int64_t size = 0;       // 0: not known before the kernel is loaded
  uint64_t dtypes = 0;    // a bit for each that a pointer may point to; 0: any
  std::string wanted;     // those dtypes in words
  int64_t alignment = 1;  // that a pointer must have: 16 for float4*
  bool writes = false;    // a pointer to what is not const
};

// Whose arguments: what messages and conversions need.
struct Callee {
  std::string name;  // 'RawKernel "relu"'
  std::vector<Param> params;
  pybind11::object adopt;  // (array, index, text, writes, stream) -> tensor
};

// One launch's arguments. Keeps what they point into alive until it ends.
class RawArguments {
 public:
  // `stream` is what the caller gave, or None.
  RawArguments(const Callee& callee, PyObject* args, bool strided, pybind11::handle stream);

  void** pointers() { return pointers_.data(); }
  // Of the tensors; none where there is no tensor.
  std::optional<c10::Device> device() const { return device_; }
  // Autograd then knows that what it may have saved was overwritten.
  void bump_versions() const;

 private:
  struct alignas(16) Slot {
    char bytes[16];
  };

  // How errors about an argument begin.
  std::string place(size_t index) const;
  template <class... Why>
  [[noreturn]] void refuse_type(size_t index, const Why&... why) const {
    TORCH_CHECK_TYPE(false, place(index), why...);
  }
  template <class... Why>
  [[noreturn]] void refuse_value(size_t index, const Why&... why) const {
    TORCH_CHECK_VALUE(false, place(index), why...);
  }
  void add_tensor(size_t index, const at::Tensor& tensor);
  void add_pointer(size_t index, PyObject* value, pybind11::handle stream);
  void add_scalar(size_t index, PyObject* value);
  void add_integer(size_t index, PyObject* value);
  void add_bytes(size_t index, PyObject* value);
  void add_unknown(size_t index, PyObject* value, pybind11::handle stream);
  double as_double(size_t index, PyObject* value) const;

  template <class T>
  void store(size_t index, T value);

  const Callee& callee_;
  const bool strided_;
  c10::SmallVector<Slot, 12> slots_;
  c10::SmallVector<void*, 12> pointers_;
  std::optional<c10::Device> device_;
  size_t device_from_ = 0;
  c10::SmallVector<c10::TensorImpl*, 8> written_;  // alive through args or adopted_
  std::vector<at::Tensor> adopted_;
  std::vector<pybind11::object> kept_;
};

}  // namespace torch_ops::jit
