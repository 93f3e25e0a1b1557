// Elementwise kernels as registered ops.
#include <torch/csrc/utils/pybind.h>

#include <algorithm>

#include "jit/call/batched_call.h"
#include "jit/call/registered.h"
#include "jit/elementwise/elementwise.h"

namespace torch_ops::jit {
namespace py = pybind11;

std::shared_ptr<Reduction> Elementwise::summed() {
  return summed_.get("", [&] {
    const py::object made = sum();
    return made.is_none() ? nullptr : made.cast<std::shared_ptr<Reduction>>();
  });
}

std::shared_ptr<Elementwise> Elementwise::derived(const std::string& kind,
                                                  const std::vector<bool>& wanted,
                                                  const std::vector<bool>& wide,
                                                  const std::vector<bool>& given) {
  return derived_.get(as_key(kind, {&wanted, &wide, &given}), [&] {
    return derive(kind, wanted, wide, given).cast<std::shared_ptr<Elementwise>>();
  });
}

void register_elementwise(const std::shared_ptr<Elementwise>& kernel) {
  const char* const schema =
      "(Tensor[] tensors, Scalar[] numbers, int[] positions, SymInt[]? size=None) -> Tensor[]";
  const auto backend = [kernel](const OpInputs& inputs, at::OptionalSymIntArrayRef size) {
    std::optional<at::IntArrayRef> sizes;
    if (size) sizes = C10_AS_INTARRAYREF_SLOW(*size);
    return run(*kernel, join_arguments(*kernel, inputs), {}, sizes);
  };
  const auto batched = [kernel](const OpInputs& inputs, at::OptionalSymIntArrayRef size) {
    // What an element does may depend on where it stands, or on an array as a whole.
    const bool apart =
        kernel->uses_index || kernel->uses_size || size.has_value() ||
        std::any_of(kernel->out.begin(), kernel->out.end(), [](auto& out) { return out.raw; });
    return call_batched(*kernel, inputs, apart,
                        [&](const std::vector<Tensor>& values, std::optional<int64_t>) {
                          return call_op(*kernel, inputs.with(values), size);
                        });
  };
  register_kernel(kernel, schema, backend, [&](const auto& impl) {
    impl(c10::DispatchKey::FuncTorchBatched, batched);
    impl.autograd([kernel](const auto&... args) { return elementwise_autograd(kernel, args...); });
  });
}

}  // namespace torch_ops::jit
