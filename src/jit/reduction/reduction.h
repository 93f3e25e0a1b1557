// Reductions compiled at run time: over any axes of inputs that broadcast.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <pybind11/pybind11.h>

#include <memory>
#include <optional>
#include <vector>

#include "jit/call/made_by_key.h"
#include "jit/call/signature.h"

namespace torch_ops::jit {

// The functions that were compiled for one form of call.
struct ReductionCode {
  const void* partial = nullptr;  // of parts of the reduced elements
  const void* finish = nullptr;   // of the parts' results
  int64_t result_bytes = 0;       // of a part's result
};

class Reduction : public Signature {
 public:
  // The signature of all registered reductions: tensors in the order of their parameters, and
  // numbers with the positions of theirs.
  using Op = Tensor(at::TensorList tensors, at::ArrayRef<Scalar> numbers, at::IntArrayRef positions,
                    at::OptionalIntArrayRef dim, bool keepdim);

  bool has_identity = true;
  bool uses_size = false;  // `_in_ind`, `_out_ind`
  FromPython compile;
  std::optional<c10::TypedOperatorHandle<Op>> op;

  MadeByKey<ReductionCode> codes;  // by the form of a call
};

// Which axes a call reduces: all where `dims` has no value. Of no axes one, as of a number.
std::vector<bool> reduced_axes(const Reduction& kernel, int64_t rank, at::OptionalIntArrayRef dims);

// Runs the kernel on tensors without autograd and other layers. `dims` without a value: all axes.
// `outs` is empty or the one output.
Tensor reduce(Reduction& kernel, const Arguments& arguments, at::OptionalIntArrayRef dims,
              bool keepdim, at::TensorList outs);

// Registers the kernel as an op; once for each name.
void register_reduction(const std::shared_ptr<Reduction>& kernel);

}  // namespace torch_ops::jit
