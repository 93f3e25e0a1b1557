// The contract of gather: schemas, checks, allocation, derivative, binding.
#include <ATen/ops/empty.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>

#include "common/gather_family/gather_batching.h"
#include "common/gather_family/gather_ops.h"
#include "common/gather_family/index_mode_args.h"
#include "common/gather_family/indexing.h"
#include "common/gather_family/planned.h"
#include "common/torch/calls/checks.h"
#include "common/torch/calls/new_output.h"
#include "common/torch/calls/python_call.h"
#include "common/torch/registration/derive.h"
#include "common/torch/registration/sharding.h"
#include "gather/explain.h"
#include "gather/gather.h"

namespace torch_ops {
namespace {

using at::Tensor;
using ops::Dim;
using ops::Fill;
using ops::Name;

// A call with checked arguments; errors of entries are raised in the name of `op`.
template <class On>
Tensor pick(const char* op, const Tensor& source, const Tensor& index, indexing::Axes axes,
            IndexMode mode, const Fill& fill_value) {
  const auto sizes = indexing::gather_sizes(source, index, axes);
  if constexpr (std::is_same_v<On, OnMeta>) {
    return at::empty_symint(sizes, source.options());
  } else {
    Tensor table = source, entries = index;
    const RowLayout layout = indexing::lay_out(table, entries, axes);
    Tensor output = new_output(C10_AS_INTARRAYREF_SLOW(sizes), source.options());
    const GatherPolicy policy = make_policy(mode, layout.axis_size, fill_value, source);
    if (fill_empty_axis(policy, output)) return output;
    // A fill consists of whole elements, and elements that lie apart are read one by one.
    if (mode == IndexMode::kFill || !table.is_contiguous()) table = aligned(table);
    launch_gather<On>(op, table, entries, layout, policy, output);
    return output;
  }
}

struct Gather {
  static constexpr const char* kSchema =
      "gather(Tensor source, Tensor index, int? dim=None, *, int batch_dims=0, str mode='raise', "
      "Scalar? fill_value=None, str? name=None) -> Tensor";
  static constexpr const char* kNode = "GatherBackward";

  template <class On>
  static Tensor kernel(const Tensor& source, const Tensor& index, Dim dim, int64_t batch_dims,
                       std::string_view mode, const Fill& fill_value, Name name) {
    const char* const op = indexing::name_of("gather", name);
    const IndexMode parsed = indexing::parse_mode(op, mode);
    const indexing::Axes axes = indexing::check_gather(op, source, index, dim, batch_dims);
    indexing::check_fill_value(op, parsed, fill_value, source.scalar_type());
    return pick<On>(op, source, index, axes, parsed, fill_value);
  }

  // The index and the axis's size; the source itself is not kept. Fill values
  // have no gradient.
  static auto keep(const Tensor& source, const Tensor& index, Dim dim, int64_t batch_dims,
                   std::string_view mode, const Fill&, Name) {
    const int64_t axis =
        indexing::resolve_axes("gather", "source", source.dim(), index.dim(), dim, batch_dims).dim;
    return std::tuple(index, source.sym_size(axis), axis, batch_dims,
                      indexing::mode_of_gradient("gather", mode), shards_of(source));
  }

  static Tensor backward(const Tensor& grad_output, const Tensor& index,
                         const c10::SymInt& dim_size, int64_t dim, int64_t batch_dims, int64_t mode,
                         const std::vector<int64_t>& shards) {
    return ops::add_rows(grad_output, index, dim_size, dim, batch_dims, indexing::mode_name(mode),
                         /*name=*/std::nullopt, shards);
  }

  static Tensor tangent(const Tensor& tangent, const Tensor&, const Tensor& index, Dim dim,
                        int64_t batch_dims, std::string_view mode, const Fill&, Name name) {
    return ops::gather().call(tangent, index, dim, batch_dims, mode, ops::nothing(mode), name);
  }

  template <class... Rest>
  static Tensor batch(const Tensor& source, const Tensor& index, Dim dim, int64_t batch_dims,
                      const Rest&... rest) {
    return batch_gather("gather", source, index, dim, batch_dims, [&](const auto&... moved) {
      return ops::gather().call(moved..., rest...);
    });
  }
};

// gather itself: a plan is for the derivative.
struct GatherByPlan : planned::Op<GatherByPlan> {
  static constexpr const char* kSchema =
      "gather.plan(Tensor source, Tensor index, Tensor rows, Tensor order, SymInt dim_size, "
      "int dim, int batch_dims) -> Tensor";
  static constexpr const char* kName = "gather";
  static constexpr const char* kNode = "GatherByPlanBackward";
  static constexpr const char* kTranspose = "scatter_add.plan";

  template <class On>
  static Tensor kernel(const Tensor& source, const Tensor& index, const Tensor& rows,
                       const Tensor& order, c10::SymInt dim_size, int64_t dim, int64_t batch_dims) {
    indexing::check_plan(kName, "source", source, index, rows, order);
    const indexing::Axes axes = indexing::check_gather(kName, source, index, dim, batch_dims);
    TORCH_CHECK_VALUE(source.sym_size(axes.dim).sym_eq(dim_size).expect_true(__FILE__, __LINE__),
                      "gather: the plan was made for an axis of size ", dim_size, ", but axis ",
                      axes.dim, " of source with shape ", source.sym_sizes(), " has size ",
                      source.sym_size(axes.dim), ".");
    return pick<On>(kName, source, index, axes, IndexMode::kRaise, std::nullopt);
  }
};

// All axes of the index but its last are batch axes.
struct BatchGather {
  static constexpr const char* kSchema =
      "batch_gather(Tensor source, Tensor index, *, str mode='raise', Scalar? fill_value=None) "
      "-> Tensor";

  static Tensor compose(const Tensor& source, const Tensor& index, std::string_view mode,
                        const Fill& fill_value) {
    TORCH_CHECK_VALUE(index.dim() > 0,
                      "batch_gather: index must have at least one axis, but it is 0-dimensional.");
    const int64_t batch_dims = index.dim() - 1;
    if (batch_dims > 1) {  // perhaps only the first should be one
      indexing::check_axes_match(
          "batch_gather", "source", source.sym_sizes(), 0, "index", index.sym_sizes(), 0,
          std::min(batch_dims, source.dim()),
          "source and index must have the same batch axes, which are all axes of index but the "
          "last (only the first with gather(source, index, batch_dims=1))");
    }
    return ops::gather().call(source, index, std::nullopt, batch_dims, mode, fill_value,
                              "batch_gather");
  }
};

// ---- The direct pair: outside autograd, on contiguous CUDA tensors ------------------------------

Tensor forward(const Tensor& source, const Tensor& index, int64_t dim, int64_t batch_dims) {
  CHECK_INPUT(source);
  CHECK_INPUT(index);
  return Gather::kernel<OnCuda>(source, index, dim, batch_dims, "raise", std::nullopt,
                                std::nullopt);
}

Tensor backward(const Tensor& grad_output, const Tensor& index, int64_t dim_size, int64_t dim,
                int64_t batch_dims) {
  CHECK_INPUT(grad_output);
  CHECK_INPUT(index);
  at::AutoDispatchBelowADInplaceOrView guard;
  return ops::scatter_add().call(grad_output, index, dim_size, dim, batch_dims, std::nullopt,
                                 "raise", std::nullopt);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(torch_ops, m) {
  register_op<Gather>(m);
  register_op<GatherByPlan>(m);
  register_op<BatchGather>(m);
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.doc() = "The direct kernels of gather, on contiguous CUDA tensors and outside autograd.";
  autograd::name_nodes_in_python();
  m.def("forward", &forward, "The rows of source along dim that index picks", py::arg("source"),
        py::arg("index"), py::arg("dim") = 0, py::arg("batch_dims") = 0);
  m.def("backward", &backward, "grad_output's rows added where forward read them",
        py::arg("grad_output"), py::arg("index"), py::arg("dim_size"), py::arg("dim") = 0,
        py::arg("batch_dims") = 0);
  def_explain(m);
  python_call::def(m, "call", ops::gather());
  python_call::def(m, "call_by_plan", op_of<GatherByPlan>());
  python_call::def(m, "call_batch", op_of<BatchGather>());
  python_call::def(m, "call_elements", ops::gather_elements());
  python_call::def(
      m, "call_take_along_dim",
      find_op<Tensor(const Tensor&, const Tensor&, Dim, std::string_view, const Fill&)>(
          "take_along_dim"));
}

}  // namespace torch_ops
