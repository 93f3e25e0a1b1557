// Elementwise kernels compiled at run time: a call's arguments, its types, its plan, its launch.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <pybind11/pybind11.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "jit/call/made_by_key.h"
#include "jit/call/signature.h"
#include "jit/reduction/reduction.h"

namespace torch_ops::jit {

// A compiled function, and how many elements a block takes on.
struct Variant {
  const void* function = nullptr;
  int64_t threads = 0;
  int64_t unroll = 0;
};

class Elementwise : public Signature {
 public:
  // The signature of all registered elementwise ops: tensors in the order of their parameters, and
  // numbers with the positions of theirs.
  using Op = std::vector<Tensor>(at::TensorList tensors, at::ArrayRef<Scalar> numbers,
                                 at::IntArrayRef positions, at::OptionalSymIntArrayRef size);

  bool uses_index = false;      // `i`
  bool uses_size = false;       // `_ind`
  bool reads_outputs = false;   // may leave an output as it was
  bool has_loop_parts = false;  // loop_prep or after_loop
  std::vector<bool> saves;      // for a derivative: of each input, then of each output
  FromPython compile;           // variants
  FromPython derive;            // derivatives
  FromPython sum;               // the reduction that sums the one output
  std::optional<c10::TypedOperatorHandle<Op>> op;

  // The kernel of a derivative: "vjp" or "jvp" with respect to the inputs `wanted`. Of the vjp's
  // results those marked `wide` are for sums, so in float32; of the outputs only those marked
  // `given` have a gradient.
  std::shared_ptr<Elementwise> derived(const std::string& kind, const std::vector<bool>& wanted,
                                       const std::vector<bool>& wide,
                                       const std::vector<bool>& given = {});

  // Sums the one output over all of its elements' axes but some; null where there is no such code.
  std::shared_ptr<Reduction> summed();

  MadeByKey<Variant> variants;  // by the form of a call

 private:
  MadeByKey<std::shared_ptr<Elementwise>> derived_;
  MadeByKey<std::shared_ptr<Reduction>> summed_;
};

// Runs the kernel on tensors without autograd and other layers. `outs` are empty or one for each
// output.
std::vector<Tensor> run(Elementwise& kernel, const Arguments& arguments, at::TensorList outs,
                        std::optional<at::IntArrayRef> size);

// What is registered for the op on the key Autograd.
std::vector<Tensor> elementwise_autograd(const std::shared_ptr<Elementwise>& kernel,
                                         c10::DispatchKeySet keys, const OpInputs& inputs,
                                         at::OptionalSymIntArrayRef size);

// Registers the kernel as an op, with its derivative and its batching rule; once for each name.
void register_elementwise(const std::shared_ptr<Elementwise>& kernel);

}  // namespace torch_ops::jit
