// Reductions as registered ops. They have no derivative, and say so.
#include <torch/library.h>

#include <mutex>
#include <unordered_map>

#include "common/torch/autograd.h"
#include "jit/batched_call.h"
#include "jit/no_derivative.h"
#include "jit/reduction.h"

namespace torch_ops::jit {
namespace {

struct Registry {
  std::mutex mutex;
  std::unordered_map<std::string, std::shared_ptr<Reduction>> kernels;
};
Registry& registry() {
  static auto* const registry = new Registry();  // ops outlive every static destructor
  return *registry;
}

// The kernel that was made last with this source.
std::shared_ptr<Reduction> find_reduction(const std::string& op_name) {
  Registry& all = registry();
  const std::lock_guard<std::mutex> lock(all.mutex);
  return all.kernels.at(op_name);
}

std::string has_none(const Reduction& kernel, const char* what) {
  return "ReductionKernel \"" + kernel.name + "\" has no " + what +
         ". Detach its inputs, or write the reduction with torch's ops.";
}

Tensor reduction_autograd(const Reduction& kernel, c10::DispatchKeySet keys, at::TensorList tensors,
                          at::ArrayRef<Scalar> numbers, at::IntArrayRef positions,
                          at::OptionalIntArrayRef dim, bool keepdim) {
  for (const Tensor& tensor : tensors) {
    TORCH_CHECK_NOT_IMPLEMENTED(!torch::autograd::isFwGradDefined(tensor),
                                has_none(kernel, "forward-mode derivative"));
  }
  const Tensor result =
      autograd::below_autograd(keys, *kernel.op, tensors, numbers, positions, dim, keepdim);
  if (torch::autograd::compute_requires_grad(tensors)) {
    refuse_gradient(has_none(kernel, "gradient"), tensors, result);
  }
  return result;
}

Tensor reduction_batched(const Reduction& kernel, at::TensorList tensors,
                         at::ArrayRef<Scalar> numbers, at::IntArrayRef positions,
                         at::OptionalIntArrayRef dim, bool keepdim) {
  const auto call = [&](const std::vector<Tensor>& values, std::optional<int64_t> sample_rank) {
    if (!sample_rank) {
      return std::vector<Tensor>{kernel.op->call(values, numbers, positions, dim, keepdim)};
    }
    const std::vector<bool> reduced = reduced_axes(kernel, *sample_rank, dim);
    std::vector<int64_t> shifted;
    for (int64_t axis = 0; axis < *sample_rank; ++axis) {
      if (reduced[axis]) shifted.push_back(axis + 1);
    }
    return std::vector<Tensor>{kernel.op->call(values, numbers, positions, shifted, keepdim)};
  };
  return call_batched(kernel, tensors, numbers, positions, kernel.uses_size, call).at(0);
}

}  // namespace

Tensor call_op(const Reduction& kernel, const Arguments& arguments, at::OptionalIntArrayRef dim,
               bool keepdim) {
  const auto [tensors, numbers, positions] = split_arguments(arguments);
  return kernel.op->call(tensors, numbers, positions, dim, keepdim);
}

void register_reduction(const std::shared_ptr<Reduction>& kernel) {
  Registry& all = registry();
  const std::lock_guard<std::mutex> lock(all.mutex);
  const std::string name = kernel->op_name;
  auto& known = all.kernels[name];
  if (known) {
    kernel->op = known->op;
    known = kernel;
    return;
  }
  // Never unregistered: compiled and exported programs hold the op.
  static auto* const library = new torch::Library(torch::Library::FRAGMENT, "torch_ops_jit",
                                                  std::nullopt, __FILE__, __LINE__);
  library->def((name + "(Tensor[] tensors, Scalar[] numbers, int[] positions, int[]? dim=None, "
                       "bool keepdim=False) -> Tensor")
                   .c_str(),
               {at::Tag::pt2_compliant_tag});
  const auto impl = [&](c10::DispatchKey key, auto function) {
    library->impl(name.c_str(), torch::dispatch(key, torch::CppFunction(function)));
  };
  const auto backend = [name](at::TensorList tensors, at::ArrayRef<Scalar> numbers,
                              at::IntArrayRef positions, at::OptionalIntArrayRef dim,
                              bool keepdim) {
    const auto kernel = find_reduction(name);
    return reduce(*kernel, join_arguments(*kernel, tensors, numbers, positions), dim, keepdim,
                  Tensor());
  };
  impl(c10::DispatchKey::CPU, backend);
  impl(c10::DispatchKey::CUDA, backend);
  impl(c10::DispatchKey::Autograd,
       [name](c10::DispatchKeySet keys, at::TensorList tensors, at::ArrayRef<Scalar> numbers,
              at::IntArrayRef positions, at::OptionalIntArrayRef dim, bool keepdim) {
         return reduction_autograd(*find_reduction(name), keys, tensors, numbers, positions, dim,
                                   keepdim);
       });
  impl(c10::DispatchKey::FuncTorchBatched,
       [name](at::TensorList tensors, at::ArrayRef<Scalar> numbers, at::IntArrayRef positions,
              at::OptionalIntArrayRef dim, bool keepdim) {
         return reduction_batched(*find_reduction(name), tensors, numbers, positions, dim, keepdim);
       });
  kernel->op = c10::Dispatcher::singleton()
                   .findSchemaOrThrow(("torch_ops_jit::" + name).c_str(), "")
                   .typed<ReductionOp>();
  known = kernel;
}

}  // namespace torch_ops::jit
