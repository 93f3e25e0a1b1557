// The contract of scatter: a composition of scatter_add and of ops of its own, for the largest
// value, for its position and for the product.
#include <ATen/Dispatch.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/div.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>
#include <torch/library.h>

#include "common/gather_family/gather_ops.h"
#include "common/gather_family/index_mode_args.h"
#include "common/gather_family/indexing.h"
#include "common/gather_family/planned.h"
#include "common/gather_family/summable.h"
#include "common/torch/autograd.h"
#include "common/torch/new_output.h"
#include "scatter/batching.h"
#include "scatter/scatter.h"
#include "scatter/scatter_ops.h"

namespace torch_ops {
namespace {

using at::Tensor;
using autograd::SavedVariable;
using autograd::variable_list;
using ops::Dim;
using Part = std::optional<Tensor>;  // of a plan

constexpr const char* kOp = "scatter";

const auto& scatter_arg_op() {
  static const auto op =
      find_op<Tensor(const Tensor&, const Tensor&, c10::SymInt, Dim, int64_t, bool,
                     std::string_view, const Part&, const Part&)>("_scatter_arg");
  return op;
}

const auto& scatter_best_op() {
  static const auto op = find_op<Tensor(const Tensor&, const Tensor&, c10::SymInt, Dim, int64_t,
                                        bool, std::string_view)>("_scatter_best");
  return op;
}

const auto& scatter_prod_op() {
  static const auto op =
      find_op<Tensor(const Tensor&, const Tensor&, c10::SymInt, Dim, int64_t, std::string_view,
                     const Part&, const Part&)>("_scatter_prod");
  return op;
}

// Where values go, as the reductions ask for it: by an index or, where there are rows and order, by
// a plan of one.
struct Target {
  Tensor index;
  c10::SymInt dim_size;
  int64_t dim;  // counted from the front
  int64_t batch_dims;
  std::string_view mode;
  Part rows;
  Part order;

  // Sums at `axis`, which is `dim` or, of values that are as the index is, `batch_dims`.
  Tensor add(const Tensor& values, int64_t axis, std::optional<bool> deterministic) const {
    static const planned::Op by_plan = planned::find("scatter_add");
    return add(ops::scatter_add(), by_plan, values, axis, deterministic);
  }

  // Those of 16-bit floats are not rounded.
  Tensor sum(const Tensor& values, std::optional<bool> deterministic) const {
    static const planned::Op by_plan = planned::find("_scatter_sum");
    return add(ops::scatter_sum(), by_plan, values, dim, deterministic);
  }

  // Back: zeros for values that were dropped.
  Tensor gather(const Tensor& of_result) const {
    static const planned::Op by_plan = planned::find("gather");
    if (rows) {
      return by_plan.call(of_result, index, *rows, *order, dim_size, dim, batch_dims);
    }
    return ops::gather().call(of_result, index, dim, batch_dims, mode, ops::nothing(mode));
  }

  Tensor positions(const Tensor& values, bool largest) const {
    return scatter_arg_op().call(values, index, dim_size, dim, batch_dims, largest, mode, rows,
                                 order);
  }

  Tensor multiply(const Tensor& values) const {
    return scatter_prod_op().call(values, index, dim_size, dim, batch_dims, mode, rows, order);
  }

 private:
  template <class Op>
  Tensor add(const Op& op, const planned::Op& by_plan, const Tensor& values, int64_t axis,
             std::optional<bool> deterministic) const {
    if (rows) return by_plan.call(values, index, *rows, *order, dim_size, axis, batch_dims);
    return op.call(values, index, dim_size, axis, batch_dims, deterministic, mode);
  }
};

// ---- CPU, CUDA and Meta kernels of these ops --------------------------------------------------

indexing::Axes check(const Tensor& values, const Tensor& index, const c10::SymInt& dim_size,
                     Dim dim, int64_t batch_dims, const Part& rows = std::nullopt,
                     const Part& order = std::nullopt) {
  if (rows) indexing::check_plan(kOp, "values", values, index, *rows, order.value());
  const at::ScalarType dtype = values.scalar_type();
  TORCH_CHECK_TYPE(
      (at::isIntegralType(dtype, /*includeBool=*/false) && !at::isBarebonesUnsignedType(dtype)) ||
          dtype == at::kHalf || dtype == at::kBFloat16 || dtype == at::kFloat ||
          dtype == at::kDouble,
      "scatter: values must be uint8, int8, int16, int32, int64, float16, bfloat16, "
      "float32 or float64 for this reduction, but it is ",
      dtype_name(dtype), ".");
  return indexing::check_scatter(kOp, values, index, dim_size, dim, batch_dims);
}

// A call that was checked: its layout, and contiguous values.
struct Rows {
  std::vector<int64_t> sizes;  // of the result
  Tensor values;
  Tensor entries;
  RowLayout layout;
  IndexRule rule;
  std::optional<Plan> plan;

  Rows(const Tensor& given, const Tensor& index, const c10::SymInt& dim_size, indexing::Axes axes,
       std::string_view mode, const Part& rows = std::nullopt, const Part& order = std::nullopt)
      : sizes(C10_AS_INTARRAYREF_SLOW(indexing::scatter_sizes(given, index, dim_size, axes)).vec()),
        values(given.contiguous()),
        entries(index),
        layout(indexing::lay_out_contiguous(sizes, entries, axes)),
        rule(indexing::parse_mode(kOp, mode), layout.axis_size) {
    if (rows) plan = Plan{rows->contiguous(), order->contiguous()};
  }

  template <class Value, class Result>
  ReduceCall<Value, Result> of(const Tensor& result) const {
    return reduce_call<Value, Result>(values, entries, layout, rule, result,
                                      plan ? &*plan : nullptr);
  }

  // As call_indexed.
  template <class On, class Launch>
  void run(const Tensor& result, Launch&& launch) const {
    call_indexed<On>(kOp, entries, layout, rule.mode(), result, launch);
  }
};

// Calls use(value) with a value of the kernels' type for a dtype that check() takes.
template <class Use>
auto dispatch_ordered(at::ScalarType dtype, Use&& use) {
  return AT_DISPATCH_ALL_TYPES_AND2(at::kHalf, at::kBFloat16, dtype, kOp,
                                    [&] { return use(typename KernelTypeOf<scalar_t>::type()); });
}

template <class On>
Tensor scatter_arg(const Tensor& values, const Tensor& index, c10::SymInt dim_size, Dim dim,
                   int64_t batch_dims, bool largest, std::string_view mode, const Part& rows,
                   const Part& order) {
  const indexing::Axes axes = check(values, index, dim_size, dim, batch_dims, rows, order);
  const Rows call(values, index, dim_size, axes, mode, rows, order);
  const Tensor positions = new_output(call.sizes, values.options().dtype(at::kLong));
  call.run<On>(positions, [&](auto on, const auto&... errors) {
    return dispatch_ordered(values.scalar_type(), [&](auto zero) {
      return kernels::scatter_arg(on, call.of<decltype(zero), int64_t>(positions), largest,
                                  errors...);
    });
  });
  return positions;
}

Tensor scatter_arg_meta(const Tensor& values, const Tensor& index, c10::SymInt dim_size, Dim dim,
                        int64_t batch_dims, bool /*largest*/, std::string_view mode,
                        const Part& rows, const Part& order) {
  const indexing::Axes axes = check(values, index, dim_size, dim, batch_dims, rows, order);
  indexing::parse_mode(kOp, mode);
  return at::empty_symint(indexing::scatter_sizes(values, index, dim_size, axes),
                          values.options().dtype(at::kLong));
}

template <class On>
Tensor scatter_best(const Tensor& values, const Tensor& index, c10::SymInt dim_size, Dim dim,
                    int64_t batch_dims, bool largest, std::string_view mode) {
  const indexing::Axes axes = check(values, index, dim_size, dim, batch_dims);
  const Rows rows(values, index, dim_size, axes, mode);
  const Tensor best = new_output(rows.sizes, values.options());
  rows.run<On>(best, [&](auto on) {
    return dispatch_ordered(values.scalar_type(), [&](auto zero) {
      using Value = decltype(zero);
      return kernels::scatter_best(on, rows.of<Value, Value>(best), largest);
    });
  });
  return best;
}

Tensor scatter_best_meta(const Tensor& values, const Tensor& index, c10::SymInt dim_size, Dim dim,
                         int64_t batch_dims, bool /*largest*/, std::string_view mode) {
  const indexing::Axes axes = check(values, index, dim_size, dim, batch_dims);
  indexing::parse_mode(kOp, mode);
  return at::empty_symint(indexing::scatter_sizes(values, index, dim_size, axes), values.options());
}

template <class On>
Tensor scatter_prod(const Tensor& values, const Tensor& index, c10::SymInt dim_size, Dim dim,
                    int64_t batch_dims, std::string_view mode, const Part& rows,
                    const Part& order) {
  const indexing::Axes axes = check(values, index, dim_size, dim, batch_dims, rows, order);
  const Rows call(values, index, dim_size, axes, mode, rows, order);
  const Tensor products = new_output(call.sizes, values.options());
  call.run<On>(products, [&](auto on, const auto&... errors) {
    return dispatch_summed(values.scalar_type(), [&](auto zero) {
      using Value = decltype(zero);
      return kernels::scatter_prod(on, call.of<Value, Value>(products), errors...);
    });
  });
  return products;
}

Tensor scatter_prod_meta(const Tensor& values, const Tensor& index, c10::SymInt dim_size, Dim dim,
                         int64_t batch_dims, std::string_view mode, const Part& rows,
                         const Part& order) {
  const indexing::Axes axes = check(values, index, dim_size, dim, batch_dims, rows, order);
  indexing::parse_mode(kOp, mode);
  return at::empty_symint(indexing::scatter_sizes(values, index, dim_size, axes), values.options());
}

// ---- Derivatives of these ops -----------------------------------------------------------------

// Positions have none.
Tensor scatter_arg_autograd(c10::DispatchKeySet keys, const Tensor& values, const Tensor& index,
                            c10::SymInt dim_size, Dim dim, int64_t batch_dims, bool largest,
                            std::string_view mode, const Part& rows, const Part& order) {
  return autograd::below_autograd(keys, scatter_arg_op(), values, index, dim_size, dim, batch_dims,
                                  largest, mode, rows, order);
}

// The value at the position of the best one, which is where the gradient goes.
Tensor best_by_position(const Tensor& values, const Target& to, bool largest) {
  const int64_t axis = to.dim, picked = to.index.dim() - to.batch_dims;
  const Tensor rows =
      picked == 0 ? values.unsqueeze(axis) : values.flatten(axis, axis + picked - 1);
  return ops::gather_elements().call(rows, to.positions(values, largest), axis, "fill", 0);
}

bool has_derivative(const Tensor& values) {
  return (values.requires_grad() && at::GradMode::is_enabled()) ||
         torch::autograd::isFwGradDefined(values);
}

// On CUDA, where a graph may come that was traced on the CPU.
Tensor scatter_best_by_position(const Tensor& values, const Tensor& index, c10::SymInt dim_size,
                                Dim dim, int64_t batch_dims, bool largest, std::string_view mode) {
  const int64_t axis = check(values, index, dim_size, dim, batch_dims).dim;
  return best_by_position(values, {index, dim_size, axis, batch_dims, mode}, largest);
}

// A graph may have been traced where no gradient was asked for.
Tensor scatter_best_autograd(c10::DispatchKeySet keys, const Tensor& values, const Tensor& index,
                             c10::SymInt dim_size, Dim dim, int64_t batch_dims, bool largest,
                             std::string_view mode) {
  if (has_derivative(values)) {
    const int64_t axis = indexing::check_scatter(kOp, values, index, dim_size, dim, batch_dims).dim;
    return best_by_position(values, {index, dim_size, axis, batch_dims, mode}, largest);
  }
  return autograd::below_autograd(keys, scatter_best_op(), values, index, dim_size, dim, batch_dims,
                                  largest, mode);
}

// The product of the other values that go where a value goes: what its gradient is multiplied by.
// Without a division by a value that is zero.
Tensor product_of_others(const Tensor& values, const Target& to) {
  const Tensor is_zero = at::eq(values, 0);
  const Tensor nonzero = at::where(is_zero, at::ones_like(values), values);
  const Tensor counts = is_zero.to(at::kInt);
  const Tensor other_zeros = to.gather(to.add(counts, to.dim, std::nullopt)) - counts;
  const Tensor product = to.gather(to.multiply(nonzero));
  return at::where(at::eq(other_zeros, 0), product / nonzero, at::zeros_like(values));
}

struct ScatterProdNode final : autograd::DerivativeNode<ScatterProdNode> {
  static constexpr const char* kName = "ScatterProdBackward";
  SavedVariable values;
  SavedVariable index;
  SavedVariable rows;  // undefined without a plan, as is `order`
  SavedVariable order;
  c10::SymInt dim_size;
  int64_t dim = 0;
  int64_t batch_dims = 0;
  int64_t mode = 0;

  template <class Visit>
  void fields(Visit&& visit) {
    visit(values);
    visit(index);
    visit(rows);
    visit(order);
    visit(dim_size);
    visit(dim);
    visit(batch_dims);
    visit(mode);
  }

  variable_list backward(const Tensor& grad_output) {
    const auto part = [&](const SavedVariable& saved) {
      const Tensor tensor = unpack(saved);
      return tensor.defined() ? Part(tensor) : std::nullopt;
    };
    const Target to{unpack(index), dim_size,   dim, batch_dims, indexing::mode_name(mode),
                    part(rows),    part(order)};
    return {to.gather(grad_output) * product_of_others(unpack(values), to)};
  }
};

Tensor scatter_prod_autograd(c10::DispatchKeySet keys, const Tensor& values, const Tensor& index,
                             c10::SymInt dim_size, Dim dim, int64_t batch_dims,
                             std::string_view mode, const Part& rows, const Part& order) {
  const auto node = autograd::make_node<ScatterProdNode>(values);
  Tensor output = autograd::below_autograd(keys, scatter_prod_op(), values, index, dim_size, dim,
                                           batch_dims, mode, rows, order);
  autograd::record(output, node);
  autograd::set_tangent(
      output,
      [&](const Tensor& tangent) {
        const int64_t axis = resolve_result_dim(kOp, values.dim(), index.dim(), dim, batch_dims);
        const Target to{index, dim_size, axis, batch_dims, mode, rows, order};
        return to.add(tangent * product_of_others(autograd::primal(values), to), axis,
                      std::nullopt);
      },
      values);
  if (node) {
    node->values = SavedVariable(values, /*is_output=*/false);
    node->index = SavedVariable(index, /*is_output=*/false);
    node->rows = SavedVariable(rows.value_or(Tensor()), /*is_output=*/false);
    node->order = SavedVariable(order.value_or(Tensor()), /*is_output=*/false);
    node->dim_size = dim_size;
    node->dim = resolve_result_dim(kOp, values.dim(), index.dim(), dim, batch_dims);
    node->batch_dims = batch_dims;
    node->mode = static_cast<int64_t>(indexing::parse_mode(kOp, mode));
  }
  return output;
}

// ---- torch.vmap ---------------------------------------------------------------------------------

void check_not_mapped(const Tensor& index, const Tensor& rows, const Tensor& order) {
  for (const Tensor& part : {index, rows, order}) {
    planned::check_not_mapped(kOp,
                              at::functorch::isBatchedAtLevel(part, batching::current_level()));
  }
}

Tensor scatter_arg_batched(const Tensor& values, const Tensor& index, c10::SymInt dim_size, Dim dim,
                           int64_t batch_dims, bool largest, std::string_view mode,
                           const Part& rows, const Part& order) {
  if (rows) check_not_mapped(index, *rows, order.value());
  return batch_scatter(kOp, values, index, dim, batch_dims,
                       [&](const Tensor& v, const Tensor& i, Dim axis, int64_t batches) {
                         return scatter_arg_op().call(v, i, dim_size, axis, batches, largest, mode,
                                                      rows, order);
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
                            Dim dim, int64_t batch_dims, std::string_view mode, const Part& rows,
                            const Part& order) {
  if (rows) check_not_mapped(index, *rows, order.value());
  return batch_scatter(kOp, values, index, dim, batch_dims,
                       [&](const Tensor& v, const Tensor& i, Dim axis, int64_t batches) {
                         return scatter_prod_op().call(v, i, dim_size, axis, batches, mode, rows,
                                                       order);
                       });
}

// ---- scatter: a composition ---------------------------------------------------------------------

Tensor mean(const Tensor& values, const Target& to, std::optional<bool> deterministic) {
  const at::ScalarType dtype = values.scalar_type();
  // A sum of 16-bit numbers may exceed them where the mean does not.
  const Tensor sums = to.sum(values, deterministic);
  // [batch..., dim_size], with axes of length 1 for the others.
  Tensor counts = to.add(at::ones_like(to.index, to.index.options().dtype(at::kLong)),
                         to.batch_dims, std::nullopt);
  for (int64_t d = to.batch_dims; d < to.dim; ++d) counts = counts.unsqueeze(to.batch_dims);
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

Tensor best(const Tensor& values, const Target& to, bool largest) {
  if (needs_values_alone(values)) {
    return scatter_best_op().call(values, to.index, to.dim_size, to.dim, to.batch_dims, largest,
                                  to.mode);
  }
  return best_by_position(values, to, largest);
}

Tensor reduce(const Tensor& values, const Target& to, std::string_view reduce,
              std::optional<bool> deterministic) {
  if (reduce == "sum") return to.add(values, to.dim, deterministic);
  if (reduce == "mean") return mean(values, to, deterministic);
  if (reduce == "amax" || reduce == "amin") return best(values, to, reduce == "amax");
  TORCH_CHECK_VALUE(reduce == "prod", kOp,
                    R"(: reduce must be "sum", "mean", "amax", "amin" or "prod", but it is ")",
                    reduce, R"(".)");
  return to.multiply(values);
}

// `mode` in a form that names scatter, for the ops that it calls.
std::string_view named(std::string_view mode) {
  static const indexing::ModesOf modes(kOp);
  return modes(mode);
}

Tensor scatter(const Tensor& values, const Tensor& index, c10::SymInt dim_size, Dim dim,
               int64_t batch_dims, std::string_view reduction, std::string_view mode,
               std::optional<bool> deterministic) {
  const int64_t axis = indexing::check_scatter(kOp, values, index, dim_size, dim, batch_dims).dim;
  return reduce(values, {index, dim_size, axis, batch_dims, named(mode)}, reduction, deterministic);
}

// What the ops below would say of these arguments in names of their own is checked here.
Tensor scatter_by_plan(const Tensor& values, const Tensor& index, const Tensor& rows,
                       const Tensor& order, c10::SymInt dim_size, int64_t dim, int64_t batch_dims,
                       std::string_view reduction) {
  indexing::check_plan(kOp, "values", values, index, rows, order);
  const int64_t axis = indexing::check_scatter(kOp, values, index, dim_size, dim, batch_dims).dim;
  if (reduction == "sum" || reduction == "mean") check_summable(kOp, values);
  return reduce(values, {index, dim_size, axis, batch_dims, named("raise"), rows, order}, reduction,
                /*deterministic=*/true);
}

Tensor scatter_by_plan_batched(const Tensor& values, const Tensor& index, const Tensor& rows,
                               const Tensor& order, c10::SymInt dim_size, int64_t dim,
                               int64_t batch_dims, std::string_view reduction) {
  check_not_mapped(index, rows, order);
  return scatter_by_plan(values, index, rows, order, std::move(dim_size), dim, batch_dims,
                         reduction);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(torch_ops, m) {
  m.def(
      "_scatter_arg(Tensor values, Tensor index, SymInt dim_size, int? dim, int batch_dims, "
      "bool largest, str mode, Tensor? rows=None, Tensor? order=None) -> Tensor",
      {at::Tag::pt2_compliant_tag});
  m.def(
      "_scatter_best(Tensor values, Tensor index, SymInt dim_size, int? dim, int batch_dims, "
      "bool largest, str mode) -> Tensor",
      {at::Tag::pt2_compliant_tag});
  m.def(
      "_scatter_prod(Tensor values, Tensor index, SymInt dim_size, int? dim, int batch_dims, "
      "str mode, Tensor? rows=None, Tensor? order=None) -> Tensor",
      {at::Tag::pt2_compliant_tag});
  m.def(
      "scatter(Tensor values, Tensor index, SymInt dim_size, int? dim=None, *, int batch_dims=0, "
      "str reduce='sum', str mode='raise', bool? deterministic=None) -> Tensor",
      {at::Tag::pt2_compliant_tag});
  m.def(
      "scatter.plan(Tensor values, Tensor index, Tensor rows, Tensor order, SymInt dim_size, "
      "int dim, int batch_dims, str reduce='sum') -> Tensor",
      {at::Tag::pt2_compliant_tag});
}

TORCH_LIBRARY_IMPL(torch_ops, CPU, m) {
  m.impl("_scatter_arg", scatter_arg<OnCpu>);
  m.impl("_scatter_best", scatter_best<OnCpu>);
  m.impl("_scatter_prod", scatter_prod<OnCpu>);
}

TORCH_LIBRARY_IMPL(torch_ops, CUDA, m) {
  m.impl("_scatter_arg", scatter_arg<OnCuda>);
  m.impl("_scatter_best", scatter_best_by_position);
  m.impl("_scatter_prod", scatter_prod<OnCuda>);
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
  m.impl("scatter.plan", scatter_by_plan_batched);
}

TORCH_LIBRARY_IMPL(torch_ops, CompositeImplicitAutograd, m) {
  m.impl("scatter", scatter);
  m.impl("scatter.plan", scatter_by_plan);
}

}  // namespace torch_ops
