// A generated kernel's parameters and arguments as Python hands them over.
#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/record_function.h>
#include <pybind11/pybind11.h>

#include "jit/call/made_by_key.h"
#include "jit/call/plan.h"
#include "jit/call/signature.h"

namespace torch_ops::jit {

// Whether torch's functions would hand a call with these arguments to a subclass of Tensor or to a
// mode. Then the result is NotImplemented, and Python calls the registered op, which does so.
bool is_watched(const pybind11::tuple& args);
bool is_watched(const pybind11::tuple& args, const pybind11::dict& by_name);
inline pybind11::object not_implemented() {
  return pybind11::reinterpret_borrow<pybind11::object>(Py_NotImplemented);
}
// A tensor or a number; a TypeError for anything else.
Argument argument_of(const Signature& kernel, const std::string& name, PyObject* value);
// A call's arguments for the input parameters. The tensors are held: the call runs without the GIL.
struct HeldArguments {
  // `resolved`: lazy conjugation and negation are carried out, which a registered op does by
  // itself.
  HeldArguments(const Signature& kernel, const pybind11::tuple& args, bool resolved);
  Arguments arguments;
  c10::SmallVector<Tensor, 8> tensors;
};
// An int, or a sequence of them; a TypeError or ValueError that names the argument for anything
// else.
std::vector<int64_t> ints_of(const Signature& kernel, const char* name,
                             const pybind11::object& value);
// By what signature() of torch_ops/jit/_registered.py returns.
void read_signature(Signature& kernel, const pybind11::kwargs& facts);
// Calls a kernel as Python does: by run(), straight to its code, or by op(), its registered op,
// where a layer of torch wants to see one of its tensors. `more`: those beside arguments and
// outputs.
template <class Run, class Op>
auto call_from_python(const Signature& kernel, const Arguments& arguments, at::TensorList outs,
                      at::TensorList more, const Run& run, const Op& op) {
  bool wants_gradient = false;
  const bool plain = is_plain(arguments, outs, more, wants_gradient);
  if (!plain) check_op_call(kernel, arguments, outs, wants_gradient);
  const pybind11::gil_scoped_release release;  // a launch waits where the queue is full
  if (!plain) return op();
  const at::AutoDispatchBelowADInplaceOrView below;
  RECORD_FUNCTION(kernel.op_name, c10::ArrayRef<const c10::IValue>());
  auto results = run();
  for (const Tensor& written : outs) {
    if (!written.is_inference()) written.unsafeGetTensorImpl()->bump_version();
  }
  return results;
}
// One tensor, or a tuple of several.
pybind11::object as_result(const std::vector<Tensor>& tensors);
// The dtypes of the outputs of a registered op's call, for tensors in the order of their
// parameters.
pybind11::tuple output_dtypes(const Signature& kernel, const std::vector<Tensor>& tensors,
                              const pybind11::list& numbers, const std::vector<int64_t>& positions);

// What Python returns of code that it has compiled.
struct Compiled {
  pybind11::tuple made;

  const void* function(size_t k) const { return reinterpret_cast<const void*>(number(k)); }
  int64_t number(size_t k) const { return made[k].cast<int64_t>(); }
};
// What every form of call begins with, as Python gets it.
pybind11::tuple facts_of(c10::Device device, const Layout& layout);

inline void add_to_key(std::string& key, const std::string& text) { key += text; }
inline void add_to_key(std::string& key, int64_t number) {
  key.push_back(static_cast<char>(number));
}
inline void add_to_key(std::string& key, at::IntArrayRef numbers) {
  for (const int64_t number : numbers) add_to_key(key, number);
}

// The code for a form of call; Python compiles it when it is first asked for. `more` is what the
// form has beyond the layout: the fields of its class in torch_ops/jit/generation/, in their order.
template <class Code, class Read, class... More>
Code find_code(MadeByKey<Code>& codes, const FromPython& compile, c10::Device device,
               const Layout& layout, const Read& read, const More&... more) {
  std::string key = layout.key(device);
  (add_to_key(key, more), ...);
  return codes.get(key,
                   [&] { return read(Compiled{compile(*facts_of(device, layout), more...)}); });
}

}  // namespace torch_ops::jit
