// A generated kernel's parameters and arguments as Python hands them over.
#pragma once

#include <pybind11/pybind11.h>

#include "jit/call/signature.h"

namespace torch_ops::jit {

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
// From Param.facts of torch_ops/jit/language/params.py.
void read_parameters(Signature& kernel, const std::vector<pybind11::tuple>& in,
                     const std::vector<pybind11::tuple>& out);
// One tensor, or a tuple of several.
pybind11::object as_result(const std::vector<Tensor>& tensors);
// The dtypes of the outputs of a registered op's call.
pybind11::list output_dtypes(const Signature& kernel, at::TensorList tensors,
                             const pybind11::list& numbers, at::IntArrayRef positions);
// For the compile function of a kernel: names of dtypes, None for a number; and of raw parameters
// the ranks (-1 - rank where the memory is not contiguous).
pybind11::list names_of(at::ArrayRef<ScalarType> types);
pybind11::list ranks_of(at::ArrayRef<int8_t> ranks);

}  // namespace torch_ops::jit
