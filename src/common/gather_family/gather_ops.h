// Handles of the ops of the gather family that others call. Each is another's derivative.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string_view>
#include <vector>

#include "common/torch/calls/op.h"

namespace torch_ops::ops {

using at::Tensor;
using at::TensorList;
using Dim = std::optional<int64_t>;
using Fill = std::optional<at::Scalar>;

// The name in which errors are raised, if not the op's own (callers.h).
using Name = std::optional<std::string_view>;

// (source, index, dim, batch_dims, mode, fill_value, name)
inline const auto& gather() {
  static const auto op = find_op<Tensor(const Tensor&, const Tensor&, Dim, int64_t,
                                        std::string_view, const Fill&, Name)>("gather");
  return op;
}

// (values, index, dim_size, dim, batch_dims, deterministic, mode, name)
using Sum = Tensor(const Tensor&, const Tensor&, c10::SymInt, Dim, int64_t, std::optional<bool>,
                   std::string_view, Name);
inline const auto& scatter_add() {
  static const auto op = find_op<Sum>("scatter_add");
  return op;
}

// (values, index, dim_size, dim, batch_dims, reduce, mode, deterministic, correction, dtype)
inline const auto& scatter() {
  static const auto op =
      find_op<Tensor(const Tensor&, const Tensor&, c10::SymInt, Dim, int64_t, std::string_view,
                     std::string_view, std::optional<bool>, double, std::optional<at::ScalarType>)>(
          "scatter");
  return op;
}

// Positions: (values, index, dim_size, dim, batch_dims, largest, mode, rows, order, name)
inline const auto& scatter_arg() {
  static const auto op = find_op<Tensor(const Tensor&, const Tensor&, c10::SymInt, Dim, int64_t,
                                        bool, std::string_view, const std::optional<Tensor>&,
                                        const std::optional<Tensor>&, Name)>("_scatter_arg");
  return op;
}

// (values, index, rows, order, dim_size, dim, batch_dims, reduce, correction, dtype)
inline const auto& scatter_by_plan() {
  static const auto op =
      find_op<Tensor(const Tensor&, const Tensor&, const Tensor&, const Tensor&, c10::SymInt,
                     int64_t, int64_t, std::string_view, double, std::optional<at::ScalarType>)>(
          "scatter.plan");
  return op;
}

// The gradient of a gather. `shards` says how a DTensor's axes are distributed (common/torch/
// sharding.h), and so also those of its gradient; it is empty for other tensors.
inline Tensor add_rows(const Tensor& values, const Tensor& index, const c10::SymInt& dim_size,
                       int64_t dim, int64_t batch_dims, std::string_view mode, Name name,
                       const std::vector<int64_t>& shards,
                       std::optional<bool> deterministic = std::nullopt) {
  if (shards.empty()) {
    return scatter_add().call(values, index, dim_size, dim, batch_dims, deterministic, mode, name);
  }
  static const auto op =
      find_op<Tensor(const Tensor&, const Tensor&, c10::SymInt, int64_t, int64_t,
                     std::optional<bool>, std::string_view, at::IntArrayRef, Name)>(
          "_scatter_add_sharded");
  return op.call(values, index, dim_size, dim, batch_dims, deterministic, mode, shards, name);
}

// (out, values, index, dim, batch_dims, mode, name)
inline const auto& scatter_add_() {
  static const auto op =
      find_op<Tensor&(Tensor&, const Tensor&, const Tensor&, Dim, int64_t, std::string_view, Name)>(
          "scatter_add_");
  return op;
}

// (source, index, dim, mode, fill_value, name)
inline const auto& gather_elements() {
  static const auto op =
      find_op<Tensor(const Tensor&, const Tensor&, int64_t, std::string_view, const Fill&, Name)>(
          "gather_elements");
  return op;
}

// (values, index, size, dim, deterministic, mode)
inline const auto& scatter_elements_add() {
  static const auto op =
      find_op<Tensor(const Tensor&, const Tensor&, c10::SymIntArrayRef, int64_t,
                     std::optional<bool>, std::string_view)>("scatter_elements_add");
  return op;
}

// The gradient of gather_elements; `shards` as above.
inline Tensor add_elements(const Tensor& values, const Tensor& index, c10::SymIntArrayRef size,
                           int64_t dim, std::string_view mode, const std::vector<int64_t>& shards) {
  if (shards.empty()) {
    return scatter_elements_add().call(values, index, size, dim, std::nullopt, mode);
  }
  static const auto op =
      find_op<Tensor(const Tensor&, const Tensor&, c10::SymIntArrayRef, int64_t, std::string_view,
                     at::IntArrayRef)>("_scatter_elements_add_sharded");
  return op.call(values, index, size, dim, mode, shards);
}

// The numbers by which messages name the axes of the coordinates, if not their own.
using Axes = at::OptionalIntArrayRef;

// (source, coordinates, dims, batch_dims, front, mode, fill_value, axes, name)
inline const auto& gather_points() {
  static const auto op =
      find_op<Tensor(const Tensor&, TensorList, at::IntArrayRef, int64_t, bool, std::string_view,
                     const Fill&, Axes, Name)>("gather_points");
  return op;
}

// (source, coordinates, dims, values, batch_dims, front, axes, name)
inline const auto& put_points() {
  static const auto op = find_op<Tensor(const Tensor&, TensorList, at::IntArrayRef, const Tensor&,
                                        int64_t, bool, Axes, Name)>("put_points");
  return op;
}

inline const auto& put_points_() {
  static const auto op = find_op<Tensor&(Tensor&, TensorList, at::IntArrayRef, const Tensor&,
                                         int64_t, bool, Axes, Name)>("put_points_");
  return op;
}

// (coordinates, sizes, mode, axes, name)
inline const auto& ravel_multi_index() {
  static const auto op =
      find_op<Tensor(TensorList, c10::SymIntArrayRef, std::string_view, Axes, Name)>(
          "ravel_multi_index");
  return op;
}

// The fill value of a gather that transposes a scatter: zeros for dropped values.
inline Fill nothing(std::string_view mode) {
  return mode.substr(0, 4) == "fill" ? Fill(0) : std::nullopt;
}

}  // namespace torch_ops::ops
