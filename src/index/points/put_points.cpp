// The contract of put_points and put_points_: schemas, checks, derivative. They write rows where
// gather_points reads them; negative entries count from the end.
#include <ATen/Context.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "common/gather_family/gather_ops.h"
#include "common/torch/registration/derive.h"
#include "common/torch/registration/inplace.h"
#include "index/points/points.h"
#include "index/points/points_batching.h"

namespace torch_ops {
namespace {

using at::Tensor;
using at::TensorList;
using autograd::variable_list;
using batching::Batched;
using ops::Name;
using points::Points;

Points check(const char* op, const Tensor& source, TensorList coordinates, at::IntArrayRef dims,
             const Tensor& values, int64_t batch_dims, bool front, const ops::Axes& axes) {
  points::check_axes(op, axes, coordinates.size());
  const Points points = points::check_points(op, source, coordinates, dims, batch_dims, front);
  points::check_values(op, source, values);
  const c10::SymDimVector sizes = points::rows_sizes(source.sym_sizes(), points);
  bool fits = values.dim() == static_cast<int64_t>(sizes.size());
  for (size_t axis = 0; fits && axis < sizes.size(); ++axis) {
    fits = values.sym_size(axis).sym_eq(sizes[axis]).expect_true(__FILE__, __LINE__);
  }
  TORCH_CHECK_VALUE(fits, op, ": values must have the shape of what is written, ", sizes,
                    ", but it has ", values.sym_sizes(), ".");
  return points;
}

// The rows, each replaced by that of the last point for the same place: then it does not matter
// which of them is written. Entries out of range, whose errors come later, get any row.
Tensor last_rows(const Tensor& source, TensorList coordinates, const Tensor& rows,
                 const Points& points) {
  const int64_t batch = points.batch_dims, place = points.place();
  const at::IntArrayRef sizes = C10_AS_INTARRAYREF_SLOW(points.sizes);
  const at::IntArrayRef each = sizes.slice(batch);
  const int64_t count = c10::multiply_integers(each);
  const int64_t last_axis = place + static_cast<int64_t>(each.size()) - 1;
  bool alike = true;  // all points of a batch
  for (int64_t axis = place; axis <= last_axis; ++axis) {
    alike = alike && (rows.size(axis) == 1 || rows.stride(axis) == 0);
  }
  if (alike || rows.numel() == 0) return rows;
  std::vector<c10::SymInt> indexed;
  for (const int64_t dim : points.dims) indexed.push_back(source.sym_size(dim));
  const Tensor places = ops::ravel_multi_index()
                            .call(coordinates, indexed, "fill", /*axes=*/std::nullopt,
                                  /*name=*/std::nullopt)
                            .expand(sizes);
  const Tensor numbers = at::arange(count, places.options().dtype(at::kLong));
  const Tensor last = ops::scatter().call(
      numbers.view(each).expand(sizes), places, c10::multiply_integers(indexed), batch, batch,
      "amax", "fill", /*deterministic=*/std::nullopt, /*correction=*/1, /*dtype=*/std::nullopt);
  const Tensor picked = ops::gather().call(last, places, batch, batch, "fill", at::Scalar(0),
                                           /*name=*/std::nullopt);
  return ops::gather().call(rows.flatten(place, last_axis), picked, place, batch, "unchecked",
                            /*fill_value=*/std::nullopt, /*name=*/std::nullopt);
}

// Writes the rows of a call that was checked to `source`.
template <class On>
void write(const char* op, Tensor& source, TensorList coordinates, const Tensor& values,
           const Points& points, const ops::Axes& axes) {
  constexpr IndexMode kMode = IndexMode::kFromEnd;
  points::check_entries(op, source, coordinates, points, kMode, axes);
  check_no_overlap(op, "source", source);
  Tensor rows = aligned(values);
  if (at::get_overlap_status(source, values) != at::MemOverlapStatus::No &&
      source.storage().is_alias_of(values.storage())) {
    rows = values.clone();  // otherwise a row may be read that was already written
  }
  if (at::globalContext().deterministicAlgorithms()) {
    rows = last_rows(source, coordinates, rows, points);
  }
  std::vector<Tensor> entries = coordinates.vec();
  for (Tensor& each : entries) {
    if (each.storage().is_alias_of(source.storage())) each = each.clone();
  }
  Tensor table = aligned(source);
  const PointsLayout layout = points::lay_out(table, entries, rows, points, kMode, axes);
  const auto sizes = C10_AS_INTARRAYREF_SLOW(points.sizes);
  points::call_at_points<On>(layout, points::make_site(op, points, sizes, source), table,
                             [&](auto on, const auto&... errors) {
                               return kernels::put_points(on, table.mutable_data_ptr(),
                                                          table.element_size(), layout,
                                                          rows.const_data_ptr(), errors...);
                             });
  if (!table.is_same(source)) source.copy_(table);
}

// The tangent of the result, if either has one.
Tensor tangent_of(const Tensor& source_tangent, const Tensor& values_tangent, const Tensor& values,
                  TensorList coordinates, at::IntArrayRef dims, int64_t batch_dims, bool front,
                  const Tensor& result) {
  const Tensor from = source_tangent.defined()
                          ? source_tangent
                          : at::zeros_symint(result.sym_sizes(), result.options());
  const Tensor rows = values_tangent.defined()
                          ? values_tangent
                          : at::zeros({}, values.options()).expand_symint(values.sym_sizes());
  return ops::put_points().call(from, coordinates, dims, rows, batch_dims, front,
                                /*axes=*/std::nullopt, /*name=*/std::nullopt);
}

// Common code of both ops.
struct Writes {
  static constexpr const char* kNode = "PutPointsBackward";

  // The index arrays, and the sizes of the values. Overwritten values have no gradient.
  static auto keep(TensorList coordinates, at::IntArrayRef dims, const Tensor& values,
                   int64_t batch_dims, bool front) {
    return std::tuple(coordinates.vec(), dims.vec(), batch_dims, front, values.sym_sizes().vec());
  }

  static variable_list backward(autograd::Needed needed, const Tensor& grad,
                                const std::vector<Tensor>& coordinates,
                                const std::vector<int64_t>& dims, int64_t batch_dims, bool front,
                                const std::vector<c10::SymInt>& sizes) {
    variable_list grads(2);
    if (needed[0]) {
      const Tensor zeros = at::zeros({}, grad.options()).expand_symint(sizes);
      grads[0] = ops::put_points().call(grad, coordinates, dims, zeros, batch_dims, front,
                                        /*axes=*/std::nullopt, /*name=*/std::nullopt);
    }
    if (needed[1]) {
      grads[1] =
          ops::gather_points().call(grad, coordinates, dims, batch_dims, front, "fill",
                                    at::Scalar(0), /*axes=*/std::nullopt, /*name=*/std::nullopt);
    }
    return grads;
  }

  // The tensor that is written gets the hidden axis in front, as one more batch axis. Index arrays
  // without it are broadcast; values without it are expanded.
  template <class Op>
  static Tensor batch(const Op& op, bool in_place, const Tensor& source, TensorList coordinates,
                      at::IntArrayRef dims, const Tensor& values, int64_t batch_dims, bool front,
                      const ops::Axes& axes, Name name) {
    const auto rule = [&](const Batched& to, const std::vector<Batched>& picks,
                          const Batched& rows) -> Batched {
      TORCH_CHECK(!in_place || to.axis || !(points::any_batched(picks) || rows.axis),
                  indexing::name_of("index_put_", name),
                  ": torch.vmap cannot write what differs between samples into a source that they "
                  "share.",
                  name ? "" : " Use index_put, which returns a source for each.");
      std::optional<c10::SymInt> size;
      for (const Batched& each : picks) {
        if (each.axis) size = each.size();
      }
      if (rows.axis) size = rows.size();
      if (to.axis) size = to.size();
      if (!size) {
        Tensor table = to.value;
        return {op.call(table, points::values_of(picks), dims, rows.value, batch_dims, front, axes,
                        name),
                std::nullopt};
      }
      Tensor table = to.expanded_at(0, *size);
      return {op.call(table, points::with_axis(picks, points::rank_of(picks), 0),
                      points::shifted(dims), rows.expanded_at(0, *size), batch_dims + 1, front,
                      axes ? axes : ops::Axes(dims), name),
              0};
    };
    return batching::apply(rule, source, coordinates, values);
  }
};

struct PutPoints {
  static constexpr const char* kSchema =
      "put_points(Tensor source, Tensor[] coordinates, int[] dims, Tensor values, *, "
      "int batch_dims=0, bool front=False, int[]? axes=None, str? name=None) -> Tensor";

  template <class On>
  static Tensor kernel(const Tensor& source, TensorList coordinates, at::IntArrayRef dims,
                       const Tensor& values, int64_t batch_dims, bool front, ops::Axes axes,
                       Name name) {
    const char* const op = indexing::name_of("index_put", name);
    const Points points = check(op, source, coordinates, dims, values, batch_dims, front, axes);
    if constexpr (std::is_same_v<On, OnMeta>) {
      return at::empty_symint(source.sym_sizes(), source.options());
    } else {
      Tensor result = source.clone(at::MemoryFormat::Contiguous);
      write<On>(op, result, coordinates, values, points, axes);
      return result;
    }
  }

  template <class... Rest>
  static Tensor derive(c10::DispatchKeySet keys, const Tensor& source, TensorList coordinates,
                       at::IntArrayRef dims, const Tensor& values, int64_t batch_dims, bool front,
                       const Rest&... rest) {
    const auto node = autograd::make_node<autograd::Node<Writes>>(source, values);
    Tensor output = autograd::below_autograd(keys, ops::put_points(), source, coordinates, dims,
                                             values, batch_dims, front, rest...);
    autograd::record(output, node);
    autograd::set_tangent(
        output,
        [&](const Tensor& of_source, const Tensor& of_values) {
          return tangent_of(of_source, of_values, values, coordinates, dims, batch_dims, front,
                            output);
        },
        source, values);
    if (node) node->keep(coordinates, dims, values, batch_dims, front);
    return output;
  }

  static Tensor batch(const Tensor& source, TensorList coordinates, at::IntArrayRef dims,
                      const Tensor& values, int64_t batch_dims, bool front, const ops::Axes& axes,
                      Name name) {
    return Writes::batch(ops::put_points(), /*in_place=*/false, source, coordinates, dims, values,
                         batch_dims, front, axes, name);
  }
};

struct PutPointsInplace {
  static constexpr const char* kSchema =
      "put_points_(Tensor(a!) source, Tensor[] coordinates, int[] dims, Tensor values, *, "
      "int batch_dims=0, bool front=False, int[]? axes=None, str? name=None) -> Tensor(a!)";

  template <class On>
  static Tensor& kernel(Tensor& source, TensorList coordinates, at::IntArrayRef dims,
                        const Tensor& values, int64_t batch_dims, bool front, ops::Axes axes,
                        Name name) {
    const char* const op = indexing::name_of("index_put_", name);
    const Points points = check(op, source, coordinates, dims, values, batch_dims, front, axes);
    if constexpr (!std::is_same_v<On, OnMeta>) {
      write<On>(op, source, coordinates, values, points, axes);
    }
    return source;
  }

  template <class... Rest>
  static Tensor& derive(c10::DispatchKeySet keys, Tensor& source, TensorList coordinates,
                        at::IntArrayRef dims, const Tensor& values, int64_t batch_dims, bool front,
                        const Rest&... rest) {
    torch::autograd::check_inplace(source, torch::autograd::compute_requires_grad(source, values));
    const auto node = autograd::make_node<autograd::Node<Writes>>(source, values);
    autograd::below_autograd(keys, ops::put_points_(), source, coordinates, dims, values,
                             batch_dims, front, rest...);
    if (node) torch::autograd::rebase_history(source, node);
    const bool has_tangent = torch::autograd::isFwGradDefined(source);
    if (has_tangent || torch::autograd::isFwGradDefined(values)) {
      const Tensor of_source = source._fw_grad(/*level=*/0);
      const Tensor tangent = tangent_of(of_source, values._fw_grad(/*level=*/0), values,
                                        coordinates, dims, batch_dims, front, source);
      if (has_tangent) {  // in place, so that the tangents of views of `source` change too
        of_source.copy_(tangent);
        source._set_fw_grad(of_source, /*level=*/0, /*is_inplace_op=*/true);
      } else {
        source._set_fw_grad(tangent, /*level=*/0, /*is_inplace_op=*/true);
      }
    }
    if (node) node->keep(coordinates, dims, values, batch_dims, front);
    return source;
  }

  static Tensor& functionalize(Tensor& source, TensorList coordinates, at::IntArrayRef dims,
                               const Tensor& values, int64_t batch_dims, bool front,
                               const ops::Axes& axes, Name name) {
    return inplace::functionalize_call(
        [&](Tensor& to, const Tensor& rows, const std::vector<Tensor>& picks) {
          ops::put_points_().call(to, picks, dims, rows, batch_dims, front, axes, name);
        },
        [&](const Tensor& to, const Tensor& rows, const std::vector<Tensor>& picks) {
          return ops::put_points().call(to, picks, dims, rows, batch_dims, front, axes,
                                        name.value_or("index_put_"));
        },
        source, values, coordinates);
  }

  static Tensor& batch(Tensor& source, TensorList coordinates, at::IntArrayRef dims,
                       const Tensor& values, int64_t batch_dims, bool front, const ops::Axes& axes,
                       Name name) {
    Writes::batch(ops::put_points_(), /*in_place=*/true, source, coordinates, dims, values,
                  batch_dims, front, axes, name);
    return source;
  }
};

}  // namespace

TORCH_LIBRARY_FRAGMENT(torch_ops, m) {
  register_op<PutPoints>(m);
  register_op<PutPointsInplace>(m);
}

}  // namespace torch_ops
