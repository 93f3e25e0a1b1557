// The contract of put_points and put_points_: schemas, checks, derivative. They write rows where
// gather_points reads them; entries count from the end where they are negative.
#include <ATen/MemoryOverlap.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include "common/gather_family/gather_ops.h"
#include "common/torch/autograd.h"
#include "common/torch/inplace.h"
#include "index/points.h"
#include "index/points_batching.h"
#include "index/points_node.h"

namespace torch_ops {
namespace {

using at::Tensor;
using at::TensorList;
using autograd::variable_list;
using points::Points;

// ---- CPU, CUDA and Meta kernels -----------------------------------------------------------------

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

template <class On>
Tensor& put_points_(Tensor& source, TensorList coordinates, at::IntArrayRef dims,
                    const Tensor& values, int64_t batch_dims, bool front, ops::Axes axes,
                    ops::Name name) {
  const char* const op = points::name_of("index_put_", name);
  const Points points = check(op, source, coordinates, dims, values, batch_dims, front, axes);
  constexpr IndexMode kMode = IndexMode::kFromEnd;
  points::check_axes_not_empty(op, source, points, kMode, axes);
  at::assert_no_internal_overlap(source);
  Tensor rows = aligned(values);
  if (at::get_overlap_status(source, values) != at::MemOverlapStatus::No &&
      source.storage().is_alias_of(values.storage())) {
    rows = values.clone();  // else a row may be read that was written before
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
  return source;
}

template <class On>
Tensor put_points(const Tensor& source, TensorList coordinates, at::IntArrayRef dims,
                  const Tensor& values, int64_t batch_dims, bool front, ops::Axes axes,
                  ops::Name name) {
  Tensor result = source.clone(at::MemoryFormat::Contiguous);
  return put_points_<On>(result, coordinates, dims, values, batch_dims, front, axes,
                         points::name_of("index_put", name));
}

Tensor& put_points__meta(Tensor& source, TensorList coordinates, at::IntArrayRef dims,
                         const Tensor& values, int64_t batch_dims, bool front, ops::Axes axes,
                         ops::Name name) {
  check(points::name_of("index_put_", name), source, coordinates, dims, values, batch_dims, front,
        axes);
  return source;
}

Tensor put_points_meta(const Tensor& source, TensorList coordinates, at::IntArrayRef dims,
                       const Tensor& values, int64_t batch_dims, bool front, ops::Axes axes,
                       ops::Name name) {
  check(points::name_of("index_put", name), source, coordinates, dims, values, batch_dims, front,
        axes);
  return at::empty_symint(source.sym_sizes(), source.options());
}

// ---- Derivative ---------------------------------------------------------------------------------

Tensor read_back(const Tensor& grad, TensorList coordinates, at::IntArrayRef dims,
                 int64_t batch_dims, bool front) {
  return ops::gather_points().call(grad, coordinates, dims, batch_dims, front, "fill",
                                   at::Scalar(0), /*axes=*/std::nullopt);
}

Tensor erase(const Tensor& grad, TensorList coordinates, at::IntArrayRef dims, int64_t batch_dims,
             bool front, c10::SymIntArrayRef sizes) {
  const Tensor zeros = at::zeros({}, grad.options()).expand_symint(sizes);
  return ops::put_points().call(grad, coordinates, dims, zeros, batch_dims, front,
                                /*axes=*/std::nullopt, /*name=*/std::nullopt);
}

// Keeps the index arrays alone. What was overwritten has no gradient.
struct PutPointsNode final : points::PointsNode<PutPointsNode> {
  static constexpr const char* kName = "PutPointsBackward";
  std::vector<c10::SymInt> sizes;  // of the values

  template <class Visit>
  void fields(Visit&& visit) {
    fields_of_points(visit);
    visit(sizes);
  }

  variable_list backward(const Tensor& grad) {
    const std::vector<Tensor> entries = unpack_points();
    variable_list grads(2);
    if (needs_input_grad(0)) grads[0] = erase(grad, entries, dims, batch_dims, front, sizes);
    if (needs_input_grad(1)) grads[1] = read_back(grad, entries, dims, batch_dims, front);
    return grads;
  }
};

void fill_node(const std::shared_ptr<PutPointsNode>& node, TensorList coordinates,
               at::IntArrayRef dims, const Tensor& values, int64_t batch_dims, bool front) {
  if (!node) return;
  node->save_points(coordinates, dims, batch_dims, front);
  node->sizes = values.sym_sizes().vec();
}

// The tangent of the result, where either has one.
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

Tensor put_points_autograd(c10::DispatchKeySet keys, const Tensor& source, TensorList coordinates,
                           at::IntArrayRef dims, const Tensor& values, int64_t batch_dims,
                           bool front, ops::Axes axes, ops::Name name) {
  const auto node = autograd::make_node<PutPointsNode>(source, values);
  Tensor output = autograd::below_autograd(keys, ops::put_points(), source, coordinates, dims,
                                           values, batch_dims, front, axes, name);
  autograd::record(output, node);
  autograd::set_tangent(
      output,
      [&](const Tensor& of_source, const Tensor& of_values) {
        return tangent_of(of_source, of_values, values, coordinates, dims, batch_dims, front,
                          output);
      },
      source, values);
  fill_node(node, coordinates, dims, values, batch_dims, front);
  return output;
}

Tensor& put_points__autograd(c10::DispatchKeySet keys, Tensor& source, TensorList coordinates,
                             at::IntArrayRef dims, const Tensor& values, int64_t batch_dims,
                             bool front, ops::Axes axes, ops::Name name) {
  torch::autograd::check_inplace(source, torch::autograd::compute_requires_grad(source, values));
  const auto node = autograd::make_node<PutPointsNode>(source, values);
  autograd::below_autograd(keys, ops::put_points_(), source, coordinates, dims, values, batch_dims,
                           front, axes, name);
  if (node) torch::autograd::rebase_history(source, node);
  const bool has_tangent = torch::autograd::isFwGradDefined(source);
  if (has_tangent || torch::autograd::isFwGradDefined(values)) {
    const Tensor of_source = source._fw_grad(/*level=*/0);
    const Tensor tangent = tangent_of(of_source, values._fw_grad(/*level=*/0), values, coordinates,
                                      dims, batch_dims, front, source);
    if (has_tangent) {  // in place, so that the tangents of views of `source` follow
      of_source.copy_(tangent);
      source._set_fw_grad(of_source, /*level=*/0, /*is_inplace_op=*/true);
    } else {
      source._set_fw_grad(tangent, /*level=*/0, /*is_inplace_op=*/true);
    }
  }
  fill_node(node, coordinates, dims, values, batch_dims, front);
  return source;
}

Tensor& put_points__version(c10::DispatchKeySet keys, Tensor& source, TensorList coordinates,
                            at::IntArrayRef dims, const Tensor& values, int64_t batch_dims,
                            bool front, ops::Axes axes, ops::Name name) {
  return inplace::bump_version(keys, ops::put_points_(), source, coordinates, dims, values,
                               batch_dims, front, axes, name);
}

Tensor& put_points__functionalize(Tensor& source, TensorList coordinates, at::IntArrayRef dims,
                                  const Tensor& values, int64_t batch_dims, bool front,
                                  ops::Axes axes, ops::Name name) {
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

// ---- torch.vmap ---------------------------------------------------------------------------------

std::vector<int64_t> shifted(at::IntArrayRef dims) {
  std::vector<int64_t> axes;
  for (const int64_t dim : dims) axes.push_back(dim + 1);
  return axes;
}

// What is written gets the hidden axis in front, as one more batch axis. Index arrays without it
// are broadcast; values without it are expanded.
struct Hidden {
  std::vector<Tensor> coordinates;
  Tensor values;

  Hidden(const std::vector<points::Batched>& picks, const points::Batched& rows,
         const c10::SymInt& size)
      : coordinates(points::with_axis(picks, points::rank_of(picks), 0)),
        values(rows.expanded_at(0, size)) {}
};

Tensor put_points_batched(const Tensor& source, TensorList coordinates, at::IntArrayRef dims,
                          const Tensor& values, int64_t batch_dims, bool front, ops::Axes axes,
                          ops::Name name) {
  using points::Batched;
  return batching::apply(
      [&](const Batched& to, const std::vector<Batched>& picks, const Batched& rows) -> Batched {
        std::optional<c10::SymInt> size;
        for (const Batched& each : picks) {
          if (each.axis) size = each.size();
        }
        if (rows.axis) size = rows.size();
        if (to.axis) size = to.size();
        if (!size) {
          return {ops::put_points().call(to.value, points::values_of(picks), dims, rows.value,
                                         batch_dims, front, axes, name),
                  std::nullopt};
        }
        const Hidden hidden(picks, rows, *size);
        return {ops::put_points().call(to.expanded_at(0, *size), hidden.coordinates, shifted(dims),
                                       hidden.values, batch_dims + 1, front,
                                       axes ? axes : ops::Axes(dims), name),
                0};
      },
      source, coordinates, values);
}

Tensor& put_points__batched(Tensor& source, TensorList coordinates, at::IntArrayRef dims,
                            const Tensor& values, int64_t batch_dims, bool front, ops::Axes axes,
                            ops::Name name) {
  using points::Batched;
  batching::apply(
      [&](const Batched& to, const std::vector<Batched>& picks, const Batched& rows) -> Batched {
        TORCH_CHECK(to.axis || !(points::any_batched(picks) || rows.axis),
                    "index_put_: torch.vmap cannot write what differs between samples into a "
                    "source that they share. Use index_put, which returns a source for each.");
        Tensor table = to.axis ? to.at(0) : to.value;
        if (!to.axis) {
          ops::put_points_().call(table, points::values_of(picks), dims, rows.value, batch_dims,
                                  front, axes, name);
        } else {
          const Hidden hidden(picks, rows, to.size());
          ops::put_points_().call(table, hidden.coordinates, shifted(dims), hidden.values,
                                  batch_dims + 1, front, axes ? axes : ops::Axes(dims), name);
        }
        return to;
      },
      source, coordinates, values);
  return source;
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(torch_ops, m) {
  m.def(
      "put_points(Tensor source, Tensor[] coordinates, int[] dims, Tensor values, *, "
      "int batch_dims=0, bool front=False, int[]? axes=None, str? name=None) -> Tensor",
      {at::Tag::pt2_compliant_tag});
  m.def(
      "put_points_(Tensor(a!) source, Tensor[] coordinates, int[] dims, Tensor values, *, "
      "int batch_dims=0, bool front=False, int[]? axes=None, str? name=None) -> Tensor(a!)",
      {at::Tag::pt2_compliant_tag});
}

TORCH_LIBRARY_IMPL(torch_ops, CPU, m) {
  m.impl("put_points", put_points<OnCpu>);
  m.impl("put_points_", put_points_<OnCpu>);
}

TORCH_LIBRARY_IMPL(torch_ops, CUDA, m) {
  m.impl("put_points", put_points<OnCuda>);
  m.impl("put_points_", put_points_<OnCuda>);
}

TORCH_LIBRARY_IMPL(torch_ops, Meta, m) {
  m.impl("put_points", put_points_meta);
  m.impl("put_points_", put_points__meta);
}

TORCH_LIBRARY_IMPL(torch_ops, Autograd, m) {
  m.impl("put_points", put_points_autograd);
  m.impl("put_points_", put_points__autograd);
}

TORCH_LIBRARY_IMPL(torch_ops, ADInplaceOrView, m) { m.impl("put_points_", put_points__version); }

TORCH_LIBRARY_IMPL(torch_ops, Functionalize, m) {
  m.impl("put_points_", put_points__functionalize);
}

TORCH_LIBRARY_IMPL(torch_ops, FuncTorchBatched, m) {
  m.impl("put_points", put_points_batched);
  m.impl("put_points_", put_points__batched);
}

}  // namespace torch_ops
