// Elementwise kernels as registered ops.
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/VariableTypeUtils.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/library.h>

#include <mutex>
#include <unordered_map>

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

Arguments join_arguments(const Elementwise& kernel, at::TensorList tensors,
                         at::ArrayRef<Scalar> numbers, at::IntArrayRef positions) {
  Arguments arguments(kernel.in.size());
  TORCH_CHECK(
      tensors.size() + numbers.size() == kernel.in.size() && numbers.size() == positions.size(),
      kernel.op_name, ": takes ", kernel.in.size(), " arguments, but got ", tensors.size(),
      " tensors and ", numbers.size(), " numbers.");
  std::vector<bool> is_number(kernel.in.size());
  for (size_t k = 0; k < numbers.size(); ++k) {
    TORCH_CHECK_INDEX(positions[k] >= 0 && positions[k] < static_cast<int64_t>(kernel.in.size()),
                      kernel.op_name, ": there is no argument ", positions[k], ".");
    arguments[positions[k]].number = numbers[k];
    is_number[positions[k]] = true;
  }
  size_t at = 0;
  for (size_t k = 0; k < arguments.size(); ++k) {
    if (!is_number[k]) arguments[k].tensor = &tensors[at++];
  }
  return arguments;
}

std::vector<Tensor> call_op(Elementwise& kernel, const Arguments& arguments,
                            at::OptionalSymIntArrayRef size) {
  std::vector<Tensor> tensors;
  std::vector<Scalar> numbers;
  std::vector<int64_t> positions;
  for (size_t k = 0; k < arguments.size(); ++k) {
    if (arguments[k].tensor) {
      tensors.push_back(*arguments[k].tensor);
    } else {
      numbers.push_back(arguments[k].number);
      positions.push_back(static_cast<int64_t>(k));
    }
  }
  return kernel.op->call(tensors, numbers, positions, size);
}

std::shared_ptr<Elementwise> find_elementwise(const std::string& op_name) {
  Registry& all = registry();
  const std::lock_guard<std::mutex> lock(all.mutex);
  const auto found = all.kernels.find(op_name);
  return found == all.kernels.end() ? nullptr : found->second;
}

bool is_plain(const Arguments& arguments, at::TensorList outs, bool& wants_gradient) {
  static const c10::DispatchKeySet harmless =
      c10::DispatchKeySet({c10::DispatchKey::Dense, c10::DispatchKey::AutogradFunctionality,
                           c10::DispatchKey::ADInplaceOrView, c10::DispatchKey::BackendSelect,
                           c10::DispatchKey::AutocastCPU, c10::DispatchKey::AutocastCUDA}) |
      c10::DispatchKeySet(c10::DispatchKeySet::RAW,
                          c10::DispatchKeySet(c10::BackendComponent::CPUBit).raw_repr() |
                              c10::DispatchKeySet(c10::BackendComponent::CUDABit).raw_repr());
  const c10::impl::LocalDispatchKeySet local = c10::impl::tls_local_dispatch_key_set();
  c10::DispatchKeySet keys = local.included_;
  bool tracked = false, has_tangent = false;
  const auto look = [&](const Tensor& tensor) {
    keys = keys | tensor.key_set();
    tracked |= tensor.requires_grad();
    has_tangent |= torch::autograd::isFwGradDefined(tensor);
  };
  for (const Argument& argument : arguments) {
    if (argument.tensor) look(*argument.tensor);
  }
  for (const Tensor& out : outs) look(out);
  wants_gradient = tracked && at::GradMode::is_enabled();
  return !wants_gradient && !has_tangent &&
         ((keys - local.excluded_).raw_repr() & ~harmless.raw_repr()) == 0;
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
    return elementwise_batched(kernel, tensors, numbers, positions, size);
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
