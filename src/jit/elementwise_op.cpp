// Elementwise kernels as registered ops.
#include <torch/csrc/utils/pybind.h>
#include <torch/library.h>

#include <algorithm>
#include <mutex>
#include <unordered_map>

#include "jit/batched_call.h"
#include "jit/elementwise.h"

namespace torch_ops::jit {
namespace {

namespace py = pybind11;

struct Registry {
  std::mutex mutex;
  std::unordered_map<std::string, std::shared_ptr<Elementwise>> kernels;
};
Registry& registry() {
  static auto* const registry = new Registry();  // ops outlive every static destructor
  return *registry;
}

std::string as_key(const std::string& kind, const std::vector<bool>& a,
                   const std::vector<bool>& b) {
  std::string key = kind;
  for (const bool bit : a) key += bit ? '1' : '0';
  key += '_';
  for (const bool bit : b) key += bit ? '1' : '0';
  return key;
}

}  // namespace

std::vector<Tensor> call_op(Elementwise& kernel, const Arguments& arguments,
                            at::OptionalSymIntArrayRef size) {
  const auto [tensors, numbers, positions] = split_arguments(arguments);
  return kernel.op->call(tensors, numbers, positions, size);
}

std::shared_ptr<Elementwise> find_elementwise(const std::string& op_name) {
  Registry& all = registry();
  const std::lock_guard<std::mutex> lock(all.mutex);
  const auto found = all.kernels.find(op_name);
  return found == all.kernels.end() ? nullptr : found->second;
}

Elementwise::~Elementwise() {
  const py::gil_scoped_acquire gil;
  compile = py::object();
  derive = py::object();
  sum = py::object();
}

std::shared_ptr<Reduction> Elementwise::summed() {
  return summed_.get("", [&] {
    const py::gil_scoped_acquire gil;
    const py::object made = sum();
    return made.is_none() ? nullptr : made.cast<std::shared_ptr<Reduction>>();
  });
}

std::shared_ptr<Elementwise> Elementwise::derived(const std::string& kind,
                                                  const std::vector<bool>& wanted,
                                                  const std::vector<bool>& wide) {
  return derived_.get(as_key(kind, wanted, wide), [&] {
    const py::gil_scoped_acquire gil;
    return derive(kind, wanted, wide).cast<std::shared_ptr<Elementwise>>();
  });
}

void register_elementwise(const std::shared_ptr<Elementwise>& kernel) {
  Registry& all = registry();
  const std::lock_guard<std::mutex> lock(all.mutex);
  if (!all.kernels.emplace(kernel->op_name, kernel).second) return;
  // Never unregistered: compiled and exported programs hold the op.
  static auto* const library = new torch::Library(torch::Library::FRAGMENT, "torch_ops_jit",
                                                  std::nullopt, __FILE__, __LINE__);
  const std::string& name = kernel->op_name;
  library->def((name + "(Tensor[] tensors, Scalar[] numbers, int[] positions, SymInt[]? size=None)"
                       " -> Tensor[]")
                   .c_str(),
               {at::Tag::pt2_compliant_tag});
  const auto backend = [kernel](at::TensorList tensors, at::ArrayRef<Scalar> numbers,
                                at::IntArrayRef positions, at::OptionalSymIntArrayRef size) {
    std::optional<at::IntArrayRef> sizes;
    if (size) sizes = C10_AS_INTARRAYREF_SLOW(*size);
    return run(*kernel, join_arguments(*kernel, tensors, numbers, positions), {}, sizes);
  };
  library->impl(name.c_str(), torch::dispatch(c10::DispatchKey::CPU, torch::CppFunction(backend)));
  library->impl(name.c_str(), torch::dispatch(c10::DispatchKey::CUDA, torch::CppFunction(backend)));
  const auto autograd = [kernel](c10::DispatchKeySet keys, at::TensorList tensors,
                                 at::ArrayRef<Scalar> numbers, at::IntArrayRef positions,
                                 at::OptionalSymIntArrayRef size) {
    return elementwise_autograd(kernel, keys, tensors, numbers, positions, size);
  };
  library->impl(name.c_str(),
                torch::dispatch(c10::DispatchKey::Autograd, torch::CppFunction(autograd)));
  const auto batched = [kernel](at::TensorList tensors, at::ArrayRef<Scalar> numbers,
                                at::IntArrayRef positions, at::OptionalSymIntArrayRef size) {
    // What an element does may depend on where it stands, or on an array as a whole.
    const bool apart =
        kernel->uses_index || kernel->uses_size || size.has_value() ||
        std::any_of(kernel->out.begin(), kernel->out.end(), [](auto& out) { return out.raw; });
    return call_batched(*kernel, tensors, numbers, positions, apart,
                        [&](const std::vector<Tensor>& values, std::optional<int64_t>) {
                          return kernel->op->call(values, numbers, positions, size);
                        });
  };
  library->impl(name.c_str(),
                torch::dispatch(c10::DispatchKey::FuncTorchBatched, torch::CppFunction(batched)));
  const auto legacy = [kernel](at::TensorList tensors, at::ArrayRef<Scalar> numbers,
                               at::IntArrayRef positions, at::OptionalSymIntArrayRef size) {
    return batched_before_functorch(*kernel, tensors, numbers, positions, size);
  };
  library->impl(name.c_str(),
                torch::dispatch(c10::DispatchKey::Batched, torch::CppFunction(legacy)));
  kernel->op = c10::Dispatcher::singleton()
                   .findSchemaOrThrow(("torch_ops_jit::" + name).c_str(), "")
                   .typed<ElementwiseOp>();
}

}  // namespace torch_ops::jit
