// The contract of scatter: a composition of scatter_add and of internal ops, for the largest
// value, for its position, for the product and for the variance.
#include <ATen/Dispatch.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/div.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/logical_not.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/where.h>

#include "common/gather_family/gather_ops.h"
#include "common/gather_family/index_mode_args.h"
#include "common/gather_family/indexing.h"
#include "common/gather_family/planned.h"
#include "common/gather_family/summable.h"
#include "common/torch/registration/derive.h"
#include "scatter/batching.h"
#include "scatter/scatter.h"
#include "scatter/scatter_ops.h"

namespace torch_ops {
namespace {

using at::Tensor;
using ops::Dim;
using Part = std::optional<Tensor>;  // of a plan

constexpr const char* kReduceOp = "scatter";

// Where values go, in the form for the reductions: by an index or, if there are rows and order, by
// a plan of one.
struct Target {
  Tensor index;
  c10::SymInt dim_size;
  int64_t dim;  // counted from the front
  int64_t batch_dims;
  std::string_view mode;
  Part rows;
  Part order;
  ops::Name name = std::nullopt;  // in whose errors are raised, if not in scatter's

  // Sums at `axis`, which is `dim` or, for values shaped like the index, `batch_dims`.
  Tensor add(const Tensor& values, int64_t axis, std::optional<bool> deterministic) const {
    static const auto by_plan = find_op<planned::Signature>("scatter_add.plan");
    return add(ops::scatter_add(), by_plan, values, axis, deterministic);
  }

  // Those of 16-bit floats are not rounded.
  Tensor sum(const Tensor& values, std::optional<bool> deterministic) const {
    static const auto by_plan = find_op<planned::Signature>("_scatter_sum.plan");
    return add(ops::scatter_sum(), by_plan, values, dim, deterministic);
  }

  // Back: zeros for values that were dropped.
  Tensor gather(const Tensor& of_result) const {
    static const auto by_plan = find_op<planned::Signature>("gather.plan");
    if (rows) {
      return by_plan.call(of_result, index, *rows, *order, dim_size, dim, batch_dims);
    }
    return ops::gather().call(of_result, index, dim, batch_dims, mode, ops::nothing(mode),
                              kReduceOp);
  }

  Tensor multiply(const Tensor& values) const;

  // How many entries name each row, with axes of length 1 to broadcast to `result`.
  Tensor counts(const Tensor& result) const {
    const Tensor ones = at::ones_like(index, index.options().dtype(at::kLong));
    return indexing::per_row(add(ones, batch_dims, std::nullopt), batch_dims, dim, result.dim());
  }

  // Not rounded to 16 bits.
  Tensor mean(const Tensor& values, std::optional<bool> deterministic) const {
    const Tensor sums = sum(values, deterministic);
    const Tensor divisors = counts(sums).clamp_min(1);
    if (at::isFloatingType(values.scalar_type()) || values.is_complex()) {
      return at::div(sums, divisors);
    }
    return at::div(sums, divisors, "floor");
  }

 private:
  template <class Op>
  Tensor add(const Op& op, const planned::Handle& by_plan, const Tensor& values, int64_t axis,
             std::optional<bool> deterministic) const {
    if (rows) return by_plan.call(values, index, *rows, *order, dim_size, axis, batch_dims);
    return op.call(values, index, dim_size, axis, batch_dims, deterministic, mode, kReduceOp);
  }
};

// ---- The internal ops of scatter ----------------------------------------------------------------

// The axis of the result, counted from the front.
int64_t axis_of(const Tensor& values, const Tensor& index, Dim dim, int64_t batch_dims) {
  return resolve_result_dim(kReduceOp, values.dim(), index.dim(), dim, batch_dims);
}

// Checks a call, and returns the result, of `dtype`, that reduce(on, rows, errors...) writes.
template <class On, class Reduce>
Tensor compute(const Tensor& values, const Tensor& index, const c10::SymInt& dim_size, Dim dim,
               int64_t batch_dims, std::string_view mode, const Part& rows, const Part& order,
               ops::Name name, at::ScalarType dtype, Reduce&& reduce) {
  std::optional<Plan> plan;
  if (rows) {
    plan = {*rows, order.value()};
    indexing::check_plan(kReduceOp, "values", values, index, plan->rows, plan->order);
  }
  check_ordered(kReduceOp, values);
  const indexing::Axes axes =
      indexing::check_scatter(kReduceOp, values, index, dim_size, dim, batch_dims);
  const SumCall call{axes, indexing::parse_mode(kReduceOp, mode),
                     indexing::name_of(kReduceOp, name)};
  return reduce_rows<On>(call, values, index, dim_size, plan, dtype, reduce);
}

void check_unmapped(const Tensor& index, const Part& part) {
  if (part) planned::check_not_mapped(kReduceOp, index, *part);
}
template <class Other>
void check_unmapped(const Tensor&, const Other&) {}

// The batching rule of these ops. `rest` may contain the parts of a plan.
template <class Op>
struct Reduction {
  template <class... Rest>
  static Tensor batch(const Tensor& values, const Tensor& index, const c10::SymInt& dim_size,
                      Dim dim, int64_t batch_dims, const Rest&... rest) {
    (check_unmapped(index, rest), ...);
    return batch_scatter(kReduceOp, values, index, dim, batch_dims,
                         [&](const Tensor& v, const Tensor& i, Dim axis, int64_t batches) {
                           return op_of<Op>().call(v, i, dim_size, axis, batches, rest...);
                         });
  }
};

// The position of the largest or the smallest value.
struct ScatterArg : Reduction<ScatterArg>, autograd::WithoutDerivative<ScatterArg> {
  static constexpr const char* kSchema =
      "_scatter_arg(Tensor values, Tensor index, SymInt dim_size, int? dim, int batch_dims, "
      "bool largest, str mode, Tensor? rows=None, Tensor? order=None, str? name=None) -> Tensor";

  template <class On>
  static Tensor kernel(const Tensor& values, const Tensor& index, c10::SymInt dim_size, Dim dim,
                       int64_t batch_dims, bool largest, std::string_view mode, const Part& rows,
                       const Part& order, ops::Name name) {
    return compute<On>(values, index, dim_size, dim, batch_dims, mode, rows, order, name, at::kLong,
                       [&](auto on, const RowsCall& call, const auto&... errors) {
                         return dispatch_ordered(values.scalar_type(), [&](auto zero) {
                           return kernels::scatter_arg(on, call.of<decltype(zero), int64_t>(),
                                                       largest, errors...);
                         });
                       });
  }
};

// The value at the position of the best one, which is where the gradient goes; and that position.
std::tuple<Tensor, Tensor> best_and_position(const Tensor& values, const Target& to, bool largest) {
  const int64_t axis = to.dim, picked = to.index.dim() - to.batch_dims;
  const Tensor rows =
      picked == 0 ? values.unsqueeze(axis) : values.flatten(axis, axis + picked - 1);
  const Tensor positions =
      op_of<ScatterArg>().call(values, to.index, to.dim_size, axis, to.batch_dims, largest, to.mode,
                               to.rows, to.order, to.name);
  return {ops::gather_elements().call(rows, positions, axis, "fill", 0, std::nullopt), positions};
}

Tensor best_by_position(const Tensor& values, const Target& to, bool largest) {
  return std::get<0>(best_and_position(values, to, largest));
}

// The best values themselves. If a gradient is needed, as in a graph that was traced without one,
// by position.
struct ScatterBest : Reduction<ScatterBest> {
  static constexpr const char* kSchema =
      "_scatter_best(Tensor values, Tensor index, SymInt dim_size, int? dim, int batch_dims, "
      "bool largest, str mode, Tensor? rows=None, Tensor? order=None, str? name=None) -> Tensor";

  template <class On>
  static Tensor kernel(const Tensor& values, const Tensor& index, c10::SymInt dim_size, Dim dim,
                       int64_t batch_dims, bool largest, std::string_view mode, const Part& rows,
                       const Part& order, ops::Name name) {
    return compute<On>(
        values, index, dim_size, dim, batch_dims, mode, rows, order, name, values.scalar_type(),
        [&](auto on, const RowsCall& call, const auto&... errors) {
          return dispatch_ordered(values.scalar_type(), [&](auto zero) {
            using Value = decltype(zero);
            return kernels::scatter_best(on, call.of<Value, Value>(), largest, errors...);
          });
        });
  }

  static Tensor derive(c10::DispatchKeySet keys, const Tensor& values, const Tensor& index,
                       const c10::SymInt& dim_size, Dim dim, int64_t batch_dims, bool largest,
                       std::string_view mode, const Part& rows, const Part& order, ops::Name name) {
    if (has_derivative(values)) {
      const int64_t axis =
          indexing::check_scatter(kReduceOp, values, index, dim_size, dim, batch_dims).dim;
      return best_by_position(values, {index, dim_size, axis, batch_dims, mode, rows, order, name},
                              largest);
    }
    return autograd::below_autograd(keys, op_of<ScatterBest>(), values, index, dim_size, dim,
                                    batch_dims, largest, mode, rows, order, name);
  }
};

// The product of the other values that go where a value goes: the factor of its gradient.
// Without a division by a value that is zero.
Tensor product_of_others(const Tensor& given, const Target& to) {
  const Tensor values = given.to(unrounded(given.scalar_type()));  // or a product may not fit
  const Tensor is_zero = at::eq(values, 0);
  const auto no_other_is_zero = [&] {
    const Tensor zeros = is_zero.to(at::kInt);
    return at::eq(to.gather(to.add(zeros, to.dim, std::nullopt)), zeros);
  };
  const Tensor nonzero = at::where(is_zero, 1, values);
  const Tensor others = to.gather(to.multiply(nonzero)) / nonzero;
  return at::where(no_other_is_zero(), others, 0).to(given.scalar_type());
}

struct ScatterProd : Reduction<ScatterProd> {
  static constexpr const char* kSchema =
      "_scatter_prod(Tensor values, Tensor index, SymInt dim_size, int? dim, int batch_dims, "
      "str mode, Tensor? rows=None, Tensor? order=None) -> Tensor";
  static constexpr const char* kNode = "ScatterProdBackward";

  template <class On>
  static Tensor kernel(const Tensor& values, const Tensor& index, c10::SymInt dim_size, Dim dim,
                       int64_t batch_dims, std::string_view mode, const Part& rows,
                       const Part& order) {
    return compute<On>(values, index, dim_size, dim, batch_dims, mode, rows, order, std::nullopt,
                       values.scalar_type(),
                       [&](auto on, const RowsCall& call, const auto&... errors) {
                         return dispatch_summed(values.scalar_type(), [&](auto zero) {
                           using Value = decltype(zero);
                           return kernels::scatter_prod(on, call.of<Value, Value>(), errors...);
                         });
                       });
  }

  static auto keep(const Tensor& values, const Tensor& index, const c10::SymInt& dim_size, Dim dim,
                   int64_t batch_dims, std::string_view mode, const Part& rows, const Part& order) {
    return std::tuple(values, index, rows, order, dim_size, axis_of(values, index, dim, batch_dims),
                      batch_dims, static_cast<int64_t>(indexing::parse_mode(kReduceOp, mode)));
  }

  static Tensor backward(const Tensor& grad_output, const Tensor& values, const Tensor& index,
                         const Part& rows, const Part& order, const c10::SymInt& dim_size,
                         int64_t dim, int64_t batch_dims, int64_t mode) {
    const Target to{index, dim_size, dim, batch_dims, indexing::mode_name(mode), rows, order};
    return to.gather(grad_output) * product_of_others(values, to);
  }

  static Tensor tangent(const Tensor& tangent, const Tensor& values, const Tensor& index,
                        const c10::SymInt& dim_size, Dim dim, int64_t batch_dims,
                        std::string_view mode, const Part& rows, const Part& order) {
    const Target to{index, dim_size, axis_of(values, index, dim, batch_dims), batch_dims, mode,
                    rows,  order};
    return to.add(tangent * product_of_others(autograd::primal(values), to), to.dim, std::nullopt);
  }
};

Tensor Target::multiply(const Tensor& values) const {
  return op_of<ScatterProd>().call(values, index, dim_size, dim, batch_dims, mode, rows, order);
}

// The divisor of a sum of squares.
Tensor degrees_of_freedom(const Tensor& sums, const Tensor& counts, double correction) {
  return (counts.to(sums.scalar_type()) - correction).clamp_min(0);
}

// The variance or, without a correction, the mean; of 16-bit floats in float32. A composition would
// save a tensor like values.
struct ScatterVar : Reduction<ScatterVar> {
  static constexpr const char* kSchema =
      "_scatter_var(Tensor values, Tensor index, SymInt dim_size, int? dim, int batch_dims, "
      "float? correction, bool? deterministic, str mode, Tensor? rows=None, Tensor? order=None) "
      "-> Tensor";
  static constexpr const char* kNode = "ScatterVarBackward";

  template <class On>
  static Tensor kernel(const Tensor& values, const Tensor& index, c10::SymInt dim_size, Dim dim,
                       int64_t batch_dims, std::optional<double> correction,
                       std::optional<bool> deterministic, std::string_view mode, const Part& rows,
                       const Part& order) {
    if constexpr (std::is_same_v<On, OnCpu>) {
      const Target to{index, dim_size, axis_of(values, index, dim, batch_dims), batch_dims, mode,
                      rows,  order};
      if (!correction) return to.mean(values, deterministic);
      // The mean that is made of a sum may be off by more than values are.
      const Tensor distances = to.gather(to.mean(values, deterministic)).sub_(values);
      distances.sub_(to.gather(to.mean(distances, deterministic)));
      const Tensor sums = to.add(distances.square_(), to.dim, deterministic);
      return sums / degrees_of_freedom(sums, to.counts(sums), *correction);
    } else {
      return compute<On>(values, index, dim_size, dim, batch_dims, mode, rows, order, std::nullopt,
                         unrounded(values.scalar_type()),
                         [&](auto on, const RowsCall& call, const auto&... errors) {
                           AT_DISPATCH_FLOATING_TYPES_AND2(
                               at::kHalf, at::kBFloat16, values.scalar_type(), kReduceOp, [&] {
                                 using Value = typename KernelTypeOf<scalar_t>::type;
                                 kernels::scatter_moment(
                                     on, call.of<Value, ComputeType<Value>>(),
                                     MomentRule{!correction, correction.value_or(0)}, errors...);
                               });
                         });
    }
  }

  static auto keep(const Tensor& values, const Tensor& index, const c10::SymInt& dim_size, Dim dim,
                   int64_t batch_dims, std::optional<double> correction, std::optional<bool>,
                   std::string_view mode, const Part& rows, const Part& order) {
    return std::tuple(values, index, rows, order, dim_size, axis_of(values, index, dim, batch_dims),
                      batch_dims, correction.value(),
                      static_cast<int64_t>(indexing::parse_mode(kReduceOp, mode)));
  }

  static Tensor backward(const Tensor& grad_output, const Tensor& values, const Tensor& index,
                         const Part& rows, const Part& order, const c10::SymInt& dim_size,
                         int64_t dim, int64_t batch_dims, double correction, int64_t mode) {
    const Target to{index, dim_size, dim, batch_dims, indexing::mode_name(mode), rows, order};
    const Tensor scale =
        -2 * grad_output / degrees_of_freedom(grad_output, to.counts(grad_output), correction);
    return (to.gather(scale) * to_mean(values, to)).to(values.scalar_type());
  }

  static Tensor tangent(const Tensor& tangent, const Tensor& values, const Tensor& index,
                        const c10::SymInt& dim_size, Dim dim, int64_t batch_dims,
                        std::optional<double> correction, std::optional<bool> deterministic,
                        std::string_view mode, const Part& rows, const Part& order) {
    const Target to{index, dim_size, axis_of(values, index, dim, batch_dims), batch_dims, mode,
                    rows,  order};
    const Tensor sums =
        to.add(tangent * to_mean(autograd::primal(values), to), to.dim, deterministic);
    return -2 * sums / degrees_of_freedom(sums, to.counts(sums), correction.value());
  }

 private:
  // From the values to their mean.
  static Tensor to_mean(const Tensor& values, const Target& to) {
    if (values.is_cuda() && !has_derivative(values)) {
      const Tensor means = op_of<ScatterVar>().call(values, to.index, to.dim_size, to.dim,
                                                    to.batch_dims, /*correction=*/std::nullopt,
                                                    std::nullopt, to.mode, to.rows, to.order);
      return to.gather(means) - values;
    }
    const Tensor distances = to.gather(to.mean(values, std::nullopt)) - values;
    return distances - to.gather(to.mean(distances, std::nullopt));
  }
};

// ---- scatter: a composition ---------------------------------------------------------------------

Tensor best(const Tensor& values, const Target& to, bool largest) {
  if (needs_values_alone(values)) {
    return op_of<ScatterBest>().call(values, to.index, to.dim_size, to.dim, to.batch_dims, largest,
                                     to.mode, to.rows, to.order, to.name);
  }
  return best_by_position(values, to, largest);
}

// Without a gradient at zero, where that of a square root is infinite.
Tensor root(const Tensor& variance) {
  const Tensor zero = at::eq(variance, 0);
  return at::where(zero, variance, variance.masked_fill(zero, 1).sqrt());
}

// Is there a true value? Traced bools are converted: Inductor cannot view them as bytes.
Tensor any(const Tensor& values, const Target& to) {
  const bool viewed = needs_values_alone(values) && !values.key_set().has(c10::DispatchKey::Python);
  const Tensor bytes = viewed ? values.view(at::kByte) : values.to(at::kByte);
  return best(bytes, to, /*largest=*/true).to(at::kBool);
}

Tensor reduce(const Tensor& given, const Target& to, std::string_view name,
              std::optional<bool> deterministic, double correction,
              std::optional<at::ScalarType> wanted) {
  const std::string_view reduce = canonical_reduction(kReduceOp, name);
  check_dense(kReduceOp, "values", given);
  check_dense(kReduceOp, "index", to.index);
  // Values are converted first; where sums are made in float32 anyway, that needs no copy.
  const at::ScalarType from = given.scalar_type(), dtype = wanted.value_or(from);
  const bool varies = reduce == "var" || reduce == "std";
  const bool summed = reduce == "sum" || reduce == "mean" || varies;
  const bool widens = summed && at::isReducedFloatingType(from) && dtype == at::kFloat;
  const Tensor values = widens ? given : given.to(dtype);
  if (reduce == "sum") {
    return widens ? to.sum(values, deterministic) : to.add(values, to.dim, deterministic);
  }
  if (reduce == "mean") {
    check_averaged(kReduceOp, values);
    return to.mean(values, deterministic).to(dtype);
  }
  if (varies) {
    check_floating(kReduceOp, "values", values);
    const Tensor variance =
        op_of<ScatterVar>().call(values, to.index, to.dim_size, to.dim, to.batch_dims, correction,
                                 deterministic, to.mode, to.rows, to.order);
    return (reduce == "std" ? root(variance) : variance).to(dtype);
  }
  if (reduce == "any" || reduce == "all") {
    TORCH_CHECK_TYPE(values.scalar_type() == at::kBool, kReduceOp,
                     R"(: values must be bool for reduce=")", reduce, R"(", but it is )",
                     dtype_name(values.scalar_type()), ".");
    return reduce == "any" ? any(values, to) : any(values.logical_not(), to).logical_not();
  }
  if (reduce == "prod") return to.multiply(values);
  return best(values, to, reduce == "amax");
}

struct Scatter {
  static constexpr const char* kSchema =
      "scatter(Tensor values, Tensor index, SymInt dim_size, int? dim=None, *, int batch_dims=0, "
      "str reduce='sum', str mode='raise', bool? deterministic=None, float correction=1, "
      "ScalarType? dtype=None) -> Tensor";

  static Tensor compose(const Tensor& values, const Tensor& index, c10::SymInt dim_size, Dim dim,
                        int64_t batch_dims, std::string_view reduction, std::string_view mode,
                        std::optional<bool> deterministic, double correction,
                        std::optional<at::ScalarType> dtype) {
    const int64_t axis =
        indexing::check_scatter(kReduceOp, values, index, dim_size, dim, batch_dims).dim;
    return reduce(values, {index, dim_size, axis, batch_dims, mode}, reduction, deterministic,
                  correction, dtype);
  }
};

struct ScatterByPlan {
  static constexpr const char* kSchema =
      "scatter.plan(Tensor values, Tensor index, Tensor rows, Tensor order, SymInt dim_size, "
      "int dim, int batch_dims, str reduce='sum', float correction=1, ScalarType? dtype=None) "
      "-> Tensor";

  // First the checks of arguments that the ops below would make in names of their own.
  static Tensor compose(const Tensor& values, const Tensor& index, const Tensor& rows,
                        const Tensor& order, c10::SymInt dim_size, int64_t dim, int64_t batch_dims,
                        std::string_view reduction, double correction,
                        std::optional<at::ScalarType> dtype) {
    planned::check_not_mapped(kReduceOp, index, rows, order);
    indexing::check_plan(kReduceOp, "values", values, index, rows, order);
    const int64_t axis =
        indexing::check_scatter(kReduceOp, values, index, dim_size, dim, batch_dims).dim;
    const std::string_view known = canonical_reduction(kReduceOp, reduction);
    if (!dtype && (known == "sum" || known == "mean")) check_summable(kReduceOp, values);
    return reduce(values, {index, dim_size, axis, batch_dims, "raise", rows, order}, known,
                  /*deterministic=*/true, correction, dtype);
  }
};

// The extremes and their positions.
struct ScatterWithArg {
  static constexpr const char* kSchema =
      "_scatter_with_arg(Tensor values, Tensor index, SymInt dim_size, int? dim=None, *, "
      "int batch_dims=0, str reduce='amax', str mode='raise', Tensor? rows=None, "
      "Tensor? order=None) -> (Tensor, Tensor)";

  static std::tuple<Tensor, Tensor> compose(const Tensor& values, const Tensor& index,
                                            c10::SymInt dim_size, Dim dim, int64_t batch_dims,
                                            std::string_view reduction, std::string_view mode,
                                            const Part& rows, const Part& order) {
    const int64_t axis =
        indexing::check_scatter(kReduceOp, values, index, dim_size, dim, batch_dims).dim;
    const std::string_view reduce = canonical_reduction(kReduceOp, reduction);
    TORCH_CHECK_VALUE(reduce == "amax" || reduce == "amin", kReduceOp,
                      R"(: return_arg is for reduce="amax" and "amin", but reduce is ")", reduction,
                      R"(".)");
    return best_and_position(values, {index, dim_size, axis, batch_dims, mode, rows, order},
                             reduce == "amax");
  }
};

}  // namespace

TORCH_LIBRARY_FRAGMENT(torch_ops, m) {
  register_op<ScatterArg>(m);
  register_op<ScatterBest>(m);
  register_op<ScatterProd>(m);
  register_op<ScatterVar>(m);
  register_op<Scatter>(m);
  register_op<ScatterByPlan>(m);
  register_op<ScatterWithArg>(m);
}

}  // namespace torch_ops
