// A call's memory, as generated code gets it: 8-byte words whose order the sources that
// torch_ops/jit/generation/ writes declare as a struct.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Scalar.h>

#include <cstring>

namespace torch_ops::jit {

class Words {
 public:
  void put(int64_t value) { words_.push_back(value); }
  void put(const void* pointer) { words_.push_back(reinterpret_cast<intptr_t>(pointer)); }
  void put_pair(uint32_t low, uint32_t high) {
    words_.push_back(static_cast<int64_t>(uint64_t{high} << 32 | low));
  }
  // In the type that the snippet computes in; a number beyond a float's range becomes infinite.
  void put(const c10::Scalar& number, c10::ScalarType type);
  // A raw parameter: see Raw in headers/scalar.h.
  void put_raw(const at::Tensor& tensor);

  size_t size() const { return words_.size(); }
  void resize(size_t size) { words_.resize(size); }
  int64_t& operator[](size_t i) { return words_[i]; }
  int64_t* data() { return words_.data(); }

 private:
  c10::SmallVector<int64_t, 64> words_;
};

}  // namespace torch_ops::jit
