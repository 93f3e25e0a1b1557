// Reductions compiled at run time: over any axes of inputs that broadcast.
#pragma once

#include <pybind11/pybind11.h>

#include <optional>

#include "jit/made_by_key.h"
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

  MadeByKey<ReductionCode> codes;  // by the form of a call

  ~Reduction();
};

// `dims` empty: all axes. `out` may be undefined.
Tensor reduce(Reduction& kernel, const Arguments& arguments, std::optional<at::IntArrayRef> dims,
              bool keepdim, const Tensor& out);

}  // namespace torch_ops::jit
