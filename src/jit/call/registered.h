// Generated kernels as registered ops: each kind's kernels by their op's name, and the ops.
#pragma once

#include <torch/library.h>

#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

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

// Registers a kernel's op and finds it. implement(impl) calls impl(key, function) for each
// dispatch key. Of two threads that make one kernel the first registers it.
template <class Kernel, class Implement>
void register_kernel(const std::shared_ptr<Kernel>& kernel, const std::string& schema,
                     const Implement& implement) {
  Registry<Kernel>& all = Registry<Kernel>::get();
  const std::lock_guard<std::mutex> lock(all.mutex);
  if (!all.kernels.emplace(kernel->op_name, kernel).second) return;
  // Never unregistered: compiled and exported programs hold the op.
  static auto* const library = new torch::Library(torch::Library::FRAGMENT, "torch_ops_jit",
                                                  std::nullopt, __FILE__, __LINE__);
  const std::string& name = kernel->op_name;
  library->def((name + schema).c_str(), {at::Tag::pt2_compliant_tag});
  implement([&](c10::DispatchKey key, auto function) {
    library->impl(name.c_str(), torch::dispatch(key, torch::CppFunction(function)));
  });
  kernel->op = c10::Dispatcher::singleton()
                   .findSchemaOrThrow(("torch_ops_jit::" + name).c_str(), "")
                   .typed<typename Kernel::Op>();
}

}  // namespace torch_ops::jit
