// Generated kernels as registered ops: each kind's kernels by their op's name, and the ops.
#pragma once

#include <torch/library.h>

#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "jit/call/batched_call.h"
#include "jit/call/python_arguments.h"
#include "jit/call/signature.h"

namespace torch_ops::jit {

template <class Kernel>
struct Registry {
  std::mutex mutex;
  std::unordered_map<std::string, std::shared_ptr<Kernel>> kernels;

  static Registry& get() {
    static auto* const registry = new Registry();  // ops outlive every static destructor
    return *registry;
  }
};

template <class Kernel>
std::shared_ptr<Kernel> find_kernel(const std::string& op_name) {
  Registry<Kernel>& all = Registry<Kernel>::get();
  const std::lock_guard<std::mutex> lock(all.mutex);
  const auto found = all.kernels.find(op_name);
  return found == all.kernels.end() ? nullptr : found->second;
}

// The kernel with these facts, which read(kernel) adds to its signature; or the one that has the
// op's name already.
template <class Kernel, class Read>
std::shared_ptr<Kernel> make_kernel(const pybind11::kwargs& facts, const Read& read) {
  if (auto known = find_kernel<Kernel>(facts["op_name"].cast<std::string>())) return known;
  auto kernel = std::make_shared<Kernel>();
  read_signature(*kernel, facts);
  read(*kernel);
  return kernel;
}

// Implements an op by functions that take its inputs as OpInputs, and then its other arguments.
template <class Op>
class Implementer;
template <class Result, class... More>
class Implementer<Result(at::TensorList, at::ArrayRef<Scalar>, at::IntArrayRef, More...)> {
 public:
  Implementer(torch::Library& library, const std::string& name) : library_(library), name_(name) {}

  template <class Function>
  void operator()(c10::DispatchKey key, const Function& function) const {
    add(key,
        [function](at::TensorList tensors, at::ArrayRef<Scalar> numbers, at::IntArrayRef positions,
                   More... more) -> Result {
          return function(OpInputs{tensors, numbers, positions}, more...);
        });
  }
  // Its first argument is the DispatchKeySet of the call.
  template <class Function>
  void with_keys(c10::DispatchKey key, const Function& function) const {
    add(key,
        [function](c10::DispatchKeySet keys, at::TensorList tensors, at::ArrayRef<Scalar> numbers,
                   at::IntArrayRef positions, More... more) -> Result {
          return function(keys, OpInputs{tensors, numbers, positions}, more...);
        });
  }
  template <class Function>
  void autograd(const Function& function) const {
    with_keys(c10::DispatchKey::Autograd, function);
  }

 private:
  template <class Function>
  void add(c10::DispatchKey key, const Function& function) const {
    library_.impl(name_.c_str(), torch::dispatch(key, torch::CppFunction(function)));
  }

  torch::Library& library_;
  const std::string& name_;
};

// Calls the registered op.
template <class Kernel, class... More>
auto call_op(const Kernel& kernel, const OpInputs& inputs, const More&... more) {
  return kernel.op->call(inputs.tensors, inputs.numbers, inputs.positions, more...);
}

// Registers a kernel's op and finds it. `backend` is for tensors with data; implement(impl) calls
// the Implementer for each other dispatch key. Of two threads that make one kernel the first
// registers it.
template <class Kernel, class Backend, class Implement>
void register_kernel(const std::shared_ptr<Kernel>& kernel, const std::string& schema,
                     const Backend& backend, const Implement& implement) {
  Registry<Kernel>& all = Registry<Kernel>::get();
  const std::lock_guard<std::mutex> lock(all.mutex);
  if (!all.kernels.emplace(kernel->op_name, kernel).second) return;
  // Never unregistered: compiled and exported programs hold the op.
  static auto* const library = new torch::Library(torch::Library::FRAGMENT, "torch_ops_jit",
                                                  std::nullopt, __FILE__, __LINE__);
  const std::string& name = kernel->op_name;
  library->def((name + schema).c_str(), {at::Tag::pt2_compliant_tag});
  const Implementer<typename Kernel::Op> impl(*library, name);
  impl(c10::DispatchKey::CPU, backend);
  impl(c10::DispatchKey::CUDA, backend);
  // Calls without a tensor, which no backend's key leads to, are for the CPU.
  impl.with_keys(
      c10::DispatchKey::BackendSelect,
      [kernel, backend](c10::DispatchKeySet keys, const OpInputs& inputs, const auto&... more) {
        if (keys.highestBackendKey() == c10::BackendComponent::InvalidBit) {
          return backend(inputs, more...);
        }
        const c10::DispatchKeySet after(c10::DispatchKeySet::FULL_AFTER,
                                        c10::DispatchKey::BackendSelect);
        return kernel->op->redispatch(keys & after, inputs.tensors, inputs.numbers,
                                      inputs.positions, more...);
      });
  implement(impl);
  library->impl(name.c_str(), torch::dispatch(c10::DispatchKey::Batched, rule_for_older_vmap()));
  kernel->op = c10::Dispatcher::singleton()
                   .findSchemaOrThrow(("torch_ops_jit::" + name).c_str(), "")
                   .typed<typename Kernel::Op>();
}

}  // namespace torch_ops::jit
