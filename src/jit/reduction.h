// Reductions compiled at run time: over any axes of inputs that broadcast.
#pragma once

#include <pybind11/pybind11.h>

#include <mutex>
#include <optional>
#include <unordered_map>

#include "jit/signature.h"

namespace torch_ops::jit {

// The functions that were compiled for one form of call.
struct ReductionCode {
  const void* partial = nullptr;  // of parts of the reduced elements
  const void* finish = nullptr;   // of the parts' results
};

class Reduction : public Signature {
 public:
  bool has_identity = true;
  pybind11::object compile;  // in Python

  ~Reduction();

  template <class Make>
  ReductionCode code(const std::string& key, Make&& make) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      const auto found = codes_.find(key);
      if (found != codes_.end()) return found->second;
    }
    const ReductionCode made = make();
    const std::lock_guard<std::mutex> lock(mutex_);
    codes_.emplace(key, made);
    return made;
  }

 private:
  std::mutex mutex_;  // never held while Python is called
  std::unordered_map<std::string, ReductionCode> codes_;
};

// `dims` empty: all axes. `out` may be undefined.
Tensor reduce(Reduction& kernel, const Arguments& arguments, std::optional<at::IntArrayRef> dims,
              bool keepdim, const Tensor& out);

}  // namespace torch_ops::jit
