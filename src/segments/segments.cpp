// The contract of segment_reduce and gather_csr, and of scatters by an index in order: schemas,
// checks, allocation, derivatives, binding.
#include <ATen/Dispatch.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/diff.h>
#include <ATen/ops/div.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/view_as_complex.h>
#include <ATen/ops/view_as_real.h>
#include <ATen/ops/where.h>
#include <torch/csrc/utils/pybind.h>

#include "common/gather_family/gather_ops.h"
#include "common/gather_family/indexing.h"
#include "common/torch/calls/checks.h"
#include "common/torch/calls/new_output.h"
#include "common/torch/calls/python_call.h"
#include "common/torch/registration/derive.h"
#include "scatter/batching.h"
#include "scatter/scatter.h"
#include "scatter/scatter_ops.h"
#include "segments/segments.h"
#include "segments/segments_launch.h"

namespace torch_ops {
namespace {

using at::Tensor;
using ops::Dim;
using ops::Name;

constexpr const char* kReduce = "segment_reduce";
constexpr const char* kGather = "gather_csr";

// ---- Calls of the kernel library ----------------------------------------------------------------

// The result, of `dtype`, of the segments of contiguous, real values.
template <class On, class Reduce>
Tensor reduce(const Tensor& values, const Tensor& offsets, int64_t dim, int64_t batch_dims,
              at::ScalarType dtype, Reduce&& reduce) {
  check_segments(kReduce, values, offsets, dim, batch_dims);
  c10::SymDimVector sizes(values.sym_sizes().begin(), values.sym_sizes().end());
  sizes[dim] = offsets.sym_size(-1) - 1;
  const auto options = values.options().dtype(dtype);
  if constexpr (std::is_same_v<On, OnMeta>) {
    return at::empty_symint(sizes, options);
  } else {
    const bool complex = values.is_complex();
    const Tensor rows = (complex ? at::view_as_real(values) : values).contiguous();
    auto known = C10_AS_INTARRAYREF_SLOW(sizes).vec();
    if (complex) known.push_back(2);
    Tensor marks = offsets;
    RowLayout layout = indexing::lay_out_contiguous(known, marks, {dim, batch_dims});
    layout.entries = rows.size(dim);
    const Tensor result = new_output(known, complex ? rows.options() : options);
    call_indexed<On>(kReduce, marks, offsets_layout(layout), IndexMode::kRaise, result,
                     [&](auto on, const auto&... errors) {
                       const auto call = [&](auto value, auto to) {
                         using Value = decltype(value);
                         using Result = decltype(to);
                         return SegmentCall<Value, Result>{
                             static_cast<const Value*>(rows.const_data_ptr()), index_array(marks),
                             layout, static_cast<Result*>(result.mutable_data_ptr())};
                       };
                       return reduce(on, rows.scalar_type(), call, errors...);
                     });
    return complex ? at::view_as_complex(result) : result;
  }
}

// The same by a rule for all dtypes that are summed; of integers there is no mean.
template <SegmentRule kRule, class On>
Tensor join(const Tensor& values, const Tensor& offsets, int64_t dim, int64_t batch_dims) {
  return reduce<On>(values, offsets, dim, batch_dims, values.scalar_type(),
                    [&](auto on, at::ScalarType real, const auto& call, const auto&... errors) {
                      return dispatch_summed(real, [&](auto zero) {
                        constexpr bool kIsSum =
                            kRule == SegmentRule::kMean && std::is_integral_v<decltype(zero)>;
                        return kernels::reduce_segments<kIsSum ? SegmentRule::kSum : kRule>(
                            on, call(zero, zero), errors...);
                      });
                    });
}

// Numbers of an op that writes one for each of `sizes`, of what the index or the offsets say.
template <class On, class Find>
Tensor number(const char* op, const Tensor& given, c10::SymIntArrayRef sizes, at::ScalarType dtype,
              int64_t batch_dims, const c10::SymInt& entries, const c10::SymInt& axis_size,
              bool of_offsets, Find&& find) {
  const auto options = given.options().dtype(dtype);
  if constexpr (std::is_same_v<On, OnMeta>) {
    return at::empty_symint(sizes, options);
  } else {
    Tensor marks = given;
    RowLayout layout{};
    indexing::lay_out_index(marks, {batch_dims, batch_dims}, layout);
    layout.batch = indexing::joint_size(given, 0, batch_dims);
    layout.outer = layout.inner = 1;
    layout.axis_size = axis_size.expect_int();
    layout.entries = entries.expect_int();
    const Tensor result = new_output(C10_AS_INTARRAYREF_SLOW(sizes), options);
    call_indexed<On>(op, marks, of_offsets ? offsets_layout(layout) : layout, IndexMode::kRaise,
                     result, [&](auto on, const auto&... errors) {
                       const auto write = [&](auto zero) {
                         return find(on, index_array(marks), layout,
                                     static_cast<decltype(zero)*>(result.mutable_data_ptr()),
                                     errors...);
                       };
                       return dtype == at::kInt ? write(int32_t()) : write(int64_t());
                     });
    return result;
  }
}

// Which segment each of `count` entries of a batch belongs to; the number of segments for none.
struct SegmentIds {
  static constexpr const char* kSchema =
      "_segment_ids(Tensor offsets, SymInt count, str? name=None) -> Tensor";

  template <class On>
  static Tensor kernel(const Tensor& offsets, c10::SymInt count, Name name) {
    const char* const op = indexing::name_of(kGather, name);
    const c10::SymInt segments = offsets.sym_size(-1) - 1;
    c10::SymDimVector sizes(offsets.sym_sizes().begin(), offsets.sym_sizes().end());
    sizes.back() = count;
    return number<On>(
        op, offsets, sizes, indexing::number_type(segments), offsets.dim() - 1, count, segments,
        /*of_offsets=*/true, [](const auto&... all) { return kernels::find_segments(all...); });
  }

  static Tensor batch(const Tensor& offsets, const c10::SymInt& count, Name name) {
    using batching::Batched;
    return batching::apply(
        [&](const Batched& marks) -> Batched {
          return {op_of<SegmentIds>().call(marks.axis ? marks.at(0) : marks.value, count, name),
                  marks.axis ? std::optional<int64_t>(0) : std::nullopt};
        },
        offsets);
  }
};

// The offsets of the rows that an index in order names.
struct SortedOffsets {
  static constexpr const char* kSchema =
      "_sorted_offsets(Tensor index, SymInt dim_size, int batch_dims, str? name=None) -> Tensor";

  template <class On>
  static Tensor kernel(const Tensor& index, c10::SymInt dim_size, int64_t batch_dims, Name name) {
    const char* const op = indexing::name_of("scatter", name);
    const auto from = index.sym_sizes();
    c10::SymDimVector sizes(from.begin(), from.begin() + batch_dims);
    const c10::SymInt entries = c10::multiply_integers(from.slice(batch_dims));
    sizes.push_back(dim_size + 1);
    return number<On>(
        op, index, sizes, indexing::number_type(entries), batch_dims, entries, dim_size,
        /*of_offsets=*/false, [](const auto&... all) { return kernels::find_offsets(all...); });
  }

  static Tensor batch(const Tensor& index, const c10::SymInt& dim_size, int64_t batch_dims,
                      Name name) {
    using batching::Batched;
    return batching::apply(
        [&](const Batched& picks) -> Batched {
          const auto& op = op_of<SortedOffsets>();
          if (!picks.axis) return {op.call(picks.value, dim_size, batch_dims, name), std::nullopt};
          return {op.call(picks.at(0), dim_size, batch_dims + 1, name), 0};
        },
        index);
  }
};

// ---- gather_csr ---------------------------------------------------------------------------------

struct GatherCsr {
  static constexpr const char* kSchema =
      "gather_csr(Tensor values, Tensor offsets, int? dim=None, *, int batch_dims=0, "
      "SymInt output_size) -> Tensor";
  static constexpr const char* kNode = "GatherCsrBackward";

  template <class On>
  static Tensor kernel(const Tensor& values, const Tensor& offsets, Dim dim, int64_t batch_dims,
                       c10::SymInt output_size) {
    const int64_t axis = check_segments(kGather, values, offsets, dim, batch_dims).dim;
    TORCH_CHECK_VALUE(
        values.sym_size(axis).sym_eq(offsets.sym_size(-1) - 1).expect_true(__FILE__, __LINE__),
        kGather, ": offsets must have one element more than values have rows, but axis ", axis,
        " of values with shape ", values.sym_sizes(), " has ", values.sym_size(axis),
        " and the shape of offsets is ", offsets.sym_sizes(), ".");
    TORCH_CHECK_VALUE(output_size.sym_ge(0).expect_true(__FILE__, __LINE__), kGather,
                      ": output_size must not be negative, but it is ", output_size, ".");
    if constexpr (std::is_same_v<On, OnMeta>) {
      c10::SymDimVector sizes(values.sym_sizes().begin(), values.sym_sizes().end());
      sizes[axis] = output_size;
      return at::empty_symint(sizes, values.options());
    } else {
      const Tensor rows = values.contiguous();
      Tensor marks = offsets;
      RowLayout layout = indexing::lay_out_contiguous(rows.sizes(), marks, {axis, batch_dims});
      layout.entries = output_size.expect_int();
      layout.inner *= rows.element_size();
      auto sizes = rows.sizes().vec();
      sizes[axis] = layout.entries;
      const Tensor result = new_output(sizes, rows.options());
      call_indexed<On>(kGather, marks, offsets_layout(layout), IndexMode::kRaise, result,
                       [&](auto on, const auto&... errors) {
                         return kernels::repeat_rows(
                             on, index_array(marks), layout,
                             static_cast<const char*>(rows.const_data_ptr()),
                             static_cast<char*>(result.mutable_data_ptr()), errors...);
                       });
      return result;
    }
  }

  static auto keep(const Tensor& values, const Tensor& offsets, Dim dim, int64_t batch_dims,
                   const c10::SymInt&) {
    return std::tuple(offsets, check_segments(kGather, values, offsets, dim, batch_dims).dim,
                      batch_dims, static_cast<int64_t>(values.scalar_type()));
  }

  static Tensor backward(const Tensor& grad_output, const Tensor& offsets, int64_t dim,
                         int64_t batch_dims, int64_t dtype);

  static Tensor batch(const Tensor& values, const Tensor& offsets, Dim dim, int64_t batch_dims,
                      const c10::SymInt& output_size) {
    return batch_scatter(kGather, values, offsets, dim, batch_dims,
                         [&](const Tensor& v, const Tensor& o, Dim axis, int64_t batches) {
                           return op_of<GatherCsr>().call(v, o, axis, batches, output_size);
                         });
  }
};

// ---- Sums ---------------------------------------------------------------------------------------

// The batching rule of the reductions.
template <class Op>
struct Reduction {
  template <class... Rest>
  static Tensor batch(const Tensor& values, const Tensor& offsets, int64_t dim, int64_t batch_dims,
                      const Rest&... rest) {
    return batch_scatter(kReduce, values, offsets, dim, batch_dims,
                         [&](const Tensor& v, const Tensor& o, Dim axis, int64_t batches) {
                           return op_of<Op>().call(v, o, *axis, batches, rest...);
                         });
  }
};

// How many entries each segment has, at least 1, in a shape that broadcasts to that of `rows`.
Tensor counts_of(const Tensor& offsets, const Tensor& rows, int64_t dim, int64_t batch_dims) {
  return indexing::per_row(at::diff(offsets).clamp_min(1), batch_dims, dim, rows.dim());
}

struct SegmentSum : Reduction<SegmentSum> {
  static constexpr const char* kSchema =
      "_segment_sum(Tensor values, Tensor offsets, int dim, int batch_dims, bool mean) -> Tensor";
  static constexpr const char* kNode = "SegmentSumBackward";

  template <class On>
  static Tensor kernel(const Tensor& values, const Tensor& offsets, int64_t dim, int64_t batch_dims,
                       bool mean) {
    check_summable(kReduce, values);
    return mean ? join<SegmentRule::kMean, On>(values, offsets, dim, batch_dims)
                : join<SegmentRule::kSum, On>(values, offsets, dim, batch_dims);
  }

  static auto keep(const Tensor& values, const Tensor& offsets, int64_t dim, int64_t batch_dims,
                   bool mean) {
    return std::tuple(offsets, dim, batch_dims, mean, values.sym_size(dim),
                      static_cast<int64_t>(values.scalar_type()));
  }

  static Tensor backward(const Tensor& grad_output, const Tensor& offsets, int64_t dim,
                         int64_t batch_dims, bool mean, const c10::SymInt& entries, int64_t dtype) {
    Tensor grad = grad_output.to(static_cast<at::ScalarType>(dtype));
    if (mean) {
      const Tensor wide = grad.to(unrounded(grad.scalar_type()));  // which holds the counts, too
      grad = (wide / counts_of(offsets, grad, dim, batch_dims)).to(grad.scalar_type());
    }
    return op_of<GatherCsr>().call(grad, offsets, dim, batch_dims, entries);
  }
};

Tensor GatherCsr::backward(const Tensor& grad_output, const Tensor& offsets, int64_t dim,
                           int64_t batch_dims, int64_t dtype) {
  return op_of<SegmentSum>().call(grad_output.to(static_cast<at::ScalarType>(dtype)), offsets, dim,
                                  batch_dims, /*mean=*/false);
}

// ---- Extremes -----------------------------------------------------------------------------------

// Where the first of a segment's best values is; the number of entries for a segment of none.
struct SegmentArg : Reduction<SegmentArg>, autograd::WithoutDerivative<SegmentArg> {
  static constexpr const char* kSchema =
      "_segment_arg(Tensor values, Tensor offsets, int dim, int batch_dims, bool largest) "
      "-> Tensor";

  template <class On>
  static Tensor kernel(const Tensor& values, const Tensor& offsets, int64_t dim, int64_t batch_dims,
                       bool largest) {
    check_ordered(kReduce, values);
    return reduce<On>(values, offsets, dim, batch_dims, at::kLong,
                      [&](auto on, at::ScalarType dtype, const auto& call, const auto&... errors) {
                        return dispatch_ordered(dtype, [&](auto zero) {
                          const auto places = call(zero, int64_t());
                          return largest ? kernels::reduce_segments<SegmentRule::kWhereLargest>(
                                               on, places, errors...)
                                         : kernels::reduce_segments<SegmentRule::kWhereSmallest>(
                                               on, places, errors...);
                        });
                      });
  }
};

// What stands at the places of the best of `values`: 0 where there is none.
Tensor pick_best(const Tensor& from, const Tensor& values, const Tensor& offsets, int64_t dim,
                 int64_t batch_dims, bool largest) {
  const Tensor places = op_of<SegmentArg>().call(values, offsets, dim, batch_dims, largest);
  return ops::gather_elements().call(from, places, dim, "fill", 0, std::nullopt);
}

struct SegmentBest : Reduction<SegmentBest> {
  static constexpr const char* kSchema =
      "_segment_best(Tensor values, Tensor offsets, int dim, int batch_dims, bool largest) "
      "-> Tensor";
  static constexpr const char* kNode = "SegmentBestBackward";

  template <class On>
  static Tensor kernel(const Tensor& values, const Tensor& offsets, int64_t dim, int64_t batch_dims,
                       bool largest) {
    check_ordered(kReduce, values);
    if constexpr (std::is_same_v<On, OnCuda>) {  // which has kernels for floats
      if (!values.is_floating_point()) {
        return pick_best(values, values, offsets, dim, batch_dims, largest);
      }
    }
    return reduce<On>(
        values, offsets, dim, batch_dims, values.scalar_type(),
        [&](auto on, at::ScalarType dtype, const auto& call, const auto&... errors) {
          const auto use = [&](auto zero) {
            const auto best = call(zero, zero);
            return largest ? kernels::reduce_segments<SegmentRule::kLargest>(on, best, errors...)
                           : kernels::reduce_segments<SegmentRule::kSmallest>(on, best, errors...);
          };
          if constexpr (std::is_same_v<On, OnCuda>) {
            return AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, dtype, kReduce, [&] {
              return use(typename KernelTypeOf<scalar_t>::type());
            });
          } else {
            return dispatch_ordered(dtype, use);
          }
        });
  }

  // Places take less memory than values, but nobody asks for them unless for a gradient.
  static auto keep(const Tensor& values, const Tensor& offsets, int64_t dim, int64_t batch_dims,
                   bool largest) {
    return std::tuple(values, offsets, dim, batch_dims, largest);
  }

  // Each value is at one place at the most, so that no order of the sums matters.
  static Tensor backward(const Tensor& grad_output, const Tensor& values, const Tensor& offsets,
                         int64_t dim, int64_t batch_dims, bool largest) {
    const Tensor places = op_of<SegmentArg>().call(values, offsets, dim, batch_dims, largest);
    return ops::scatter_elements_add().call(grad_output, places, values.sym_sizes(), dim,
                                            /*deterministic=*/false, "fill");
  }

  static Tensor tangent(const Tensor& tangent, const Tensor& values, const Tensor& offsets,
                        int64_t dim, int64_t batch_dims, bool largest) {
    return pick_best(tangent, autograd::primal(values), offsets, dim, batch_dims, largest);
  }
};

// ---- Products -----------------------------------------------------------------------------------

struct SegmentProd : Reduction<SegmentProd> {
  static constexpr const char* kSchema =
      "_segment_prod(Tensor values, Tensor offsets, int dim, int batch_dims) -> Tensor";
  static constexpr const char* kNode = "SegmentProdBackward";

  template <class On>
  static Tensor kernel(const Tensor& values, const Tensor& offsets, int64_t dim,
                       int64_t batch_dims) {
    check_ordered(kReduce, values);
    return join<SegmentRule::kProd, On>(values, offsets, dim, batch_dims);
  }

  static auto keep(const Tensor& values, const Tensor& offsets, int64_t dim, int64_t batch_dims) {
    return std::tuple(values, offsets, dim, batch_dims);
  }

  static Tensor backward(const Tensor& grad_output, const Tensor& values, const Tensor& offsets,
                         int64_t dim, int64_t batch_dims) {
    return op_of<GatherCsr>().call(grad_output, offsets, dim, batch_dims, values.sym_size(dim)) *
           product_of_others(values, offsets, dim, batch_dims);
  }

  static Tensor tangent(const Tensor& tangent, const Tensor& values, const Tensor& offsets,
                        int64_t dim, int64_t batch_dims) {
    const Tensor others = product_of_others(autograd::primal(values), offsets, dim, batch_dims);
    return op_of<SegmentSum>().call(tangent * others, offsets, dim, batch_dims, /*mean=*/false);
  }

 private:
  // The product of the other values of each value's segment, without a division by zero.
  static Tensor product_of_others(const Tensor& given, const Tensor& offsets, int64_t dim,
                                  int64_t batch_dims) {
    const Tensor values = given.to(unrounded(given.scalar_type()));  // or a product may not fit
    const auto back = [&](const Tensor& rows) {
      return op_of<GatherCsr>().call(rows, offsets, dim, batch_dims, values.sym_size(dim));
    };
    const Tensor is_zero = at::eq(values, 0);
    const auto no_other_is_zero = [&] {
      const Tensor zeros = is_zero.to(at::kInt);
      return at::eq(back(op_of<SegmentSum>().call(zeros, offsets, dim, batch_dims, false)), zeros);
    };
    const Tensor nonzero = at::where(is_zero, 1, values);
    const Tensor others =
        back(op_of<SegmentProd>().call(nonzero, offsets, dim, batch_dims)) / nonzero;
    return at::where(no_other_is_zero(), others, 0).to(given.scalar_type());
  }
};

// ---- The public ops -----------------------------------------------------------------------------

struct SegmentReduce {
  static constexpr const char* kSchema =
      "segment_reduce(Tensor values, Tensor offsets, str reduce='sum', int? dim=None, *, "
      "int batch_dims=0) -> Tensor";

  static Tensor compose(const Tensor& values, const Tensor& offsets, std::string_view reduction,
                        Dim dim, int64_t batch_dims) {
    check_dense(kReduce, "values", values);
    check_dense(kReduce, "offsets", offsets);
    const int64_t axis = check_segments(kReduce, values, offsets, dim, batch_dims).dim;
    const std::string_view reduce = canonical_reduction(kReduce, reduction, /*five_only=*/true);
    if (reduce == "sum") {
      return op_of<SegmentSum>().call(values, offsets, axis, batch_dims, /*mean=*/false);
    }
    if (reduce == "mean") {
      check_averaged(kReduce, values);
      const at::ScalarType dtype = values.scalar_type();
      const bool integers = at::isIntegralType(dtype, /*includeBool=*/false);
      const Tensor means =
          op_of<SegmentSum>().call(values, offsets, axis, batch_dims, /*mean=*/!integers);
      if (!integers) return means;
      return at::div(means, counts_of(offsets, means, axis, batch_dims), "floor").to(dtype);
    }
    if (reduce == "prod") return op_of<SegmentProd>().call(values, offsets, axis, batch_dims);
    return op_of<SegmentBest>().call(values, offsets, axis, batch_dims, reduce == "amax");
  }
};

// scatter and scatter_add by an index in order. On the CPU they add in order in any case, and find
// out by themselves where rows follow each other.
struct ScatterSorted {
  static constexpr const char* kSchema =
      "_scatter_sorted(Tensor values, Tensor index, SymInt dim_size, int? dim, int batch_dims, "
      "str reduce, str name) -> Tensor";

  static Tensor compose(const Tensor& values, const Tensor& index, c10::SymInt dim_size, Dim dim,
                        int64_t batch_dims, std::string_view reduce, std::string_view name) {
    const char* const op = indexing::name_of("scatter_add", name);
    const int64_t axis = indexing::check_scatter(op, values, index, dim_size, dim, batch_dims).dim;
    if (values.is_cpu()) {
      if (name == "scatter") {
        return ops::scatter().call(values, index, dim_size, dim, batch_dims, reduce, "raise",
                                   /*deterministic=*/std::nullopt, /*correction=*/1,
                                   /*dtype=*/std::nullopt);
      }
      return ops::scatter_add().call(values, index, dim_size, dim, batch_dims, std::nullopt,
                                     "raise", std::nullopt);
    }
    if (reduce == "sum" || reduce == "mean") check_summable(op, values);
    const int64_t picked = index.dim() - batch_dims;
    const Tensor rows =
        picked == 0 ? values.unsqueeze(axis) : values.flatten(axis, axis + picked - 1);
    const Tensor offsets = op_of<SortedOffsets>().call(index, dim_size, batch_dims, op);
    return op_of<SegmentReduce>().call(rows, offsets, reduce, axis, batch_dims);
  }
};

}  // namespace

TORCH_LIBRARY_FRAGMENT(torch_ops, m) {
  register_op<SegmentIds>(m);
  register_op<SortedOffsets>(m);
  register_op<GatherCsr>(m);
  register_op<SegmentSum>(m);
  register_op<SegmentArg>(m);
  register_op<SegmentBest>(m);
  register_op<SegmentProd>(m);
  register_op<SegmentReduce>(m);
  register_op<ScatterSorted>(m);
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.doc() = "Reductions of segments.";
  autograd::name_nodes_in_python();
  python_call::def(m, "call_reduce", op_of<SegmentReduce>());
  python_call::def(m, "call_gather", op_of<GatherCsr>());
}

}  // namespace torch_ops
