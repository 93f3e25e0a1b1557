// What generated kernels have in common: declared parameters, a call's arguments for them, types.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Scalar.h>

#include <string>
#include <vector>

namespace torch_ops::jit {

using at::Tensor;
using c10::Scalar;
using c10::ScalarType;

struct Parameter {
  std::string name;
  bool raw = false;
  int64_t placeholder = -1;                  // which one; -1: a fixed type
  ScalarType fixed = ScalarType::Undefined;  // the type then
  bool wide = false;                         // float32 in place of a 16-bit type
  int64_t like = -1;  // a raw output that a call makes: zeros of this input's shape
};

struct Signature {
  std::string name;     // of the kernel, as the user knows it
  std::string op_name;  // as it is registered, without the namespace; empty: it is not
  std::vector<Parameter> in, out;
  std::vector<std::string> placeholders;
  bool divides = false;  // perhaps: a text has /, % or an include
};

// A call's arguments, one for each input parameter: a tensor or a number.
struct Argument {
  const Tensor* tensor = nullptr;
  Scalar number;
};
using Arguments = c10::SmallVector<Argument, 8>;

// What a kernel computes each parameter in: the types of memory, before 16 bits become float.
struct Types {
  c10::SmallVector<ScalarType, 8> in, out;
};
// `outs` may be empty. Raises a TypeError where an argument does not fit its parameter.
Types resolve_types(const Signature& kernel, const Arguments& arguments, at::TensorList outs);

// Is an argument to be rounded to the 16 bits that its parameter is declared with? Code that loads
// wider ones would take them as they are: it computes in float.
bool needs_rounding(const Signature& kernel, const Arguments& arguments);
struct RoundedArguments {
  RoundedArguments(const Signature& kernel, const Arguments& given);
  Arguments arguments;
  std::vector<Tensor> made;
};

// Raises an error that names two inputs whose shapes do not broadcast, if there are any.
void check_shapes(const Signature& kernel, const Arguments& arguments);

// The one device of a call. Raises where tensors are on several; 0-d tensors on the CPU count as
// numbers.
c10::Device device_of(const Signature& kernel, const Arguments& arguments, at::TensorList outs);
// Is the argument a number to the kernel?
inline bool is_number(const Argument& argument, const Parameter& parameter) {
  return !argument.tensor ||
         (argument.tensor->dim() == 0 && argument.tensor->is_cpu() && !parameter.raw);
}

// May a call go straight to its kernel? Not where a layer of torch wants to see it: autograd,
// torch.func, a dispatch mode, a tensor subclass. `wants_gradient`: because of autograd.
bool is_plain(const Arguments& arguments, at::TensorList outs, at::TensorList more,
              bool& wants_gradient);
// Of a call that is not: refuses what a registered op cannot be called with.
void check_op_call(const Signature& kernel, const Arguments& arguments, at::TensorList outs,
                   bool wants_gradient);

// The arguments as every registered op gets them: tensors in the order of their parameters, and
// numbers with the positions of theirs.
struct OpInputs {
  at::TensorList tensors;
  at::ArrayRef<Scalar> numbers;
  at::IntArrayRef positions;

  OpInputs with(at::TensorList others) const { return {others, numbers, positions}; }
};
struct OpArguments {
  std::vector<Tensor> tensors;
  std::vector<Scalar> numbers;
  std::vector<int64_t> positions;

  operator OpInputs() const { return {tensors, numbers, positions}; }
};
OpArguments split_arguments(const Arguments& arguments);
Arguments join_arguments(const Signature& kernel, const OpInputs& inputs);

}  // namespace torch_ops::jit
