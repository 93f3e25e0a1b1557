// The contract of softmax, log_softmax and logsumexp over segments: compositions of sums and
// largest values, with a derivative of their own, and their steps on CUDA.
#include <ATen/Dispatch.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ge.h>

#include "common/gather_family/call_indexed.h"
#include "common/gather_family/gather_ops.h"
#include "common/gather_family/indexing.h"
#include "common/gather_family/planned.h"
#include "common/torch/calls/checks.h"
#include "common/torch/calls/new_output.h"
#include "common/torch/registration/derive.h"
#include "scatter/batching.h"
#include "scatter/scatter_ops.h"
#include "segments/segments.h"
#include "segments/softmax_launch.h"

namespace torch_ops {
namespace {

using at::Tensor;
using ops::Dim;
using Given = std::optional<Tensor>;
using Step = SoftmaxStep;

enum class What : int64_t { kSoftmax, kLogSoftmax, kLogSumExp };

const char* name_of(What what) {
  constexpr const char* kNames[] = {"softmax", "log_softmax", "logsumexp"};
  return kNames[static_cast<int64_t>(what)];
}

at::ScalarType number_type(const Tensor& values) {
  return values.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

// Which values belong together: by an index; by a plan of one, where there are rows and order; or
// by offsets, where the index has the segment of each entry, or one after the last.
struct Groups {
  What what;  // in whose name errors are raised
  Tensor index;
  c10::SymInt dim_size;
  int64_t dim;  // counted from the front
  int64_t batch_dims;
  Given rows, order, offsets;

  // Are the entries of a row one after the other?
  bool has_order() const { return rows || offsets; }

  Tensor sum(const Tensor& values) const {
    if (offsets) {
      static const auto op =
          find_op<Tensor(const Tensor&, const Tensor&, int64_t, int64_t, bool)>("_segment_sum");
      return op.call(values, *offsets, dim, batch_dims, /*mean=*/false);
    }
    if (rows) {
      static const auto op = find_op<planned::Signature>("scatter_add.plan");
      return op.call(values, index, *rows, *order, dim_size, dim, batch_dims);
    }
    return ops::scatter_add().call(values, index, dim_size, dim, batch_dims, std::nullopt, "raise",
                                   name_of(what));
  }

  Tensor largest(const Tensor& values) const {
    const at::ScalarType wide = number_type(values);
    if (offsets) {
      static const auto op =
          find_op<Tensor(const Tensor&, const Tensor&, int64_t, int64_t, bool)>("_segment_best");
      return op.call(values, *offsets, dim, batch_dims, /*largest=*/true).to(wide);
    }
    static const auto op =
        find_op<Tensor(const Tensor&, const Tensor&, c10::SymInt, Dim, int64_t, bool,
                       std::string_view, const Given&, const Given&, ops::Name)>("_scatter_best");
    return op
        .call(values, index, dim_size, dim, batch_dims, /*largest=*/true, "raise", rows, order,
              name_of(what))
        .to(wide);
  }

  // The rows of a result at the entries; 0 for an entry of no segment.
  Tensor back(const Tensor& of_result) const {
    if (rows) {
      static const auto op = find_op<planned::Signature>("gather.plan");
      return op.call(of_result, index, *rows, *order, dim_size, dim, batch_dims);
    }
    const ops::Fill fill = offsets ? ops::Fill(0) : ops::Fill();
    return ops::gather().call(of_result, index, dim, batch_dims, offsets ? "fill" : "raise", fill,
                              name_of(what));
  }

  // `values` with `other` for the entries of no segment.
  Tensor only(const Tensor& values, int64_t other = 0) const {
    if (!offsets) return values;
    const Tensor of_none = at::ge(index, dim_size);
    return values.masked_fill(indexing::per_row(of_none, batch_dims, dim, values.dim()), other);
  }
};

// ---- Steps --------------------------------------------------------------------------------------

// Calls use() with the one of the constants that `step` is.
template <Step... kSteps, class Use>
void with_step(Step step, Use&& use) {
  ((step == kSteps ? use(std::integral_constant<Step, kSteps>()) : void()), ...);
}

// What a step computes; nobody differentiates it.
struct SoftmaxStepOp {
  static constexpr const char* kSchema =
      "_softmax_step(int step, Tensor a, Tensor? b, Tensor p, Tensor? q, Tensor index, int dim, "
      "int batch_dims) -> Tensor";

  template <class On>
  static Tensor kernel(int64_t number, const Tensor& a, const Given& b, const Tensor& p,
                       const Given& q, const Tensor& index, int64_t dim, int64_t batch_dims) {
    const auto step = static_cast<Step>(number);
    const at::ScalarType wide = number_type(a);
    const auto options = a.options().dtype(step == Step::kExp ? wide : a.scalar_type());
    if constexpr (std::is_same_v<On, OnMeta>) {
      return at::empty_symint(a.sym_sizes(), options);
    } else {
      const Tensor first = a.contiguous(), rows = p.contiguous();
      const Tensor second = b ? b->contiguous() : first, more = q ? q->contiguous() : rows;
      Tensor picks = index;
      const RowLayout layout = indexing::lay_out_contiguous(rows.sizes(), picks, {dim, batch_dims});
      const Tensor out = new_output(a.sizes(), options);
      with_kernels<On>(out, [&](auto on) {
        AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, a.scalar_type(), "softmax", [&] {
          using Value = typename KernelTypeOf<scalar_t>::type;
          const auto launch = [&](auto constant) {
            using Call = SoftmaxCall<constant(), Value>;
            using Number = typename Call::Number;
            kernels::softmax_step(
                on, Call{input_of<scalar_t>(first), input_of<scalar_t>(second),
                         static_cast<const Number*>(rows.const_data_ptr()),
                         static_cast<const Number*>(more.const_data_ptr()), index_array(picks),
                         layout, static_cast<typename Call::Out*>(out.mutable_data_ptr())});
          };
          with_step<Step::kExp, Step::kSoftmax, Step::kLogSoftmax, Step::kSoftmaxBack,
                    Step::kLogSoftmaxBack, Step::kLogSumExpBack>(step, launch);
        });
      });
      return out;
    }
  }
};

Tensor do_step(Step step, const Groups& groups, const Tensor& a, const Given& b, const Tensor& p,
               const Given& q = std::nullopt) {
  return op_of<SoftmaxStepOp>().call(static_cast<int64_t>(step), a, b, p, q, groups.index,
                                     groups.dim, groups.batch_dims);
}

// ---- Totals of rows in one pass, on CUDA --------------------------------------------------------

// Of each row the largest value and the sum of exponentials, stacked along a first axis, or the
// sum of products with `others`, which are of the same dtype.
template <class On>
Tensor totals(const Groups& groups, const Tensor& of_entries, const Given& others = std::nullopt) {
  const indexing::Axes axes{groups.dim, groups.batch_dims};
  const Tensor values = of_entries.contiguous(), second = others ? others->contiguous() : values;
  const auto shape = indexing::scatter_sizes(values, groups.index, groups.dim_size, axes);
  auto sizes = C10_AS_INTARRAYREF_SLOW(shape).vec();
  Tensor marks = groups.offsets.value_or(groups.index), rows, order;
  RowLayout layout = indexing::lay_out_contiguous(sizes, marks, axes);
  PlanArrays plan{};
  if (groups.rows) {
    rows = groups.rows->contiguous();
    order = groups.order->contiguous();
    plan = {index_array(rows), index_array(order)};
  } else {
    layout.entries = values.size(groups.dim);
  }
  if (!others) sizes.push_back(2);
  const Tensor result = new_output(sizes, values.options().dtype(number_type(values)));
  with_kernels<On>(result, [&](auto on) {
    AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, values.scalar_type(), "softmax", [&] {
      using Value = typename KernelTypeOf<scalar_t>::type;
      using Number = ComputeType<Value>;
      const auto call = [&](auto to) {
        using Result = decltype(to);
        return RowTotals<Value, Result>{input_of<scalar_t>(values), index_array(marks), layout,
                                        plan, static_cast<Result*>(result.mutable_data_ptr())};
      };
      if (others) {
        kernels::product_sums(on, call(Number()), input_of<scalar_t>(second));
      } else {
        kernels::exp_sums(on, call(ExpSum<Number>()));
      }
    });
  });
  return others ? result : result.movedim(-1, 0).contiguous();
}

// ---- The formulas, by ops that have derivatives and batching rules ------------------------------

Tensor compose(What what, const Tensor& values, const Groups& groups) {
  const Tensor wide = values.to(number_type(values));
  Tensor largest = groups.largest(wide.detach());
  if (what != What::kLogSumExp) {  // of +infinity NaN, as in softmax_formulas.h
    largest = largest.masked_fill(largest.isposinf(), std::numeric_limits<double>::quiet_NaN());
  }
  largest = largest.masked_fill(largest.isinf(), 0);  // from which nothing differs by NaN
  const Tensor shifted = wide - groups.back(largest);
  const Tensor exps = groups.only(shifted.exp());
  const Tensor sums = groups.sum(exps);
  if (what == What::kLogSumExp) return (sums.log() + largest).to(values.scalar_type());
  const Tensor result = what == What::kSoftmax ? exps / groups.only(groups.back(sums), 1)
                                               : groups.only(shifted - groups.back(sums.log()));
  return result.to(values.scalar_type());
}

// The gradient of the values, from the output and, of logsumexp, the values.
Tensor compose_back(What what, const Tensor& grad, const Tensor& output, const Tensor& values,
                    const Groups& groups) {
  const at::ScalarType wide = number_type(output);
  const Tensor g = grad.to(wide);
  if (what == What::kLogSumExp) {
    const Tensor x = values.to(wide), y = groups.back(compose(what, x, groups));
    return (groups.back(g) * groups.only((x - y).exp())).to(output.scalar_type());
  }
  const Tensor y = output.to(wide);
  const Tensor result = what == What::kSoftmax
                            ? y * (g - groups.back(groups.sum(y * g)))
                            : groups.only(g - y.exp() * groups.back(groups.sum(g)));
  return result.to(output.scalar_type());
}

// ---- The ops ------------------------------------------------------------------------------------

#define GROUPS_SCHEMA                                                              \
  "Tensor index, SymInt dim_size, int dim, int batch_dims, Tensor? rows, Tensor? " \
  "order, Tensor? offsets) -> Tensor"

struct SoftmaxBack {
  static constexpr const char* kSchema =
      "_softmax_back(Tensor grad, Tensor output, Tensor values, int what, " GROUPS_SCHEMA;

  template <class On>
  static Tensor kernel(const Tensor& grad, const Tensor& output, const Tensor& values,
                       int64_t number, const Tensor& index, c10::SymInt dim_size, int64_t dim,
                       int64_t batch_dims, const Given& rows, const Given& order,
                       const Given& offsets) {
    if constexpr (std::is_same_v<On, OnMeta>) {
      return at::empty_symint(values.sym_sizes(), values.options());
    }
    const auto what = static_cast<What>(number);
    const Groups groups{what, index, dim_size, dim, batch_dims, rows, order, offsets};
    const at::ScalarType wide = number_type(output);
    if (what == What::kLogSumExp) {
      if (values.element_size() < 4) {  // whose rounded output says too little
        return compose_back(what, grad, output, values, groups);
      }
      return do_step(Step::kLogSumExpBack, groups, values, std::nullopt, grad, output);
    }
    if (what == What::kSoftmax) {
      Tensor dots;
      if constexpr (std::is_same_v<On, OnCuda>) {
        if (groups.has_order()) dots = totals<On>(groups, output, grad.to(output.scalar_type()));
      }
      if (!dots.defined()) dots = groups.sum(grad.to(wide) * output);
      return do_step(Step::kSoftmaxBack, groups, output, grad, dots);
    }
    return do_step(Step::kLogSoftmaxBack, groups, output, grad, groups.sum(grad.to(wide)));
  }

  // `parts` are those of Groups.
  template <class... Parts>
  static Tensor derive(c10::DispatchKeySet keys, const Tensor& grad, const Tensor& output,
                       const Tensor& values, int64_t what, const Parts&... parts) {
    if (has_derivative(grad) || has_derivative(output) || has_derivative(values)) {
      return batch(grad, output, values, what, parts...);
    }
    return autograd::below_autograd(keys, op_of<SoftmaxBack>(), grad, output, values, what,
                                    parts...);
  }

  template <class... Parts>
  static Tensor batch(const Tensor& grad, const Tensor& output, const Tensor& values, int64_t what,
                      const Parts&... parts) {
    const auto of = static_cast<What>(what);
    return compose_back(of, grad, output, values, {of, parts...});
  }
};

struct Softmax {
  static constexpr const char* kSchema = "_softmax(Tensor values, int what, " GROUPS_SCHEMA;
  static constexpr const char* kNode = "SoftmaxBackward";

  template <class On>
  static Tensor kernel(const Tensor& values, int64_t number, const Tensor& index,
                       c10::SymInt dim_size, int64_t dim, int64_t batch_dims, const Given& rows,
                       const Given& order, const Given& offsets) {
    const auto what = static_cast<What>(number);
    const Groups groups{what, index, dim_size, dim, batch_dims, rows, order, offsets};
    if constexpr (std::is_same_v<On, OnMeta>) {
      if (what != What::kLogSumExp) return at::empty_symint(values.sym_sizes(), values.options());
      const auto sizes = indexing::scatter_sizes(values, index, dim_size, {dim, batch_dims});
      return at::empty_symint(sizes, values.options());
    }
    Tensor largest, sums;
    if constexpr (std::is_same_v<On, OnCuda>) {
      if (groups.has_order()) {
        const Tensor both = totals<On>(groups, values);
        largest = both[0];
        sums = both[1];
      }
    }
    if (!largest.defined()) {
      largest = groups.largest(values);
      sums = groups.sum(do_step(Step::kExp, groups, values, std::nullopt, largest));
    }
    if (what == What::kSoftmax) {
      return do_step(Step::kSoftmax, groups, values, std::nullopt, largest, sums);
    }
    const Tensor logs = sums.log();
    if (what == What::kLogSumExp) return (logs + largest).to(values.scalar_type());
    return do_step(Step::kLogSoftmax, groups, values, std::nullopt, largest, logs);
  }

  static auto keep(const Tensor& output, const Tensor& values, int64_t what, const Tensor& index,
                   const c10::SymInt& dim_size, int64_t dim, int64_t batch_dims, const Given& rows,
                   const Given& order, const Given& offsets) {
    const bool reads_values = static_cast<What>(what) == What::kLogSumExp;
    return std::tuple(autograd::Output{output}, reads_values ? Given(values) : std::nullopt, what,
                      index, dim_size, dim, batch_dims, rows, order, offsets);
  }

  static Tensor backward(const Tensor& grad, const Tensor& output, const Given& values,
                         int64_t what, const Tensor& index, const c10::SymInt& dim_size,
                         int64_t dim, int64_t batch_dims, const Given& rows, const Given& order,
                         const Given& offsets) {
    return op_of<SoftmaxBack>().call(grad, output, values.value_or(output), what, index, dim_size,
                                     dim, batch_dims, rows, order, offsets);
  }

  template <class... Parts>
  static Tensor derive(c10::DispatchKeySet keys, const Tensor& values, int64_t number,
                       const Parts&... parts) {
    const auto what = static_cast<What>(number);
    const auto node = autograd::make_node<autograd::Node<Softmax>>(values);
    const Tensor output =
        autograd::below_autograd(keys, op_of<Softmax>(), values, number, parts...);
    autograd::record(output, node);
    autograd::set_tangent(
        output,
        [&](const Tensor& tangent) {
          const Groups groups{what, parts...};
          if (what == What::kSoftmax) {  // whose Jacobian is symmetric
            const Tensor y = autograd::primal(output);
            return compose_back(what, tangent, y, y, groups);
          }
          const Tensor y = compose(What::kSoftmax, autograd::primal(values), groups);
          const Tensor sums = groups.sum(y * tangent);
          return what == What::kLogSumExp ? sums : groups.only(tangent - groups.back(sums));
        },
        values);
    if (node) node->keep(output, values, number, parts...);
    return output;
  }

  template <class... Parts>
  static Tensor batch(const Tensor& values, int64_t what, const Parts&... parts) {
    const auto of = static_cast<What>(what);
    return compose(of, values, {of, parts...});
  }
};

// The public ops.
template <What kWhat>
struct SoftmaxOf {
#define SOFTMAX_ARGUMENTS                                                                 \
  "(Tensor values, Tensor? index=None, SymInt? dim_size=None, int? dim=None, *, Tensor? " \
  "offsets=None, int batch_dims=0, Tensor? rows=None, Tensor? order=None) -> Tensor"
  static constexpr const char* kSchema = kWhat == What::kSoftmax ? "softmax" SOFTMAX_ARGUMENTS
                                         : kWhat == What::kLogSoftmax
                                             ? "log_softmax" SOFTMAX_ARGUMENTS
                                             : "logsumexp" SOFTMAX_ARGUMENTS;

  static Tensor compose(const Tensor& values, const Given& index,
                        std::optional<c10::SymInt> dim_size, Dim dim, const Given& offsets_given,
                        int64_t batch_dims, const Given& rows, const Given& order) {
    const char* const op = name_of(kWhat);
    check_floating(op, "values", values);
    TORCH_CHECK_TYPE(index.has_value() != offsets_given.has_value(), op,
                     ": either index or offsets must be given, and not both.");
    if (!offsets_given) {
      TORCH_CHECK_TYPE(dim_size.has_value(), op, ": dim_size is missing.");
      if (rows) {
        planned::check_not_mapped(op, *index, *rows, order.value());
        indexing::check_plan(op, "values", values, *index, *rows, *order);
      }
      const int64_t axis =
          indexing::check_scatter(op, values, *index, *dim_size, dim, batch_dims).dim;
      return op_of<Softmax>().call(values, static_cast<int64_t>(kWhat), *index, *dim_size, axis,
                                   batch_dims, rows, order, std::nullopt);
    }
    const Tensor& offsets = *offsets_given;
    const int64_t axis = check_segments(op, values, offsets, dim, batch_dims).dim;
    const c10::SymInt segments = offsets.sym_size(-1) - 1;
    TORCH_CHECK_VALUE(!dim_size || dim_size->sym_eq(segments).expect_true(__FILE__, __LINE__), op,
                      ": dim_size must be the number of segments, ", segments,
                      ", or left out, but it is ", dim_size.value_or(0), ".");
    static const auto find = find_op<Tensor(const Tensor&, c10::SymInt, ops::Name)>("_segment_ids");
    const Tensor ids = find.call(offsets, values.sym_size(axis), c10::str(op, ":offsets"));
    return op_of<Softmax>().call(values, static_cast<int64_t>(kWhat), ids, segments, axis,
                                 batch_dims, std::nullopt, std::nullopt, offsets);
  }
};

}  // namespace

TORCH_LIBRARY_FRAGMENT(torch_ops, m) {
  register_op<SoftmaxStepOp>(m);
  register_op<SoftmaxBack>(m);
  register_op<Softmax>(m);
  register_op<SoftmaxOf<What::kSoftmax>>(m);
  register_op<SoftmaxOf<What::kLogSoftmax>>(m);
  register_op<SoftmaxOf<What::kLogSumExp>>(m);
}

}  // namespace torch_ops
