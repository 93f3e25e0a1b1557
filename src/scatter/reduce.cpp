// The contract of scatter: a composition of scatter_add and of ops of its own, for the largest
// value, for its position and for the product.
#include "scatter/reduce.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/div.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>
#include <torch/library.h>

#include "common/autograd.h"
#include "common/gather_ops.h"
#include "common/index_mode_args.h"
#include "common/indexing.h"
#include "common/new_output.h"
#include "scatter/batching.h"
#include "scatter/scatter.h"
#include "scatter/scatter_ops.h"

namespace torch_ops {
namespace {

using at::Tensor;
using autograd::SavedVariable;
using autograd::variable_list;
using ops::Dim;
using ops::Fill;

constexpr const char* kOp = "scatter";

const auto& scatter_arg_op() {
  static const auto op = find_op<Tensor(const Tensor&, const Tensor&, c10::SymInt, Dim, int64_t,
                                        bool, std::string_view)>("_scatter_arg");
  return op;
}

const auto& scatter_best_op() {
  static const auto op = find_op<Tensor(const Tensor&, const Tensor&, c10::SymInt, Dim, int64_t,
                                        bool, std::string_view)>("_scatter_best");
  return op;
}

const auto& scatter_prod_op() {
  static const auto op =
      find_op<Tensor(const Tensor&, const Tensor&, c10::SymInt, Dim, int64_t, std::string_view)>(
          "_scatter_prod");
  return op;
}

// ---- CPU, CUDA and Meta kernels of these ops --------------------------------------------------

indexing::Axes check(const Tensor& values, const Tensor& index, const c10::SymInt& dim_size,
                     Dim dim, int64_t batch_dims) {
  const at::ScalarType dtype = values.scalar_type();
  TORCH_CHECK_TYPE(
      (at::isIntegralType(dtype, /*includeBool=*/false) && !at::isBarebonesUnsignedType(dtype)) ||
          dtype == at::kHalf || dtype == at::kBFloat16 || dtype == at::kFloat ||
          dtype == at::kDouble,
      "scatter: values must be uint8, int8, int16, int32, int64, float16, bfloat16, "
      "float32 or float64 for this reduction, but it is ",
      dtype, ".");
  return indexing::check_scatter(kOp, values, index, dim_size, dim, batch_dims);
}

// A call that was checked: its layout, and contiguous values.
struct Rows {
  std::vector<int64_t> sizes;  // of the result
  Tensor values;
  Tensor entries;
  RowLayout layout;
  IndexRule rule;

  Rows(const Tensor& given, const Tensor& index, const c10::SymInt& dim_size, indexing::Axes axes,
       std::string_view mode)
      : sizes(C10_AS_INTARRAYREF_SLOW(indexing::scatter_sizes(given, index, dim_size, axes)).vec()),
        values(given.contiguous()),
        entries(index),
        layout(indexing::lay_out_contiguous(sizes, entries, axes)),
        rule(indexing::parse_mode(kOp, mode), layout.axis_size) {}
};

template <auto launch>
Tensor scatter_arg(const Tensor& values, const Tensor& index, c10::SymInt dim_size, Dim dim,
                   int64_t batch_dims, bool largest, std::string_view mode) {
  const indexing::Axes axes = check(values, index, dim_size, dim, batch_dims);
  const Rows rows(values, index, dim_size, axes, mode);
  const Tensor positions = new_output(rows.sizes, values.options().dtype(at::kLong));
  launch(rows.values, rows.entries, rows.layout, rows.rule, largest, /*plan=*/nullptr, positions);
  return positions;
}

Tensor scatter_arg_meta(const Tensor& values, const Tensor& index, c10::SymInt dim_size, Dim dim,
                        int64_t batch_dims, bool /*largest*/, std::string_view mode) {
  const indexing::Axes axes = check(values, index, dim_size, dim, batch_dims);
  indexing::parse_mode(kOp, mode);
  return at::empty_symint(indexing::scatter_sizes(values, index, dim_size, axes),
                          values.options().dtype(at::kLong));
}

template <auto launch>
Tensor scatter_best(const Tensor& values, const Tensor& index, c10::SymInt dim_size, Dim dim,
                    int64_t batch_dims, bool largest, std::string_view mode) {
  const indexing::Axes axes = check(values, index, dim_size, dim, batch_dims);
  const Rows rows(values, index, dim_size, axes, mode);
  const Tensor best = new_output(rows.sizes, values.options());
  launch(rows.values, rows.entries, rows.layout, rows.rule, largest, best);
  return best;
}

Tensor scatter_best_meta(const Tensor& values, const Tensor& index, c10::SymInt dim_size, Dim dim,
                         int64_t batch_dims, bool /*largest*/, std::string_view mode) {
  const indexing::Axes axes = check(values, index, dim_size, dim, batch_dims);
  indexing::parse_mode(kOp, mode);
  return at::empty_symint(indexing::scatter_sizes(values, index, dim_size, axes), values.options());
}

template <auto launch>
Tensor scatter_prod(const Tensor& values, const Tensor& index, c10::SymInt dim_size, Dim dim,
                    int64_t batch_dims, std::string_view mode) {
  const indexing::Axes axes = check(values, index, dim_size, dim, batch_dims);
  const Rows rows(values, index, dim_size, axes, mode);
  const at::ScalarType real = values.scalar_type();
  const Tensor products = new_output(rows.sizes, values.options());
  launch(rows.values.view(as_dispatched(real)), rows.entries, rows.layout, rows.rule,
         /*plan=*/nullptr, products.view(as_dispatched(real)));
  return products;
}

Tensor scatter_prod_meta(const Tensor& values, const Tensor& index, c10::SymInt dim_size, Dim dim,
                         int64_t batch_dims, std::string_view mode) {
  const indexing::Axes axes = check(values, index, dim_size, dim, batch_dims);
  indexing::parse_mode(kOp, mode);
  return at::empty_symint(indexing::scatter_sizes(values, index, dim_size, axes), values.options());
}

// ---- Derivatives of these ops -----------------------------------------------------------------

// Positions have none.
Tensor scatter_arg_autograd(c10::DispatchKeySet keys, const Tensor& values, const Tensor& index,
                            c10::SymInt dim_size, Dim dim, int64_t batch_dims, bool largest,
                            std::string_view mode) {
  return autograd::below_autograd(keys, scatter_arg_op(), values, index, dim_size, dim, batch_dims,
                                  largest, mode);
}

// The value at the position of the best one, which is where the gradient goes.
Tensor best_by_position(const Tensor& values, const Tensor& index, const c10::SymInt& dim_size,
                        int64_t axis, int64_t batch_dims, bool largest, std::string_view mode) {
  const Tensor positions =
      scatter_arg_op().call(values, index, dim_size, axis, batch_dims, largest, mode);
  const int64_t picked = index.dim() - batch_dims;
  const Tensor rows =
      picked == 0 ? values.unsqueeze(axis) : values.flatten(axis, axis + picked - 1);
  return ops::gather_elements().call(rows, positions, axis, "fill", 0);
}

bool has_derivative(const Tensor& values) {
  return (values.requires_grad() && at::GradMode::is_enabled()) ||
         torch::autograd::isFwGradDefined(values);
}

// On CUDA, where a graph may come that was traced on the CPU.
Tensor scatter_best_by_position(const Tensor& values, const Tensor& index, c10::SymInt dim_size,
                                Dim dim, int64_t batch_dims, bool largest, std::string_view mode) {
  const int64_t axis = check(values, index, dim_size, dim, batch_dims).dim;
  return best_by_position(values, index, dim_size, axis, batch_dims, largest, mode);
}

// A graph may have been traced where no gradient was asked for.
Tensor scatter_best_autograd(c10::DispatchKeySet keys, const Tensor& values, const Tensor& index,
                             c10::SymInt dim_size, Dim dim, int64_t batch_dims, bool largest,
                             std::string_view mode) {
  if (has_derivative(values)) {
    const int64_t axis = indexing::check_scatter(kOp, values, index, dim_size, dim, batch_dims).dim;
    return best_by_position(values, index, dim_size, axis, batch_dims, largest, mode);
  }
  return autograd::below_autograd(keys, scatter_best_op(), values, index, dim_size, dim, batch_dims,
                                  largest, mode);
}

// The product of the other values that go where a value goes: what its gradient is multiplied by.
// Without a division by a value that is zero.
Tensor product_of_others(const Tensor& values, const Tensor& index, const c10::SymInt& dim_size,
                         int64_t dim, int64_t batch_dims, std::string_view mode) {
  const Fill dropped = ops::nothing(mode);
  const auto spread = [&](const Tensor& of_result) {
    return ops::gather().call(of_result, index, dim, batch_dims, mode, dropped);
  };
  const Tensor is_zero = at::eq(values, 0);
  const Tensor nonzero = at::where(is_zero, at::ones_like(values), values);
  const Tensor counts = is_zero.to(at::kInt);
  const Tensor other_zeros = spread(ops::scatter_add().call(counts, index, dim_size, dim,
                                                            batch_dims, std::nullopt, mode)) -
                             counts;
  const Tensor product =
      spread(scatter_prod_op().call(nonzero, index, dim_size, dim, batch_dims, mode));
  return at::where(at::eq(other_zeros, 0), product / nonzero, at::zeros_like(values));
}

struct ScatterProdNode final : autograd::DerivativeNode<ScatterProdNode> {
  static constexpr const char* kName = "ScatterProdBackward";
  SavedVariable values;
  SavedVariable index;
  c10::SymInt dim_size;
  int64_t dim = 0;
  int64_t batch_dims = 0;
  int64_t mode = 0;

  template <class Visit>
  void fields(Visit&& visit) {
    visit(values);
    visit(index);
    visit(dim_size);
    visit(dim);
    visit(batch_dims);
    visit(mode);
  }

  variable_list backward(const Tensor& grad_output) {
    const auto name = indexing::mode_name(mode);
    const Tensor picks = unpack(index);
    return {ops::gather().call(grad_output, picks, dim, batch_dims, name, ops::nothing(name)) *
            product_of_others(unpack(values), picks, dim_size, dim, batch_dims, name)};
  }
};

Tensor scatter_prod_autograd(c10::DispatchKeySet keys, const Tensor& values, const Tensor& index,
                             c10::SymInt dim_size, Dim dim, int64_t batch_dims,
                             std::string_view mode) {
  const auto node = autograd::make_node<ScatterProdNode>(values);
  Tensor output = autograd::below_autograd(keys, scatter_prod_op(), values, index, dim_size, dim,
                                           batch_dims, mode);
  autograd::record(output, node);
  autograd::set_tangent(
      output,
      [&](const Tensor& tangent) {
        const int64_t axis = resolve_result_dim(kOp, values.dim(), index.dim(), dim, batch_dims);
        const Tensor others =
            product_of_others(autograd::primal(values), index, dim_size, axis, batch_dims, mode);
        return ops::scatter_add().call(tangent * others, index, dim_size, axis, batch_dims,
                                       std::nullopt, mode);
      },
      values);
  if (node) {
    node->values = SavedVariable(values, /*is_output=*/false);
    node->index = SavedVariable(index, /*is_output=*/false);
    node->dim_size = dim_size;
    node->dim = resolve_result_dim(kOp, values.dim(), index.dim(), dim, batch_dims);
    node->batch_dims = batch_dims;
    node->mode = static_cast<int64_t>(indexing::parse_mode(kOp, mode));
  }
  return output;
}

// ---- torch.vmap ---------------------------------------------------------------------------------

Tensor scatter_arg_batched(const Tensor& values, const Tensor& index, c10::SymInt dim_size, Dim dim,
                           int64_t batch_dims, bool largest, std::string_view mode) {
  return batch_scatter(kOp, values, index, dim, batch_dims,
                       [&](const Tensor& v, const Tensor& i, Dim axis, int64_t batches) {
                         return scatter_arg_op().call(v, i, dim_size, axis, batches, largest, mode);
                       });
}

Tensor scatter_best_batched(const Tensor& values, const Tensor& index, c10::SymInt dim_size,
                            Dim dim, int64_t batch_dims, bool largest, std::string_view mode) {
  return batch_scatter(kOp, values, index, dim, batch_dims,
                       [&](const Tensor& v, const Tensor& i, Dim axis, int64_t batches) {
                         return scatter_best_op().call(v, i, dim_size, axis, batches, largest,
                                                       mode);
                       });
}

Tensor scatter_prod_batched(const Tensor& values, const Tensor& index, c10::SymInt dim_size,
                            Dim dim, int64_t batch_dims, std::string_view mode) {
  return batch_scatter(kOp, values, index, dim, batch_dims,
                       [&](const Tensor& v, const Tensor& i, Dim axis, int64_t batches) {
                         return scatter_prod_op().call(v, i, dim_size, axis, batches, mode);
                       });
}

// ---- scatter: a composition ---------------------------------------------------------------------

Tensor mean(const Tensor& values, const Tensor& index, const c10::SymInt& dim_size, int64_t axis,
            int64_t batch_dims, std::optional<bool> deterministic, std::string_view mode) {
  const at::ScalarType dtype = values.scalar_type();
  // `mode` names scatter already. A sum of 16-bit numbers may exceed them where the mean does not.
  const Tensor sums =
      ops::scatter_sum().call(values, index, dim_size, axis, batch_dims, deterministic, mode);
  // [batch..., dim_size], with axes of length 1 for the others.
  Tensor counts = ops::scatter_add().call(at::ones_like(index, index.options().dtype(at::kLong)),
                                          index, dim_size, batch_dims, batch_dims,
                                          /*deterministic=*/std::nullopt, mode);
  for (int64_t d = batch_dims; d < axis; ++d) counts = counts.unsqueeze(batch_dims);
  while (counts.dim() < sums.dim()) counts = counts.unsqueeze(-1);
  counts = counts.clamp_min(1);
  if (at::isIntegralType(dtype, /*includeBool=*/false)) {
    return at::div(sums, counts, "floor").to(dtype);
  }
  return at::div(sums, counts).to(dtype);
}

// Nobody will ask where the best values are, and there is a kernel that does not look.
bool needs_values_alone(const Tensor& values) {
  return values.is_cpu() && !has_derivative(values) &&
         !at::functorch::maybeCurrentDynamicLayer().has_value() &&
         !values.key_set().has(c10::DispatchKey::Batched);
}

Tensor best(const Tensor& values, const Tensor& index, const c10::SymInt& dim_size, int64_t axis,
            int64_t batch_dims, bool largest, std::string_view mode) {
  if (needs_values_alone(values)) {
    return scatter_best_op().call(values, index, dim_size, axis, batch_dims, largest, mode);
  }
  return best_by_position(values, index, dim_size, axis, batch_dims, largest, mode);
}

Tensor scatter(const Tensor& values, const Tensor& index, c10::SymInt dim_size, Dim dim,
               int64_t batch_dims, std::string_view reduce, std::string_view mode,
               std::optional<bool> deterministic) {
  static const indexing::ModesOf modes(kOp);
  if (reduce == "sum") {
    return ops::scatter_add().call(values, index, dim_size, dim, batch_dims, deterministic,
                                   modes(mode));
  }
  const int64_t axis = indexing::check_scatter(kOp, values, index, dim_size, dim, batch_dims).dim;
  if (reduce == "mean") {
    return mean(values, index, dim_size, axis, batch_dims, deterministic, modes(mode));
  }
  if (reduce == "amax" || reduce == "amin") {
    return best(values, index, dim_size, axis, batch_dims, reduce == "amax", mode);
  }
  TORCH_CHECK_VALUE(reduce == "prod", kOp,
                    R"(: reduce must be "sum", "mean", "amax", "amin" or "prod", but it is ")",
                    reduce, R"(".)");
  return scatter_prod_op().call(values, index, dim_size, axis, batch_dims, mode);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(torch_ops, m) {
  m.def(
      "_scatter_arg(Tensor values, Tensor index, SymInt dim_size, int? dim, int batch_dims, "
      "bool largest, str mode) -> Tensor",
      {at::Tag::pt2_compliant_tag});
  m.def(
      "_scatter_best(Tensor values, Tensor index, SymInt dim_size, int? dim, int batch_dims, "
      "bool largest, str mode) -> Tensor",
      {at::Tag::pt2_compliant_tag});
  m.def(
      "_scatter_prod(Tensor values, Tensor index, SymInt dim_size, int? dim, int batch_dims, "
      "str mode) -> Tensor",
      {at::Tag::pt2_compliant_tag});
  m.def(
      "scatter(Tensor values, Tensor index, SymInt dim_size, int? dim=None, *, int batch_dims=0, "
      "str reduce='sum', str mode='raise', bool? deterministic=None) -> Tensor",
      {at::Tag::pt2_compliant_tag});
}

TORCH_LIBRARY_IMPL(torch_ops, CPU, m) {
  m.impl("_scatter_arg", scatter_arg<scatter_arg_cpu>);
  m.impl("_scatter_best", scatter_best<scatter_best_cpu>);
  m.impl("_scatter_prod", scatter_prod<scatter_prod_cpu>);
}

TORCH_LIBRARY_IMPL(torch_ops, CUDA, m) {
  m.impl("_scatter_arg", scatter_arg<scatter_arg_cuda>);
  m.impl("_scatter_best", scatter_best_by_position);
  m.impl("_scatter_prod", scatter_prod<scatter_prod_cuda>);
}

TORCH_LIBRARY_IMPL(torch_ops, Meta, m) {
  m.impl("_scatter_arg", scatter_arg_meta);
  m.impl("_scatter_best", scatter_best_meta);
  m.impl("_scatter_prod", scatter_prod_meta);
}

TORCH_LIBRARY_IMPL(torch_ops, Autograd, m) {
  m.impl("_scatter_arg", scatter_arg_autograd);
  m.impl("_scatter_best", scatter_best_autograd);
  m.impl("_scatter_prod", scatter_prod_autograd);
}

TORCH_LIBRARY_IMPL(torch_ops, FuncTorchBatched, m) {
  m.impl("_scatter_arg", scatter_arg_batched);
  m.impl("_scatter_best", scatter_best_batched);
  m.impl("_scatter_prod", scatter_prod_batched);
  m.impl("scatter", scatter);
}

TORCH_LIBRARY_IMPL(torch_ops, CompositeImplicitAutograd, m) { m.impl("scatter", scatter); }

}  // namespace torch_ops
