// Elementwise kernels as registered ops: their derivative, and their batching rule.
#include <ATen/ExpandUtils.h>
#include <ATen/ops/add.h>
#include <ATen/ops/stack.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/library.h>

#include <algorithm>

#include "common/autograd.h"
#include "common/batching.h"
#include "jit/elementwise.h"

namespace torch_ops::jit {
namespace {

namespace py = pybind11;
using autograd::SavedVariable;
using autograd::variable_list;

// A gradient that is summed over broadcast axes is made as a whole up to here, else in parts.
constexpr int64_t kLargestGradient = int64_t{64} << 20;  // bytes

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

// ---- Derivative ---------------------------------------------------------------------------------

std::vector<c10::SymInt> broadcast_shape(const Elementwise& kernel, const Arguments& arguments) {
  std::vector<c10::SymInt> shape;
  for (size_t k = 0; k < arguments.size(); ++k) {
    if (!arguments[k].tensor || kernel.in[k].raw) continue;
    const auto sizes = at::infer_size_symdimvector(shape, arguments[k].tensor->sym_sizes());
    shape.assign(sizes.begin(), sizes.end());
  }
  return shape;
}

// Part of an argument along an axis that counts from the right, where it is not broadcast there.
Tensor narrowed(const Tensor& tensor, int64_t from_right, int64_t start, int64_t size) {
  const int64_t axis = tensor.dim() - 1 - from_right;
  if (axis < 0 || tensor.size(axis) == 1) return tensor;
  return tensor.narrow(axis, start, size);
}

// The gradient of a broadcast input, from calls on parts of the axes that are summed, so that no
// part's result takes more than kLargestGradient.
Tensor summed_in_parts(Elementwise& gradient, const Arguments& arguments, const Tensor& input,
                       std::vector<int64_t> shape, int64_t item_size) {
  const int64_t bytes = c10::multiply_integers(shape) * item_size;
  int64_t axis = -1;
  for (size_t from_right = 0; from_right < shape.size(); ++from_right) {
    const int64_t own = input.dim() - 1 - static_cast<int64_t>(from_right);
    const size_t at = shape.size() - 1 - from_right;
    const bool summed = own < 0 || (input.size(own) == 1 && shape[at] > 1);
    if (summed && shape[at] > 1 && (axis < 0 || shape[at] > shape[axis])) {
      axis = static_cast<int64_t>(at);
    }
  }
  if (bytes <= kLargestGradient || axis < 0) {
    return at::sum_to(call_op(gradient, arguments, std::nullopt).at(0), input.sizes());
  }
  const int64_t parts = (bytes + kLargestGradient - 1) / kLargestGradient;
  const int64_t step = std::max<int64_t>(shape[axis] / parts, 1);
  const int64_t from_right = static_cast<int64_t>(shape.size()) - 1 - axis;
  const int64_t whole = shape[axis];
  Tensor sum;
  for (int64_t start = 0; start < whole; start += step) {
    shape[axis] = std::min(step, whole - start);
    Arguments part = arguments;
    std::vector<Tensor> kept(arguments.size());
    for (size_t k = 0; k < arguments.size(); ++k) {
      if (!arguments[k].tensor || gradient.in[k].raw) continue;
      kept[k] = narrowed(*arguments[k].tensor, from_right, start, shape[axis]);
      part[k].tensor = &kept[k];
    }
    const Tensor of_part = summed_in_parts(gradient, part, input, shape, item_size);
    sum = sum.defined() ? at::add(sum, of_part) : of_part;
  }
  return sum;
}

struct ElementwiseNode final : autograd::DerivativeNode<ElementwiseNode> {
  static constexpr const char* kName = "ElementwiseBackward";
  std::string kernel;
  std::vector<int64_t> positions;  // of numbers
  std::vector<Scalar> numbers;
  int64_t count = 0;
  std::vector<SavedVariable> tensors;

  std::string name() const override {
    const auto found = find_elementwise(kernel);
    return (found ? found->name : kernel) + "_backward";
  }

  template <class Visit>
  void fields(Visit&& visit) {
    visit(kernel);
    visit(positions);
    visit(numbers);
    visit(count);
    tensors.resize(count);
    for (SavedVariable& tensor : tensors) visit(tensor);
  }

  variable_list backward(const variable_list& grads) {
    const std::shared_ptr<Elementwise> forward = find_elementwise(kernel);
    TORCH_CHECK(forward, "torch_ops.jit: there is no kernel ", kernel, " in this process.");
    std::vector<Tensor> values;
    for (const SavedVariable& tensor : tensors) values.push_back(unpack(tensor));
    const Arguments inputs = join_arguments(*forward, values, numbers, positions);

    variable_list results(count);
    std::vector<size_t> edge_of(inputs.size());
    std::vector<bool> whole(inputs.size()), wide(inputs.size()), in_parts(inputs.size());
    const std::vector<c10::SymInt> shape = broadcast_shape(*forward, inputs);
    size_t edge = 0;
    for (size_t k = 0; k < inputs.size(); ++k) {
      if (!inputs[k].tensor) continue;
      edge_of[k] = edge++;
      if (!needs_input_grad(edge_of[k])) continue;
      const bool summed = !forward->in[k].raw && inputs[k].tensor->sym_sizes() != shape;
      wide[k] = summed;
      (summed && exceeds_limit(shape) && !forward->uses_index && !forward->uses_size ? in_parts
                                                                                     : whole)[k] =
          true;
    }
    if (std::find(whole.begin(), whole.end(), true) != whole.end()) {
      const auto gradient = forward->derived("vjp", whole, both(whole, wide));
      const std::vector<Tensor> made =
          call_op(*gradient, with_grads(*gradient, inputs, grads), std::nullopt);
      size_t at = 0;
      for (size_t k = 0; k < inputs.size(); ++k) {
        if (whole[k]) results[edge_of[k]] = finished(made.at(at++), *inputs[k].tensor);
      }
    }
    for (size_t k = 0; k < inputs.size(); ++k) {
      if (!in_parts[k]) continue;
      std::vector<bool> only(inputs.size());
      only[k] = true;
      const auto gradient = forward->derived("vjp", only, only);
      const Arguments arguments = with_grads(*gradient, inputs, grads);
      std::vector<int64_t> sizes;
      for (const c10::SymInt& size : shape) sizes.push_back(size.expect_int());
      const Tensor& input = *inputs[k].tensor;
      const int64_t item = std::max<int64_t>(input.element_size(), 4);
      results[edge_of[k]] =
          finished(summed_in_parts(*gradient, arguments, input, sizes, item), input);
    }
    return results;
  }

 private:
  static bool exceeds_limit(const std::vector<c10::SymInt>& shape) {
    int64_t bytes = 4;
    for (const c10::SymInt& size : shape) {
      if (!size.maybe_as_int()) return false;  // traced: the compiler fuses the sum
      bytes *= size.expect_int();
    }
    return bytes > kLargestGradient;
  }

  static std::vector<bool> both(std::vector<bool> a, const std::vector<bool>& b) {
    for (size_t k = 0; k < a.size(); ++k) a[k] = a[k] && b[k];
    return a;
  }

  // The arguments of a vjp: a gradient for each output, 0 where there is none, then the inputs.
  static Arguments with_grads(const Elementwise& gradient, const Arguments& inputs,
                              const variable_list& grads) {
    Arguments arguments;
    for (size_t k = 0; k < gradient.in.size() - inputs.size(); ++k) {
      const Tensor& grad = grads[k];
      arguments.push_back(grad.defined() ? Argument{&grad, 0} : Argument{nullptr, 0});
    }
    arguments.append(inputs.begin(), inputs.end());
    return arguments;
  }

  static Tensor finished(const Tensor& gradient, const Tensor& input) {
    return at::sum_to(gradient, input.sym_sizes()).to(input.scalar_type());
  }
};

std::vector<Tensor> elementwise_autograd(const std::shared_ptr<Elementwise>& kernel,
                                         c10::DispatchKeySet keys, at::TensorList tensors,
                                         at::ArrayRef<Scalar> numbers, at::IntArrayRef positions,
                                         at::OptionalSymIntArrayRef size) {
  const auto node = autograd::make_node<ElementwiseNode>(tensors);
  std::vector<Tensor> outputs =
      autograd::below_autograd(keys, *kernel->op, tensors, numbers, positions, size);
  if (node) {
    for (const Tensor& output : outputs) {
      if (at::isFloatingType(output.scalar_type())) {
        autograd::record(output, node);
      } else {
        node->add_input_metadata(torch::autograd::Node::undefined_input());
      }
    }
    node->kernel = kernel->op_name;
    node->positions = positions.vec();
    node->numbers = numbers.vec();
    node->count = static_cast<int64_t>(tensors.size());
    for (const Tensor& tensor : tensors) node->tensors.emplace_back(tensor, /*is_output=*/false);
  }
  const auto has_tangent = [](const Tensor& t) { return torch::autograd::isFwGradDefined(t); };
  if (std::any_of(tensors.begin(), tensors.end(), has_tangent)) {
    std::vector<Tensor> primals, tangents;
    for (const Tensor& tensor : tensors) primals.push_back(autograd::primal(tensor));
    Arguments arguments = join_arguments(*kernel, primals, numbers, positions);
    const Arguments given = join_arguments(*kernel, tensors, numbers, positions);
    std::vector<bool> wanted(arguments.size());
    tangents.reserve(arguments.size());
    for (size_t k = 0; k < given.size(); ++k) {
      wanted[k] = given[k].tensor && has_tangent(*given[k].tensor);
      if (!wanted[k]) continue;
      tangents.push_back(given[k].tensor->_fw_grad(/*level=*/0));
      arguments.push_back({&tangents.back(), 0});
    }
    const auto derived = kernel->derived("jvp", wanted, std::vector<bool>(wanted.size()));
    const std::vector<Tensor> made = call_op(*derived, arguments, size);
    for (size_t k = 0; k < outputs.size(); ++k) {
      if (!at::isFloatingType(outputs[k].scalar_type())) continue;
      outputs[k]._set_fw_grad(made.at(k), /*level=*/0, /*is_inplace_op=*/false);
    }
  }
  return outputs;
}

// ---- torch.vmap ---------------------------------------------------------------------------------

std::vector<Tensor> elementwise_batched(const std::shared_ptr<Elementwise>& kernel,
                                        at::TensorList tensors, at::ArrayRef<Scalar> numbers,
                                        at::IntArrayRef positions,
                                        at::OptionalSymIntArrayRef size) {
  c10::impl::ExcludeDispatchKeyGuard guard(c10::DispatchKey::FuncTorchBatched);
  const int64_t level = batching::current_level();
  std::vector<batching::Batched> inputs;
  std::vector<Tensor> logical(tensors.begin(), tensors.end());
  for (const Tensor& tensor : tensors) {
    auto [value, axis] = at::functorch::unwrapTensorAtLevel(tensor, level);
    inputs.push_back({std::move(value), axis});
  }
  const Arguments given = join_arguments(*kernel, logical, numbers, positions);
  // What an element does may depend on where it stands, or on an array as a whole: then each sample
  // has a call of its own.
  bool apart = kernel->uses_index || kernel->uses_size || size.has_value();
  int64_t rank = 0;
  std::optional<c10::SymInt> samples;
  for (size_t k = 0, at = 0; k < given.size(); ++k) {
    if (!given[k].tensor) continue;
    const batching::Batched& input = inputs[at++];
    if (input.axis) samples = input.size();
    apart |= kernel->in[k].raw && input.axis;
    if (!kernel->in[k].raw) rank = std::max(rank, given[k].tensor->dim());
  }
  for (const Parameter& parameter : kernel->out) apart |= parameter.raw;
  std::vector<Tensor> results;
  if (!samples) {
    std::vector<Tensor> values;
    for (const auto& input : inputs) values.push_back(input.value);
    return kernel->op->call(values, numbers, positions, size);
  }
  if (apart) {
    const int64_t count = samples->guard_int(__FILE__, __LINE__);
    TORCH_CHECK(count > 0, kernel->name,
                ": torch.vmap over no samples at all is not possible for a kernel that uses raw "
                "parameters or the index.");
    std::vector<std::vector<Tensor>> columns;
    for (int64_t sample = 0; sample < count; ++sample) {
      std::vector<Tensor> values;
      for (const auto& input : inputs) {
        values.push_back(input.axis ? input.value.select(*input.axis, sample) : input.value);
      }
      const std::vector<Tensor> made = kernel->op->call(values, numbers, positions, size);
      columns.resize(made.size());
      for (size_t k = 0; k < made.size(); ++k) columns[k].push_back(made[k]);
    }
    for (const auto& column : columns) results.push_back(at::stack(column));
  } else {
    // In a sample a 0-d tensor gives way to others in type promotion; with the axis of the samples
    // it no longer would. So each is brought to its type first.
    const Types types = resolve_types(*kernel, given, {});
    std::vector<Tensor> values;
    for (size_t k = 0, at = 0; k < given.size(); ++k) {
      if (!given[k].tensor) continue;
      const batching::Batched& input = inputs[at++];
      if (kernel->in[k].raw || !input.axis) {
        values.push_back(input.value);
        continue;
      }
      Tensor value = input.at(0);
      if (given[k].tensor->dim() == 0) value = value.to(types.in[k]);
      for (int64_t missing = rank - given[k].tensor->dim(); missing > 0; --missing) {
        value = value.unsqueeze(1);
      }
      values.push_back(std::move(value));
    }
    results = kernel->op->call(values, numbers, positions, size);
  }
  for (Tensor& result : results) {
    result = at::functorch::makeBatched(std::move(result), 0, level);
  }
  return results;
}

}  // namespace

// ---- Registration -------------------------------------------------------------------------------

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

Elementwise::~Elementwise() {
  const py::gil_scoped_acquire gil;
  compile = py::object();
  derive = py::object();
}

std::shared_ptr<Elementwise> Elementwise::derived(const std::string& kind,
                                                  const std::vector<bool>& wanted,
                                                  const std::vector<bool>& wide) {
  const std::string key = as_key(kind, wanted, wide);
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = derived_.find(key);
    if (found != derived_.end()) return found->second;
  }
  std::shared_ptr<Elementwise> made;
  {
    const py::gil_scoped_acquire gil;
    made = derive(kind, wanted, wide).cast<std::shared_ptr<Elementwise>>();
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  derived_.emplace(key, made);
  return made;
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
