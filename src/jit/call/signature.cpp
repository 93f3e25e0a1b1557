#include "jit/call/signature.h"

#include <ATen/native/TypeProperties.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/VariableTypeUtils.h>

#include <cmath>

#include "common/torch/calls/checks.h"

namespace torch_ops::jit {
namespace {

// As it is declared.
std::string known_type(const Signature& kernel, const Parameter& parameter) {
  return parameter.placeholder >= 0 ? kernel.placeholders[parameter.placeholder]
                                    : std::string(c10::getDtypeNames(parameter.fixed).first);
}

ScalarType memory_type(const Parameter& parameter, at::ArrayRef<ScalarType> placeholders) {
  const ScalarType type =
      parameter.placeholder >= 0 ? placeholders[parameter.placeholder] : parameter.fixed;
  return parameter.wide && (type == at::kHalf || type == at::kBFloat16) ? at::kFloat : type;
}

ScalarType type_of(const Argument& argument) {
  return argument.tensor ? argument.tensor->scalar_type() : argument.number.type();
}

void check_supported(const Signature& kernel, const std::string& name, ScalarType type) {
  TORCH_CHECK_TYPE((c10::isIntegralType(type, /*includeBool=*/true) && !c10::isQIntType(type)) ||
                       type == at::kFloat || type == at::kDouble || type == at::kHalf ||
                       type == at::kBFloat16 || type == at::kComplexFloat ||
                       type == at::kComplexDouble,
                   kernel.name, ": ", name, " is ", dtype_name(type),
                   "; kernels compute on bool, integers, float16, bfloat16, float32, float64, "
                   "complex64 and complex128.");
}

bool is_16_bits(const Parameter& parameter) {
  return !parameter.wide && (parameter.fixed == at::kHalf || parameter.fixed == at::kBFloat16);
}

double rounded(const Scalar& number, ScalarType type) {
  const auto value = static_cast<float>(number.toDouble());
  return type == at::kHalf ? static_cast<float>(c10::Half(value))
                           : static_cast<float>(c10::BFloat16(value));
}

}  // namespace

bool needs_rounding(const Signature& kernel, const Arguments& arguments) {
  for (size_t k = 0; k < arguments.size(); ++k) {
    const Parameter& parameter = kernel.in[k];
    if (!is_16_bits(parameter)) continue;
    if (arguments[k].tensor) {
      if (arguments[k].tensor->scalar_type() != parameter.fixed) return true;
    } else {
      const double value = arguments[k].number.toDouble();
      if (rounded(value, parameter.fixed) != value && !std::isnan(value)) return true;
    }
  }
  return false;
}

RoundedArguments::RoundedArguments(const Signature& kernel, const Arguments& given)
    : arguments(given) {
  made.reserve(given.size());
  for (size_t k = 0; k < given.size(); ++k) {
    if (!is_16_bits(kernel.in[k])) continue;
    if (given[k].tensor) {
      made.push_back(given[k].tensor->to(kernel.in[k].fixed));
      arguments[k].tensor = &made.back();
    } else {
      arguments[k].number = rounded(given[k].number, kernel.in[k].fixed);
    }
  }
}

Types resolve_types(const Signature& kernel, const Arguments& arguments, at::TensorList outs) {
  std::vector<at::native::ResultTypeState> states(kernel.placeholders.size());
  c10::SmallVector<ScalarType, 4> found(kernel.placeholders.size(), ScalarType::Undefined);
  const auto add = [&](const Parameter& parameter, const auto& value) {
    if (parameter.placeholder < 0) return;
    auto& state = states[parameter.placeholder];
    state = at::native::update_result_type_state(value, state);
    found[parameter.placeholder] = ScalarType::Float;  // something
  };
  for (size_t k = 0; k < arguments.size(); ++k) {
    if (arguments[k].tensor) {
      add(kernel.in[k], *arguments[k].tensor);
    } else {
      add(kernel.in[k], arguments[k].number);
    }
  }
  // A type that no input tells is that of the outputs that are given.
  if (!outs.empty()) {
    const auto by_inputs = found;
    for (size_t k = 0; k < outs.size(); ++k) {
      const int64_t placeholder = kernel.out[k].placeholder;
      if (placeholder >= 0 && by_inputs[placeholder] == ScalarType::Undefined) {
        add(kernel.out[k], outs[k]);
      }
    }
  }
  for (size_t p = 0; p < found.size(); ++p) {
    if (found[p] != ScalarType::Undefined) found[p] = at::native::result_type(states[p]);
  }
  Types types;
  for (size_t k = 0; k < kernel.in.size(); ++k) {
    const ScalarType type = memory_type(kernel.in[k], found);
    const ScalarType given = type_of(arguments[k]);
    check_supported(kernel, kernel.in[k].name, given);
    // What arguments of a type are promoted to need not be supported: float16 with a complex
    // number.
    const int64_t placeholder = kernel.in[k].placeholder;
    check_supported(kernel, placeholder < 0 ? kernel.in[k].name : kernel.placeholders[placeholder],
                    type);
    TORCH_CHECK_TYPE(c10::canCast(given, type), kernel.name, ": ", kernel.in[k].name,
                     " is declared ", known_type(kernel, kernel.in[k]),
                     kernel.in[k].placeholder < 0 ? "" : c10::str(" (", dtype_name(type), ")"),
                     ", to which ", dtype_name(given),
                     " is not cast. Pass another dtype or declare another.");
    types.in.push_back(type);
  }
  for (size_t k = 0; k < kernel.out.size(); ++k) {
    const ScalarType type = memory_type(kernel.out[k], found);
    TORCH_CHECK_TYPE(type != ScalarType::Undefined, kernel.name, ": the type ",
                     known_type(kernel, kernel.out[k]), " of output ", kernel.out[k].name,
                     " cannot be inferred from the arguments. Pass ", kernel.out[k].name,
                     " in out=, or declare a type that an input has.");
    if (!outs.empty()) {
      check_supported(kernel, kernel.out[k].name, outs[k].scalar_type());
      TORCH_CHECK_TYPE(c10::canCast(type, outs[k].scalar_type()), kernel.name, ": output ",
                       kernel.out[k].name, " is computed in ", dtype_name(type),
                       ", which is not cast to ", dtype_name(outs[k].scalar_type()),
                       ", the dtype of what is given for it.");
    }
    types.out.push_back(type);
  }
  return types;
}

void check_shapes(const Signature& kernel, const Arguments& arguments) {
  c10::SmallVector<size_t, 8> walked;
  bool same = true;
  for (size_t k = 0; k < kernel.in.size(); ++k) {
    if (!arguments[k].tensor || kernel.in[k].raw) continue;
    same = same &&
           (walked.empty() || arguments[walked[0]].tensor->sizes() == arguments[k].tensor->sizes());
    walked.push_back(k);
  }
  for (size_t n = 0; !same && n < walked.size(); ++n) {
    const at::IntArrayRef sizes = arguments[walked[n]].tensor->sizes();
    for (size_t before = 0; before < n; ++before) {
      const at::IntArrayRef others = arguments[walked[before]].tensor->sizes();
      for (size_t d = 1; d <= std::min(sizes.size(), others.size()); ++d) {
        const int64_t size = sizes[sizes.size() - d], other = others[others.size() - d];
        TORCH_CHECK_VALUE(size == other || size == 1 || other == 1, kernel.name, ": ",
                          kernel.in[walked[n]].name, " with shape ", sizes,
                          " does not broadcast with ", kernel.in[walked[before]].name,
                          " with shape ", others, ".");
      }
    }
  }
}

c10::Device device_of(const Signature& kernel, const Arguments& arguments, at::TensorList outs) {
  const Tensor* first = nullptr;
  const auto look = [&](const Tensor& tensor, bool must_match, const std::string& name) {
    if (!first) {
      first = &tensor;
    } else if (tensor.device() != first->device()) {
      // 0-d tensors on the CPU count as numbers.
      if (!must_match && tensor.dim() == 0 && tensor.is_cpu()) return;
      TORCH_CHECK(false, kernel.name, ": all tensors must be on one device, but ", name, " is on ",
                  tensor.device(), " and another is on ", first->device(), ".");
    }
  };
  for (size_t k = 0; k < outs.size(); ++k) look(outs[k], true, kernel.out[k].name);
  for (const bool only_larger : {true, false}) {
    for (size_t k = 0; k < arguments.size(); ++k) {
      const Tensor* tensor = arguments[k].tensor;
      if (!tensor) continue;
      if (is_number(arguments[k], kernel.in[k]) != only_larger)
        look(*tensor, kernel.in[k].raw, kernel.in[k].name);
    }
  }
  if (!first) return at::kCPU;
  TORCH_CHECK(first->is_cpu() || first->is_cuda(), kernel.name,
              ": tensors must be on the CPU or a CUDA device, but they are on ", first->device(),
              ".");
  return first->device();
}

bool is_plain(const Arguments& arguments, at::TensorList outs, at::TensorList more,
              bool& wants_gradient) {
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
  for (const Tensor& tensor : more) look(tensor);
  wants_gradient = tracked && at::GradMode::is_enabled();
  return !wants_gradient && !has_tangent &&
         ((keys - local.excluded_).raw_repr() & ~harmless.raw_repr()) == 0;
}

void check_op_call(const Signature& kernel, const Arguments& arguments, at::TensorList outs,
                   bool wants_gradient) {
  for (size_t k = 0; k < arguments.size(); ++k) {
    if (!arguments[k].tensor) continue;
    const Tensor& tensor = *arguments[k].tensor;
    const bool is_nested = tensor.is_nested();
    TORCH_CHECK_TYPE(!is_nested && tensor.layout() == at::kStrided, kernel.name, ": ",
                     kernel.in[k].name, " must be a strided tensor, but it is ",
                     is_nested ? "nested" : c10::str(tensor.layout()), ".");
    check_supported(kernel, kernel.in[k].name, tensor.scalar_type());
  }
  for (size_t k = 0; k < outs.size(); ++k) {
    TORCH_CHECK(!outs[k].is_conj() && !outs[k].is_neg(), kernel.name, ": ", kernel.out[k].name,
                " is a view whose conjugation or negation has not been carried out.");
  }
  TORCH_CHECK(outs.empty(), kernel.name,
              wants_gradient
                  ? ": out= and automatic differentiation exclude each other, but an argument "
                    "requires grad. Leave out= out, or call it under torch.no_grad(). Raw outputs "
                    "have gradients in a function that torch_ops.jit.op registers."
                  : ": out= cannot be given under torch.func transforms, dispatch modes or "
                    "forward-mode differentiation, nor with tensors that are fake, on meta, or of "
                    "a subclass with __torch_dispatch__.");
}

OpArguments split_arguments(const Arguments& arguments) {
  OpArguments split;
  for (size_t k = 0; k < arguments.size(); ++k) {
    if (arguments[k].tensor) {
      split.tensors.push_back(*arguments[k].tensor);
    } else {
      split.numbers.push_back(arguments[k].number);
      split.positions.push_back(static_cast<int64_t>(k));
    }
  }
  return split;
}

Arguments join_arguments(const Signature& kernel, const OpInputs& inputs) {
  const auto& [tensors, numbers, positions] = inputs;
  Arguments arguments(kernel.in.size());
  TORCH_CHECK(
      tensors.size() + numbers.size() == kernel.in.size() && numbers.size() == positions.size(),
      kernel.name, ": the number of arguments must be ", kernel.in.size(),
      ", but that of tensors is ", tensors.size(), " and that of numbers ", numbers.size(), ".");
  std::vector<bool> is_number(kernel.in.size());
  for (size_t k = 0; k < numbers.size(); ++k) {
    TORCH_CHECK_INDEX(positions[k] >= 0 && positions[k] < static_cast<int64_t>(kernel.in.size()),
                      kernel.name, ": there is no argument ", positions[k], ".");
    arguments[positions[k]].number = numbers[k];
    is_number[positions[k]] = true;
  }
  size_t at = 0;
  for (size_t k = 0; k < arguments.size(); ++k) {
    if (!is_number[k]) arguments[k].tensor = &tensors[at++];
  }
  return arguments;
}

}  // namespace torch_ops::jit
