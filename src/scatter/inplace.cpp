// The contracts of scatter_add_, which adds to an existing tensor, and of scatter_, a
// composition. The mode of scatter_add_ is for index_add, which reads entries from the end.
#include <ATen/Context.h>
#include <ATen/Dispatch.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/div.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/where.h>

#include <algorithm>

#include "common/gather_family/gather_ops.h"
#include "common/gather_family/index_mode_args.h"
#include "common/gather_family/indexing.h"
#include "common/torch/registration/batching.h"
#include "common/torch/registration/derive.h"
#include "common/torch/registration/inplace.h"
#include "scatter/scatter.h"
#include "scatter/scatter_ops.h"

namespace torch_ops {
namespace {

using at::Tensor;
using autograd::variable_list;
using ops::Dim;
using ops::Name;

constexpr const char* kInplaceOp = "scatter_add_";

// What torch.vmap cannot do.
constexpr const char* kSharedOut =
    ": torch.vmap cannot map over values or index where out is one for all samples. Give "
    "it a copy of out for each sample: values.new_empty(out.shape).copy_(out) if values is mapped, "
    "and otherwise index.new_empty(out.shape, dtype=out.dtype).copy_(out).";

// The summands for `out`, as a separate tensor.
Tensor sums_for(const char* op, const Tensor& out, const Tensor& values, const Tensor& index,
                int64_t dim, int64_t batch_dims, std::string_view mode) {
  return ops::scatter_add().call(values, index, out.sym_size(dim), dim, batch_dims, std::nullopt,
                                 mode, op);
}

SumCall check(const Tensor& out, const Tensor& values, const Tensor& index, Dim dim,
              int64_t batch_dims, std::string_view mode, Name name) {
  const char* const op = indexing::name_of(kInplaceOp, name);
  const IndexMode parsed = indexing::parse_mode(op, mode);
  check_summable(op, values);
  check_same_type(op, "out", out, "values", values);
  check_one_device(op, "out", out, "values", values);
  const int64_t axis =
      indexing::resolve_axes(op, "out", out.dim(), index.dim(), dim, batch_dims).dim;
  const indexing::Axes axes =
      indexing::check_scatter(op, values, index, out.sym_size(axis), axis, batch_dims);
  const auto sizes = indexing::scatter_sizes(values, index, out.sym_size(axis), axes);
  TORCH_CHECK_VALUE(sizes.size() == static_cast<size_t>(out.dim()), op, ": out with shape ",
                    out.sym_sizes(), " must have the axes of the sums, whose shape is ",
                    c10::SymIntArrayRef(sizes), " for values with shape ", values.sym_sizes(),
                    " and index with shape ", index.sym_sizes(), ".");
  indexing::check_axes_match(op, "out", out.sym_sizes(), 0, "the sums", sizes, 0, out.dim(),
                             "values and index must fit out");
  return {axes, parsed, op};
}

// Can values be added in place? Not if running sums would be rounded, or added
// in any order, and must not.
bool adds_to_out(const Tensor& out) {
  const at::ScalarType real = c10::toRealValueType(out.scalar_type());
  if (out.is_cpu()) return true;  // 16-bit floats are rounded when all is added
  return sum_type(real) == as_dispatched(real) && !at::globalContext().deterministicAlgorithms();
}

// `out` or, if its elements have gaps or do not begin where CUDA may add vectors, a copy.
Tensor dense(const Tensor& out) {
  const uintptr_t alignment = out.is_cpu() ? out.element_size() : 16;
  const auto address = reinterpret_cast<uintptr_t>(out.const_data_ptr());
  return out.is_contiguous() && address % alignment == 0 ? out
                                                         : out.clone(at::MemoryFormat::Contiguous);
}

// Calls write(on, rows, errors...), which changes the result of `rows`: `out`, or a copy of it.
template <class On, class Write>
void write_in_place(Tensor& out, const Tensor& values, const Tensor& index, const SumCall& call,
                    Write&& write) {
  const Tensor to = dense(out);
  // Otherwise what has been written may be read.
  const auto apart = [&](const Tensor& read) {
    const bool overlaps = at::get_overlap_status(out, read) != at::MemOverlapStatus::No &&
                          out.storage().is_alias_of(read.storage());
    return overlaps ? read.clone() : read;
  };
  call_rows<On>(call, apart(values), apart(index), to, std::nullopt, write);
  if (!to.is_same(out)) out.copy_(to);
}

struct ScatterAddInplace {
  static constexpr const char* kSchema =
      "scatter_add_(Tensor(a!) out, Tensor values, Tensor index, int? dim=None, *, "
      "int batch_dims=0, str mode='raise', str? name=None) -> Tensor(a!)";
  static constexpr const char* kNode = "ScatterAddInplaceBackward";

  template <class On>
  static Tensor& kernel(Tensor& out, const Tensor& values, const Tensor& index, Dim dim,
                        int64_t batch_dims, std::string_view mode, Name name) {
    const SumCall call = check(out, values, index, dim, batch_dims, mode, name);
    if constexpr (!std::is_same_v<On, OnMeta>) add<On>(out, values, index, batch_dims, mode, call);
    return out;
  }

  static auto keep(const Tensor& out, const Tensor& index, Dim dim, int64_t batch_dims,
                   std::string_view mode) {
    return std::tuple(index, axis_of(out.dim(), index.dim(), dim, batch_dims), batch_dims,
                      indexing::mode_of_gradient(kInplaceOp, mode));
  }

  static variable_list backward(autograd::Needed needed, const Tensor& grad_output,
                                const Tensor& index, int64_t dim, int64_t batch_dims,
                                int64_t mode) {
    variable_list grads(2);
    if (needed[0]) grads[0] = grad_output;
    if (needed[1]) {
      grads[1] = ops::gather_back(grad_output, index, dim, batch_dims, indexing::mode_name(mode));
    }
    return grads;
  }

  static Tensor& derive(c10::DispatchKeySet keys, Tensor& out, const Tensor& values,
                        const Tensor& index, Dim dim, int64_t batch_dims, std::string_view mode,
                        Name name) {
    torch::autograd::check_inplace(out, torch::autograd::compute_requires_grad(out, values));
    const auto node = autograd::make_node<autograd::Node<ScatterAddInplace>>(out, values);
    autograd::below_autograd(keys, ops::scatter_add_(), out, values, index, dim, batch_dims, mode,
                             name);
    if (node) {
      torch::autograd::rebase_history(out, node);
      node->keep(out, index, dim, batch_dims, mode);
    }
    if (torch::autograd::isFwGradDefined(values)) {
      const Tensor added =
          sums_for(indexing::name_of(kInplaceOp, name), out, values._fw_grad(/*level=*/0), index,
                   axis_of(out.dim(), index.dim(), dim, batch_dims), batch_dims, mode);
      const bool had_one = torch::autograd::isFwGradDefined(out);
      // In place, so that the tangents of views of `out` change too.
      const Tensor tangent = had_one ? out._fw_grad(/*level=*/0).add_(added) : added;
      out._set_fw_grad(tangent, /*level=*/0, /*is_inplace_op=*/true);
    }
    return out;
  }

  static Tensor& functionalize(Tensor& out, const Tensor& values, const Tensor& index, Dim dim,
                               int64_t batch_dims, std::string_view mode, Name name) {
    return inplace::functionalize_call(
        [&](Tensor& to, const Tensor& from, const Tensor& picks) {
          ops::scatter_add_().call(to, from, picks, dim, batch_dims, mode, name);
        },
        [&](const Tensor& before, const Tensor& from, const Tensor& picks) {
          const SumCall call = check(before, from, picks, dim, batch_dims, mode, name);
          return sum_of(before,
                        sums_for(call.op, before, from, picks, call.axes.dim, batch_dims, mode));
        },
        out, values, index);
  }

  // As for scatter_add. Samples that add to one `out` in turn are no batch.
  static Tensor& batch(Tensor& out, const Tensor& values, const Tensor& index, Dim dim,
                       int64_t batch_dims, std::string_view mode, Name name) {
    using batching::Batched;
    batching::apply(
        [&](const Batched& sums, const Batched& rows, const Batched& picks) -> Batched {
          TORCH_CHECK(sums.axis || !(rows.axis || picks.axis), indexing::name_of(kInplaceOp, name),
                      kSharedOut);
          Tensor to = sums.value;
          if (!sums.axis) {
            ops::scatter_add_().call(to, rows.value, picks.value, dim, batch_dims, mode, name);
            return sums;
          }
          const int64_t axis = axis_of(sums.rank(), picks.rank(), dim, batch_dims);
          // An axis hidden in the index too is a batch axis, and otherwise an outer one.
          const int64_t place = picks.axis ? 0 : batch_dims;
          to = sums.at(place);
          ops::scatter_add_().call(to, rows.expanded_at(place, sums.size()),
                                   picks.axis ? picks.at(0) : picks.value, axis + 1,
                                   batch_dims + (picks.axis ? 1 : 0), mode, name);
          return sums;
        },
        out, values, index);
    return out;
  }

 private:
  static int64_t axis_of(int64_t rank, int64_t index_rank, Dim dim, int64_t batch_dims) {
    return indexing::resolve_axes(kInplaceOp, "out", rank, index_rank, dim, batch_dims).dim;
  }

  template <class On>
  static void add(Tensor& out, const Tensor& values, const Tensor& index, int64_t batch_dims,
                  std::string_view mode, const SumCall& call) {
    check_no_overlap(call.op, "out", out);
    if (!adds_to_out(out)) {
      const Tensor sums = sums_for(call.op, out, values, index, call.axes.dim, batch_dims, mode);
      as_bits(out).add_(as_bits(sums));
      return;
    }
    write_in_place<On>(
        out, values, index, call, [&](auto on, const RowsCall& rows, const auto&... errors) {
          return dispatch_summed(c10::toRealValueType(out.scalar_type()), [&](auto zero) {
            using Value = decltype(zero);
            using Result = std::conditional_t<std::is_same_v<On, OnCpu>, Value, SumOf<Value>>;
            return kernels::scatter_add_to<Value>(on, rows.of<Value, Result>(), errors...);
          });
        });
  }
};

// The reduction of values alone.
Tensor reduced_alone(const Tensor& out, const Tensor& values, const Tensor& index, int64_t axis,
                     int64_t batch_dims, std::string_view reduce,
                     std::optional<at::ScalarType> dtype = std::nullopt) {
  return ops::scatter().call(values, index, out.sym_size(axis), axis, batch_dims, reduce, "raise",
                             std::nullopt, /*correction=*/1, dtype);
}

// The reduction of values and, with include_self, of `out`: of tensors of any kind.
Tensor reduced(const Tensor& out, const Tensor& values, const Tensor& index, int64_t axis,
               int64_t batch_dims, std::string_view reduce, bool include_self) {
  if (reduce == "prod" && include_self) {
    const Tensor result = reduced_alone(out, values, index, axis, batch_dims, reduce);
    // The factor of the gradient of `result` must not be overwritten.
    return (needs_values_alone(result) ? out : out.clone()) * result;
  }
  // First, so that errors of entries are in this op's name.
  const Tensor ones = at::ones_like(index, index.options().dtype(at::kLong));
  Tensor counts = ops::scatter_add().call(ones, index, out.sym_size(axis), batch_dims, batch_dims,
                                          std::nullopt, "raise", "scatter_");
  counts = indexing::per_row(counts, batch_dims, axis, out.dim());
  const bool is_mean = reduce == "mean";
  const Tensor result =
      reduced_alone(out, values, index, axis, batch_dims, is_mean ? "sum" : reduce,
                    is_mean ? std::optional(unrounded(values.scalar_type())) : std::nullopt);
  Tensor taken = counts > 0, given = result;
  if (is_mean) {
    const Tensor total = include_self ? out + result : result;
    const Tensor divisors = include_self ? counts + 1 : counts.clamp_min(1);
    given = at::isIntegralType(out.scalar_type(), /*includeBool=*/false)
                ? at::div(total, divisors, "floor")
                : at::div(total, divisors);
  } else if (include_self) {  // of equal values and NaNs, that of `out`; a NaN is better
    const Tensor better = reduce == "amax" ? result > out : result < out;
    taken = taken & (better | (result.isnan() & out.isnan().logical_not()));
  }
  const at::ScalarType dtype = out.scalar_type();
  return from_bits(at::where(taken, as_bits(given.to(dtype)), as_bits(out)), dtype);
}

IntoRule into_rule(std::string_view reduce) {
  return reduce == "sum"    ? IntoRule::kSum
         : reduce == "mean" ? IntoRule::kMean
         : reduce == "prod" ? IntoRule::kProduct
         : reduce == "amax" ? IntoRule::kLargest
                            : IntoRule::kSmallest;
}

// The same in place, if nobody needs a derivative: then only the rows that are named are touched.
struct ScatterInto {
  static constexpr const char* kSchema =
      "_scatter_into_(Tensor(a!) out, Tensor values, Tensor index, int dim, int batch_dims, "
      "str reduce, bool include_self) -> Tensor(a!)";

  // Has the kernel this reduction?
  static bool applies(const Tensor& out, const Tensor& values, std::string_view reduce) {
    if (!needs_values_alone(out) || !needs_values_alone(values)) return false;
    if (out.key_set().has(c10::DispatchKey::Python)) return false;  // a DTensor, which has no rule
    const at::ScalarType dtype = out.scalar_type();
    if (dtype == at::kFloat || dtype == at::kDouble || at::isReducedFloatingType(dtype)) {
      return true;
    }
    return at::isIntegralType(dtype, /*includeBool=*/false) &&
           !at::isBarebonesUnsignedType(dtype) && reduce != "sum" && reduce != "mean";
  }

  template <class On>
  static Tensor& kernel(Tensor& out, const Tensor& values, const Tensor& index, int64_t dim,
                        int64_t batch_dims, std::string_view reduce, bool include_self) {
    if constexpr (!std::is_same_v<On, OnMeta>) {
      check_no_overlap("scatter_", "out", out);
      if (is_made_first(out, values, dim, reduce)) {
        if (reduce == "prod" && include_self) {
          return out.mul_(reduced_alone(out, values, index, dim, batch_dims, reduce));
        }
        out.copy_(reduced(out, values, index, dim, batch_dims, reduce, include_self));
        return out;
      }
      const SumCall call{{dim, batch_dims}, IndexMode::kRaise, "scatter_"};
      write_in_place<On>(
          out, values, index, call, [&](auto on, const RowsCall& rows, const auto&... errors) {
            return dispatch_ordered(out.scalar_type(), [&](auto zero) {
              using Value = decltype(zero);
              return kernels::scatter_into(on, rows.of<Value, Value>(), into_rule(reduce),
                                           include_self, errors...);
            });
          });
    }
    return out;
  }

  static Tensor& functionalize(Tensor& out, const Tensor& values, const Tensor& index, int64_t dim,
                               int64_t batch_dims, std::string_view reduce, bool include_self) {
    return inplace::functionalize_call(
        [&](Tensor& to, const Tensor& from, const Tensor& picks) {
          op_of<ScatterInto>().call(to, from, picks, dim, batch_dims, reduce, include_self);
        },
        [&](const Tensor& before, const Tensor& from, const Tensor& picks) {
          return reduced(before, from, picks, dim, batch_dims, reduce, include_self);
        },
        out, values, index);
  }

 private:
  // Is the result made first, and copied? On the CPU for sums of many short rows of 16-bit floats,
  // which take longer one by one than by the ways of scatter_add. On CUDA for all that there is no
  // kernel for, and where rows are empty: the kernels would not check their entries.
  static bool is_made_first(const Tensor& out, const Tensor& values, int64_t dim,
                            std::string_view reduce) {
    if (!out.is_cpu()) return (reduce != "amax" && reduce != "amin") || out.numel() == 0;
    const int64_t columns = c10::multiply_integers(out.sizes().slice(dim + 1));
    const int64_t many = columns == 1 ? out.numel() / 4 : out.numel() * 2;
    return at::isReducedFloatingType(out.scalar_type()) && (reduce == "sum" || reduce == "mean") &&
           columns < 8 && values.numel() > std::max<int64_t>(many, 4096);
  }
};

// A sum with `out` is added in place; other results are made first, if they must be.
struct ScatterInplace {
  static constexpr const char* kSchema =
      "scatter_(Tensor(a!) out, Tensor values, Tensor index, int? dim=None, *, int batch_dims=0, "
      "str reduce='sum', bool include_self=True) -> Tensor(a!)";
  static constexpr const char* kName = "scatter_";

  static Tensor& compose(Tensor& out, const Tensor& values, const Tensor& index, Dim dim,
                         int64_t batch_dims, std::string_view reduction, bool include_self) {
    const std::string_view reduce = canonical_reduction(kName, reduction, /*five_only=*/true);
    check_dense(kName, "out", out);
    check_dense(kName, "values", values);
    check_dense(kName, "index", index);
    if (reduce == "mean") {
      check_averaged(kName, values);
    } else if (reduce != "sum") {
      check_ordered(kName, values);
    }
    const int64_t axis = check(out, values, index, dim, batch_dims, "raise", kName).axes.dim;
    if (reduce == "sum" && include_self) {
      return ops::scatter_add_().call(out, values, index, axis, batch_dims, "raise", kName);
    }
    if (ScatterInto::applies(out, values, reduce)) {
      return op_of<ScatterInto>().call(out, values, index, axis, batch_dims, reduce, include_self);
    }
    const Tensor result = reduced(out, values, index, axis, batch_dims, reduce, include_self);
    if (const auto layer = at::functorch::maybeCurrentDynamicLayer()) {
      const int64_t level = layer->layerId();
      TORCH_CHECK(at::functorch::isBatchedAtLevel(out, level) ||
                      !at::functorch::isBatchedAtLevel(result, level),
                  kName, kSharedOut);
    }
    out.copy_(result);
    return out;
  }
};

}  // namespace

TORCH_LIBRARY_FRAGMENT(torch_ops, m) {
  register_op<ScatterAddInplace>(m);
  register_op<ScatterInto>(m);
  register_op<ScatterInplace>(m);
}

}  // namespace torch_ops
