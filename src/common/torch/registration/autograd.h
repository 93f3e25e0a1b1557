// The one route to a derivative: a graph node on the Autograd key, written in the way of PyTorch's
// own generated nodes. Such an op works under torch.func, forward-mode AD, double
// backward, torch.compile and compiled autograd; a torch::autograd::Function would not.
//
// Most ops only need derive.h. An op that saves its output, or that works in place, writes
//   struct FooBackward final : autograd::DerivativeNode<FooBackward> {
//     static constexpr const char* kName = "FooBackward";
//     SavedVariable input;                                  // what backward needs
//     int64_t dim;
//     template <class Visit> void fields(Visit&& visit) { visit(input); visit(dim); }
//     variable_list backward(const Tensor& grad_output);    // one entry per input, in order
//                                                           // or const variable_list& grads
//   };
// and a forward function for the Autograd key that calls, in this order, make_node,
// below_autograd, record, set_tangent, and fills the node's fields. ElementwiseOp
// (common/elementwise/elementwise_op.h) is an example.
#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/VariableTypeUtils.h>
#include <torch/csrc/autograd/python_cpp_function.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/dynamo/compiled_autograd.h>

#include <algorithm>
#include <mutex>
#include <string>
#include <string_view>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

#include "common/torch/registration/compat.h"

namespace torch_ops::autograd {

using at::Tensor;
using compat::NodePtr;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

// What gives each kind of node in this module a type in Python.
inline std::vector<void (*)()>& node_types() {
  static std::vector<void (*)()> all;
  return all;
}

// Python then shows a node by its name, as it does torch's own. And AOTAutograd takes a node
// without a type for that of a custom function, and the result of an op in place for another tensor
// than its argument. PYBIND11_MODULE calls it: the GIL is held, and all static variables have
// values. jit's does not, for its nodes have the names of users' kernels, one by one.
inline void name_nodes_in_python() {
  for (void (*name_in_python)() : node_types()) name_in_python();
}

template <class Op>
class DerivativeNode : public compat::NodeBase {
 public:
  DerivativeNode() { static_cast<void>(listed_); }

  std::string name() const override { return Op::kName; }

  void release_variables() override {
    std::lock_guard<std::mutex> lock(mutex_);
    self().fields([](auto& field, bool /*is_output*/ = false) {
      if constexpr (is_saved<decltype(field)>) field.reset_data();
      if constexpr (are_saved<decltype(field)>) {
        for (SavedVariable& each : field) each.reset_data();
      }
    });
  }

  // Compiled autograd: the node's fields, for its cache key ...
  void compiled_args(torch::dynamo::autograd::CompiledNodeArgs& args) const override {
    const_cast<DerivativeNode*>(this)->self().fields([&](auto& field, bool is_output = false) {
      if constexpr (is_saved<decltype(field)> || are_saved<decltype(field)>) {
        args.collect(field, is_output);
      } else {
        args.collect(field);
      }
    });
  }

  // ... and a call of its formula in the graph. While the graph is made, gradients are stand-ins
  // without a shape, so nothing may be computed from them: the node's fields go into the graph as
  // arguments, and the formula runs on a node made from them.
  variable_list apply_with_saved(const variable_list& grads,
                                 torch::dynamo::autograd::SwapSavedVariables& saved) override {
    namespace compiled = torch::dynamo::autograd;
    self().fields([&](auto& field, bool /*is_output*/ = false) { saved.before(field); });
    compiled::PackedArgs packed;
    std::vector<at::TypePtr> types;
    const auto pack = [&](const auto& value) {
      packed.pack(value);
      types.push_back(compiled::IValuePacker<std::decay_t<decltype(value)>>::packed_type());
    };
    std::vector<bool> needed(num_outputs());
    for (size_t i = 0; i < needed.size(); ++i) needed[i] = needs_input_grad(i);
    pack(needed);
    self().fields([&](auto& field, bool /*is_output*/ = false) { pack(unpack(field)); });
    const auto& compiler = compiled::getPyCompilerInterface();
    const std::string function =
        compiler->bind_function(saved.get_py_compiler(), name(), apply_packed, types,
                                /*is_custom_function=*/true, /*is_traceable=*/true);
    variable_list grad_inputs = compiler->call_function(
        saved.get_py_compiler(), "apply_functional", function, grads, packed.vec(),
        compiled::IValuePacker<std::vector<std::optional<torch::autograd::InputMetadata>>>::pack(
            compiled::get_input_metadata(next_edges())));
    self().fields([&](auto& field, bool /*is_output*/ = false) { saved.after(field); });
    return grad_inputs;
  }

 protected:
  void drop_fields() override {
    self().fields([](auto& field, bool /*is_output*/ = false) {
      if constexpr (is_saved<decltype(field)> || are_saved<decltype(field)>) {
        field = std::decay_t<decltype(field)>();
      }
    });
  }

  variable_list apply(variable_list&& grads) override {
    // Two backward passes may run one node from two threads.
    std::lock_guard<std::mutex> lock(mutex_);
    if (std::none_of(grads.begin(), grads.end(), [](auto& grad) { return grad.defined(); })) {
      return variable_list(needed_.empty() ? num_outputs() : needed_.size());
    }
    if constexpr (std::is_invocable_v<decltype(&Op::backward), Op&, const variable_list&>) {
      return self().backward(grads);  // of several outputs: some may be undefined
    } else {
      return self().backward(grads[0]);
    }
  }

  // Is the gradient of this input needed?
  bool needs_input_grad(size_t input) const {
    return needed_.empty() ? task_should_compute_output(input) : needed_[input];
  }

  Tensor unpack(const SavedVariable& saved) {
    for (const auto& [field, tensor] : unpacked_) {
      if (field == &saved) return tensor;
    }
    return saved.unpack(getptr());
  }

  std::vector<Tensor> unpack(const std::vector<SavedVariable>& saved) {
    std::vector<Tensor> tensors;
    for (const SavedVariable& each : saved) tensors.push_back(unpack(each));
    return tensors;
  }

  template <class Field>
  const Field& unpack(const Field& field) {
    return field;
  }

 private:
  template <class Field>
  static constexpr bool is_saved = std::is_same_v<std::decay_t<Field>, SavedVariable>;
  template <class Field>
  static constexpr bool are_saved = std::is_same_v<std::decay_t<Field>, std::vector<SavedVariable>>;

  static variable_list apply_packed(const variable_list& grads,
                                    const std::vector<at::IValue>& args) {
    Op node;
    torch::dynamo::autograd::PackedArgs packed(args);
    node.needed_ = packed.unpack<std::vector<bool>>();
    node.fields([&](auto& field, bool /*is_output*/ = false) {
      if constexpr (is_saved<decltype(field)>) {
        node.unpacked_.emplace_back(&field, packed.unpack<Tensor>());
      } else if constexpr (are_saved<decltype(field)>) {
        const auto tensors = packed.unpack<std::vector<Tensor>>();
        field.resize(tensors.size());
        for (size_t i = 0; i < tensors.size(); ++i) {
          node.unpacked_.emplace_back(&field[i], tensors[i]);
        }
      } else {
        field = packed.unpack<std::decay_t<decltype(field)>>();
      }
    });
    return node.apply(variable_list(grads));
  }

  static void name_in_python() {
    static PyTypeObject type;
    torch::autograd::_initFunctionPyTypeObject(type, std::string_view(Op::kName).data(),
                                               /*function_properties=*/nullptr,
                                               /*function_methods=*/nullptr);
    torch::autograd::registerCppFunction(typeid(Op), &type);
  }
  inline static const bool listed_ = (node_types().push_back(&name_in_python), true);

  Op& self() { return static_cast<Op&>(*this); }

  std::mutex mutex_;
  // Of a node that compiled autograd's graph has made; empty in others.
  std::vector<bool> needed_;
  std::vector<std::pair<const SavedVariable*, Tensor>> unpacked_;
};

// The node of a call whose differentiable inputs are `inputs`; null if none requires grad.
template <class Op, class... Tensors>
NodePtr<Op> make_node(const Tensors&... inputs) {
  if (!torch::autograd::compute_requires_grad(inputs...)) return nullptr;
  auto node = compat::make_node<Op>();
  node->set_next_edges(torch::autograd::collect_next_edges(inputs...));
  return node;
}

// Calls `op` on the dispatch keys below Autograd: functorch's layers, then the backend's kernel.
template <class Op, class... Args>
decltype(auto) below_autograd(c10::DispatchKeySet keys, const Op& op, Args&&... args) {
  at::AutoDispatchBelowADInplaceOrView guard;
  return op.redispatch(keys & c10::after_autograd_keyset, std::forward<Args>(args)...);
}

// Makes `node` (which may be null) the history of `output`.
template <class Op>
void record(const Tensor& output, const NodePtr<Op>& node) {
  if (node) torch::autograd::set_history(output, node);
}

// `tensor` without its forward-mode tangent: the formula of a tangent must use it, since a
// tangent may have none of its own at the same level.
inline Tensor primal(const Tensor& tensor) {
  return torch::autograd::isFwGradDefined(tensor) ? tensor._fw_primal(/*level=*/0) : tensor;
}

// Forward-mode AD: if any of `inputs` has a tangent, `output` gets `tangent(inputs' tangents)`.
// An absent tangent is passed as an undefined tensor.
template <class Tangent, class... Tensors>
void set_tangent(const Tensor& output, Tangent&& tangent, const Tensors&... inputs) {
  if (!(torch::autograd::isFwGradDefined(inputs) || ...)) return;
  output._set_fw_grad(tangent(inputs._fw_grad(/*level=*/0)...), /*level=*/0,
                      /*is_inplace_op=*/false);
}

// The same for an op that has overwritten `input`: its tangent becomes `derivative(tangent)`, in
// place too, so that the tangents of its views follow.
template <class Derivative>
void change_tangent(const Tensor& input, Derivative&& derivative) {
  if (!torch::autograd::isFwGradDefined(input)) return;
  const Tensor tangent = input._fw_grad(/*level=*/0);
  tangent.copy_(derivative(tangent));
  input._set_fw_grad(tangent, /*level=*/0, /*is_inplace_op=*/true);
}

// The node of with_zero_gradient: passes the gradient on, and zeros to the other input.
struct ZeroGradientNode final : DerivativeNode<ZeroGradientNode> {
  static constexpr const char* kName = "ZeroGradientBackward";

  template <class Visit>
  void fields(Visit&&) {}

  variable_list backward(const Tensor& grad) {
    return {grad, needs_input_grad(1) ? at::zeros_like(grad) : Tensor()};
  }
};

// `grad`, which `node` has computed for its only input; if a graph of the backward pass is made,
// connected to that input by a gradient of zeros.
inline Tensor with_zero_gradient(const Tensor& grad, const torch::autograd::Node& node) {
  if (!c10::GradMode::is_enabled() || node.num_outputs() == 0) return grad;
  const auto zeros = compat::make_node<ZeroGradientNode>();
  zeros->set_next_edges({torch::autograd::impl::gradient_edge(grad), node.next_edge(0)});
  const Tensor output = grad.detach();
  torch::autograd::set_history(output, zeros);
  set_tangent(output, [](const Tensor& tangent) { return tangent; }, grad);
  return output;
}

}  // namespace torch_ops::autograd
