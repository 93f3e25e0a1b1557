// The contract of gather: schemas, checks, allocation, derivative, binding.
#include <ATen/ops/empty.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/library.h>

#include "common/gather_family/gather_ops.h"
#include "common/gather_family/index_mode_args.h"
#include "common/gather_family/indexing.h"
#include "common/gather_family/planned.h"
#include "common/torch/autograd.h"
#include "common/torch/batching.h"
#include "common/torch/checks.h"
#include "common/torch/new_output.h"
#include "common/torch/op.h"
#include "common/torch/python_call.h"
#include "gather/explain.h"
#include "gather/gather.h"

namespace torch_ops {
namespace {

using at::Tensor;
using autograd::SavedVariable;
using autograd::variable_list;
using ops::Fill;

struct GatherByPlan {
  static constexpr const char* kName = "gather";
  static constexpr const char* kNodeName = "GatherByPlanBackward";
  static const planned::Op& self() {
    static const auto op = planned::find("gather");
    return op;
  }
  static const planned::Op& transpose() {
    static const auto op = planned::find("scatter_add");
    return op;
  }
};

// ---- CPU, CUDA and Meta kernels -----------------------------------------------------------------

// What a call with checked arguments does with its entries.
struct Call {
  indexing::Axes axes;
  IndexMode mode;
  const char* op;  // in whose name errors are raised
};

Call check(const Tensor& source, const Tensor& index, std::optional<int64_t> dim,
           int64_t batch_dims, std::string_view mode, const Fill& fill_value) {
  const auto [parsed, op] = indexing::parse_named_mode("gather", mode);
  const indexing::Axes axes = indexing::check_gather(op, source, index, dim, batch_dims);
  indexing::check_fill_value(op, parsed, fill_value, source.scalar_type());
  return {axes, parsed, op};
}

template <class On>
Tensor compute(const Call& call, const Tensor& source, const Tensor& index,
               const Fill& fill_value) {
  Tensor table = source, entries = index;
  const RowLayout layout = indexing::lay_out(table, entries, call.axes);
  const auto sizes = indexing::gather_sizes(source, index, call.axes);
  Tensor output = new_output(C10_AS_INTARRAYREF_SLOW(sizes), source.options());
  const GatherPolicy policy = make_policy(call.mode, layout.axis_size, fill_value, source);
  if (fill_empty_axis(policy, output)) return output;
  if (call.mode == IndexMode::kFill) table = aligned(table);  // a fill is of whole elements
  launch_gather<On>(call.op, table, entries, layout, policy, output);
  return output;
}

template <class On>
Tensor gather(const Tensor& source, const Tensor& index, std::optional<int64_t> dim,
              int64_t batch_dims, std::string_view mode, const Fill& fill_value) {
  return compute<On>(check(source, index, dim, batch_dims, mode, fill_value), source, index,
                     fill_value);
}

Tensor gather_meta(const Tensor& source, const Tensor& index, std::optional<int64_t> dim,
                   int64_t batch_dims, std::string_view mode, const Fill& fill_value) {
  const Call call = check(source, index, dim, batch_dims, mode, fill_value);
  return at::empty_symint(indexing::gather_sizes(source, index, call.axes), source.options());
}

// gather itself: a plan is for the derivative.
Call check_by_plan(const Tensor& source, const Tensor& index, const Tensor& rows,
                   const Tensor& order, const c10::SymInt& dim_size, int64_t dim,
                   int64_t batch_dims) {
  indexing::check_plan("gather", "source", source, index, rows, order);
  const indexing::Axes axes = indexing::check_gather("gather", source, index, dim, batch_dims);
  TORCH_CHECK_VALUE(source.sym_size(axes.dim).sym_eq(dim_size).expect_true(__FILE__, __LINE__),
                    "gather: the plan was made for an axis of size ", dim_size, ", but axis ",
                    axes.dim, " of source with shape ", source.sym_sizes(), " has size ",
                    source.sym_size(axes.dim), ".");
  return {axes, IndexMode::kRaise};
}

template <class On>
Tensor gather_by_plan(const Tensor& source, const Tensor& index, const Tensor& rows,
                      const Tensor& order, c10::SymInt dim_size, int64_t dim, int64_t batch_dims) {
  return compute<On>(check_by_plan(source, index, rows, order, dim_size, dim, batch_dims), source,
                     index, std::nullopt);
}

Tensor gather_by_plan_meta(const Tensor& source, const Tensor& index, const Tensor& rows,
                           const Tensor& order, c10::SymInt dim_size, int64_t dim,
                           int64_t batch_dims) {
  const Call call = check_by_plan(source, index, rows, order, dim_size, dim, batch_dims);
  return at::empty_symint(indexing::gather_sizes(source, index, call.axes), source.options());
}

// All axes of the index but its last are batch axes. A composition of gather, so it needs no
// derivative of its own.
Tensor batch_gather(const Tensor& source, const Tensor& index, std::string_view mode,
                    const Fill& fill_value) {
  TORCH_CHECK_VALUE(index.dim() > 0,
                    "batch_gather: index must have at least one axis, but it is 0-dimensional.");
  static const indexing::ModesOf modes("batch_gather");
  return ops::gather().call(source, index, std::nullopt, index.dim() - 1, modes(mode), fill_value);
}

// ---- Derivative ---------------------------------------------------------------------------------

// Needs the index and the axis's size; the source itself is not kept. What a fill value took the
// place of gets no gradient.
struct GatherNode final : autograd::DerivativeNode<GatherNode> {
  static constexpr const char* kName = "GatherBackward";
  SavedVariable index;
  c10::SymInt dim_size;
  int64_t dim = 0;
  int64_t batch_dims = 0;
  int64_t mode = 0;

  template <class Visit>
  void fields(Visit&& visit) {
    visit(index);
    visit(dim_size);
    visit(dim);
    visit(batch_dims);
    visit(mode);
  }

  variable_list backward(const Tensor& grad_output) {
    return {ops::scatter_add().call(grad_output, unpack(index), dim_size, dim, batch_dims,
                                    std::nullopt, indexing::mode_name(mode))};
  }
};

Tensor gather_autograd(c10::DispatchKeySet keys, const Tensor& source, const Tensor& index,
                       std::optional<int64_t> dim, int64_t batch_dims, std::string_view mode,
                       const Fill& fill_value) {
  const auto node = autograd::make_node<GatherNode>(source);
  Tensor output = autograd::below_autograd(keys, ops::gather(), source, index, dim, batch_dims,
                                           mode, fill_value);
  autograd::record(output, node);
  autograd::set_tangent(
      output,
      [&](const Tensor& tangent) {
        return ops::gather().call(tangent, index, dim, batch_dims, mode, ops::nothing(mode));
      },
      source);
  if (node) {
    node->index = SavedVariable(index, /*is_output=*/false);
    node->dim =
        indexing::resolve_axes("gather", "source", source.dim(), index.dim(), dim, batch_dims).dim;
    node->batch_dims = batch_dims;
    node->dim_size = source.sym_size(node->dim);
    const IndexMode parsed = indexing::parse_mode("gather", mode);
    // What names no row was an error; the gradient need not look for it once more.
    node->mode = static_cast<int64_t>(parsed == IndexMode::kFromEnd ? IndexMode::kFill : parsed);
  }
  return output;
}

// ---- torch.vmap ---------------------------------------------------------------------------------

// A hidden axis of both tensors is one more batch axis, in front. An axis of the source alone
// becomes an outer axis, one of the index alone another axis of it: neither needs a copy.
Tensor gather_batched(const Tensor& source, const Tensor& index, std::optional<int64_t> dim,
                      int64_t batch_dims, std::string_view mode, const Fill& fill_value) {
  using batching::Batched;
  const auto pick = [&](const Tensor& from, const Tensor& picks, std::optional<int64_t> axis,
                        int64_t batch) {
    return ops::gather().call(from, picks, axis, batch, mode, fill_value);
  };
  return batching::apply(
      [&](const Batched& from, const Batched& picks) -> Batched {
        const int64_t source_rank = from.value.dim() - (from.axis ? 1 : 0);
        const int64_t index_rank = picks.value.dim() - (picks.axis ? 1 : 0);
        const int64_t axis =
            indexing::resolve_axes("gather", "source", source_rank, index_rank, dim, batch_dims)
                .dim;
        if (from.axis && picks.axis) {
          return {pick(from.at(0), picks.at(0), axis + 1, batch_dims + 1), 0};
        }
        if (from.axis) {
          return {pick(from.at(batch_dims), picks.value, axis + 1, batch_dims), batch_dims};
        }
        if (picks.axis) {
          return {pick(from.value, picks.at(batch_dims), axis, batch_dims), axis};
        }
        return {pick(from.value, picks.value, dim, batch_dims), std::nullopt};
      },
      source, index);
}

// ---- The direct pair: outside autograd, on contiguous CUDA tensors ------------------------------

Tensor forward(const Tensor& source, const Tensor& index, int64_t dim, int64_t batch_dims) {
  CHECK_INPUT(source);
  CHECK_INPUT(index);
  return gather<OnCuda>(source, index, dim, batch_dims, "raise", std::nullopt);
}

Tensor backward(const Tensor& grad_output, const Tensor& index, int64_t dim_size, int64_t dim,
                int64_t batch_dims) {
  CHECK_INPUT(grad_output);
  CHECK_INPUT(index);
  at::AutoDispatchBelowADInplaceOrView guard;
  return ops::scatter_add().call(grad_output, index, dim_size, dim, batch_dims, std::nullopt,
                                 "raise");
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(torch_ops, m) {
  m.def(
      "gather(Tensor source, Tensor index, int? dim=None, *, int batch_dims=0, str mode='raise', "
      "Scalar? fill_value=None) -> Tensor",
      {at::Tag::pt2_compliant_tag});
  m.def(
      "gather.plan(Tensor source, Tensor index, Tensor rows, Tensor order, SymInt dim_size, "
      "int dim, int batch_dims) -> Tensor",
      {at::Tag::pt2_compliant_tag});
  m.def(
      "batch_gather(Tensor source, Tensor index, *, str mode='raise', Scalar? fill_value=None) "
      "-> Tensor",
      {at::Tag::pt2_compliant_tag});
}

TORCH_LIBRARY_IMPL(torch_ops, CPU, m) {
  m.impl("gather", gather<OnCpu>);
  m.impl("gather.plan", gather_by_plan<OnCpu>);
}

TORCH_LIBRARY_IMPL(torch_ops, CUDA, m) {
  m.impl("gather", gather<OnCuda>);
  m.impl("gather.plan", gather_by_plan<OnCuda>);
}

TORCH_LIBRARY_IMPL(torch_ops, Meta, m) {
  m.impl("gather", gather_meta);
  m.impl("gather.plan", gather_by_plan_meta);
}

TORCH_LIBRARY_IMPL(torch_ops, Autograd, m) {
  m.impl("gather", gather_autograd);
  m.impl("gather.plan", planned::derive<GatherByPlan>);
}

TORCH_LIBRARY_IMPL(torch_ops, FuncTorchBatched, m) {
  m.impl("gather", gather_batched);
  m.impl("gather.plan", planned::batch<GatherByPlan>);
  m.impl("batch_gather", batch_gather);
}

TORCH_LIBRARY_IMPL(torch_ops, CompositeImplicitAutograd, m) {
  m.impl("batch_gather", batch_gather);
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.doc() = "The direct kernels of gather, on contiguous CUDA tensors and outside autograd.";
  m.def("forward", &forward, "The rows of source along dim that index picks", py::arg("source"),
        py::arg("index"), py::arg("dim") = 0, py::arg("batch_dims") = 0);
  m.def("backward", &backward, "grad_output's rows added where forward read them",
        py::arg("grad_output"), py::arg("index"), py::arg("dim_size"), py::arg("dim") = 0,
        py::arg("batch_dims") = 0);
  def_explain(m);
  python_call::def(m, "call", ops::gather());
  python_call::def(m, "call_by_plan", GatherByPlan::self());
  python_call::def(
      m, "call_batch",
      find_op<Tensor(const Tensor&, const Tensor&, std::string_view, const Fill&)>("batch_gather"));
  python_call::def(m, "call_elements", ops::gather_elements());
  python_call::def(
      m, "call_take_along_dim",
      find_op<Tensor(const Tensor&, const Tensor&, ops::Dim, std::string_view, const Fill&)>(
          "take_along_dim"));
}

}  // namespace torch_ops
