// What the derivative of an op must know of a DTensor: how its axes are distributed, so that its
// gradient is distributed in the same way. torch has DTensor only in Python, so torch_ops' rules
// for it are in Python too (torch_ops/distributed/).
#pragma once

#include <ATen/core/Tensor.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <vector>

namespace torch_ops {

// For each dimension of the tensor's device mesh the axis that is sharded over it, or -1. Empty for
// a tensor that is not a DTensor.
inline std::vector<int64_t> shards_of(const at::Tensor& tensor) {
  namespace py = pybind11;
  if (!tensor.key_set().has(c10::DispatchKey::Python)) return {};
  const py::gil_scoped_acquire gil;
  // It is imported when torch.distributed.tensor is: without it there is no DTensor.
  const auto modules = py::reinterpret_borrow<py::dict>(PyImport_GetModuleDict());
  constexpr const char* kRules = "torch_ops.distributed";
  if (!modules.contains(kRules)) return {};
  return modules[kRules].attr("shards_of")(py::cast(tensor)).cast<std::vector<int64_t>>();
}

}  // namespace torch_ops
