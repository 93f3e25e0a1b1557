// The contract of scatter_add: schema, checks, allocation, derivative, binding.
#include "scatter/scatter.h"

#include <ATen/Context.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/view_as_complex.h>
#include <ATen/ops/view_as_real.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/library.h>

#include <map>
#include <string>

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
#include "scatter/batching.h"
#include "scatter/cpu/blocking.h"
#include "scatter/explain.h"
#include "scatter/scatter_ops.h"

namespace torch_ops {
namespace {

using at::Tensor;
using autograd::SavedVariable;
using autograd::variable_list;

// The two ops, which differ in what they return of 16-bit floats: sums rounded to these, or in
// float32.
struct Rounded {
  static constexpr bool kRounds = true;
  static constexpr const char* kOp = "scatter_add";
  static const auto& op() { return ops::scatter_add(); }
};
struct Unrounded {
  static constexpr bool kRounds = false;
  static constexpr const char* kOp = "_scatter_sum";
  static const auto& op() { return ops::scatter_sum(); }
};

template <class Sums>
at::ScalarType dtype_of_sums(at::ScalarType values) {
  return Sums::kRounds || !at::isReducedFloatingType(values) ? values : at::kFloat;
}

template <class Sums>
struct ByPlan {
  static constexpr const char* kName = "scatter_add";
  static constexpr const char* kNodeName = "ScatterAddByPlanBackward";
  static const planned::Op& self() {
    static const auto op = planned::find(Sums::kOp);
    return op;
  }
  static const planned::Op& transpose() {
    static const auto op = planned::find("gather");
    return op;
  }
};

// ---- CPU, CUDA and Meta kernels -----------------------------------------------------------------

struct Call {
  indexing::Axes axes;
  IndexMode mode;
  const char* op;  // in whose name errors are raised
};

Call check(const Tensor& values, const Tensor& index, const c10::SymInt& dim_size,
           std::optional<int64_t> dim, int64_t batch_dims, std::string_view mode) {
  const auto [parsed, op] = indexing::parse_named_mode("scatter_add", mode);
  check_summable(op, values);
  return {indexing::check_scatter(op, values, index, dim_size, dim, batch_dims), parsed, op};
}

// The sums of a call that was checked. `plan` may be null; on CUDA it has floats summed in order.
// Without a word from the caller the global flag says whether bits must be the same on every run.
template <class Sums, class On>
Tensor sum(const Tensor& values, const Tensor& index, const c10::SymInt& dim_size, const Call& call,
           std::optional<bool> deterministic, const Plan* plan) {
  auto sizes =
      C10_AS_INTARRAYREF_SLOW(indexing::scatter_sizes(values, index, dim_size, call.axes)).vec();

  // A complex number is two real ones side by side: the innermost axis twice as long.
  const bool complex = values.is_complex();
  const Tensor rows = (complex ? at::view_as_real(values) : values).contiguous();
  if (complex) sizes.push_back(2);
  const at::ScalarType real = rows.scalar_type();
  const at::ScalarType dtype = complex ? real : dtype_of_sums<Sums>(real);
  Tensor entries = index;
  const RowLayout layout = indexing::lay_out_contiguous(sizes, entries, call.axes);
  const IndexRule rule(call.mode, layout.axis_size);
  const bool repeatable = deterministic.value_or(at::globalContext().deterministicAlgorithms());
  const Tensor result = new_output(sizes, rows.options().dtype(dtype));
  call_indexed<On>(
      call.op, entries, layout, call.mode, result, [&](auto on, const auto&... errors) {
        return dispatch_summed(real, [&](auto zero) {
          using Value = decltype(zero);
          using Result =
              std::conditional_t<Sums::kRounds || sizeof(Value) != 2 || std::is_integral_v<Value>,
                                 Value, SumOf<Value>>;
          const auto sums = reduce_call<Value, Result>(rows, entries, layout, rule, result, plan);
          if constexpr (std::is_same_v<On, OnCpu>) {
            return kernels::scatter_add(on, sums);
          } else {
            return kernels::scatter_add(on, sums, repeatable, errors...);
          }
        });
      });
  return complex ? at::view_as_complex(result) : result;
}

template <class Sums, class On>
Tensor scatter_add(const Tensor& values, const Tensor& index, c10::SymInt dim_size,
                   std::optional<int64_t> dim, int64_t batch_dims,
                   std::optional<bool> deterministic, std::string_view mode) {
  return sum<Sums, On>(values, index, dim_size,
                       check(values, index, dim_size, dim, batch_dims, mode), deterministic,
                       /*plan=*/nullptr);
}

template <class Sums>
Tensor scatter_add_meta(const Tensor& values, const Tensor& index, c10::SymInt dim_size,
                        std::optional<int64_t> dim, int64_t batch_dims,
                        std::optional<bool> /*deterministic*/, std::string_view mode) {
  const Call call = check(values, index, dim_size, dim, batch_dims, mode);
  return at::empty_symint(indexing::scatter_sizes(values, index, dim_size, call.axes),
                          values.options().dtype(dtype_of_sums<Sums>(values.scalar_type())));
}

template <class Sums, class On>
Tensor scatter_add_by_plan(const Tensor& values, const Tensor& index, const Tensor& rows,
                           const Tensor& order, c10::SymInt dim_size, int64_t dim,
                           int64_t batch_dims) {
  indexing::check_plan("scatter_add", "values", values, index, rows, order);
  const Call call = check(values, index, dim_size, dim, batch_dims, "raise");
  const Plan plan{rows.contiguous(), order.contiguous()};
  return sum<Sums, On>(values, index, dim_size, call, /*deterministic=*/true, &plan);
}

template <class Sums>
Tensor scatter_add_by_plan_meta(const Tensor& values, const Tensor& index, const Tensor& rows,
                                const Tensor& order, c10::SymInt dim_size, int64_t dim,
                                int64_t batch_dims) {
  indexing::check_plan("scatter_add", "values", values, index, rows, order);
  return scatter_add_meta<Sums>(values, index, dim_size, dim, batch_dims, std::nullopt, "raise");
}

// ---- Derivative ---------------------------------------------------------------------------------

// The transpose: values that were dropped get zeros.
Tensor gather_back(const Tensor& grad_output, const Tensor& index, int64_t dim, int64_t batch_dims,
                   std::string_view mode) {
  return ops::gather().call(grad_output, index, dim, batch_dims, mode, ops::nothing(mode));
}

struct ScatterAddNode final : autograd::DerivativeNode<ScatterAddNode> {
  static constexpr const char* kName = "ScatterAddBackward";
  SavedVariable index;
  int64_t dim = 0;
  int64_t batch_dims = 0;
  int64_t mode = 0;
  int64_t dtype = 0;  // of the values

  template <class Visit>
  void fields(Visit&& visit) {
    visit(index);
    visit(dim);
    visit(batch_dims);
    visit(mode);
    visit(dtype);
  }

  variable_list backward(const Tensor& grad_output) {
    return {gather_back(grad_output.to(static_cast<at::ScalarType>(dtype)), unpack(index), dim,
                        batch_dims, indexing::mode_name(mode))};
  }
};

template <class Sums>
Tensor scatter_add_autograd(c10::DispatchKeySet keys, const Tensor& values, const Tensor& index,
                            c10::SymInt dim_size, std::optional<int64_t> dim, int64_t batch_dims,
                            std::optional<bool> deterministic, std::string_view mode) {
  const auto node = autograd::make_node<ScatterAddNode>(values);
  Tensor output = autograd::below_autograd(keys, Sums::op(), values, index, dim_size, dim,
                                           batch_dims, deterministic, mode);
  autograd::record(output, node);
  autograd::set_tangent(
      output,
      [&](const Tensor& tangent) {
        return Sums::op().call(tangent, index, dim_size, dim, batch_dims, deterministic, mode);
      },
      values);
  if (node) {
    node->index = SavedVariable(index, /*is_output=*/false);
    node->dim = resolve_result_dim("scatter_add", values.dim(), index.dim(), dim, batch_dims);
    node->batch_dims = batch_dims;
    node->mode = static_cast<int64_t>(indexing::parse_mode("scatter_add", mode));
    node->dtype = static_cast<int64_t>(values.scalar_type());
  }
  return output;
}

// ---- torch.vmap ---------------------------------------------------------------------------------

template <class Sums>
Tensor scatter_add_batched(const Tensor& values, const Tensor& index, c10::SymInt dim_size,
                           std::optional<int64_t> dim, int64_t batch_dims,
                           std::optional<bool> deterministic, std::string_view mode) {
  return batch_scatter("scatter_add", values, index, dim, batch_dims,
                       [&](const Tensor& v, const Tensor& i, ops::Dim axis, int64_t batches) {
                         return Sums::op().call(v, i, dim_size, axis, batches, deterministic, mode);
                       });
}

// ---- The direct pair: outside autograd, on contiguous CUDA tensors ------------------------------

Tensor forward(const Tensor& values, const Tensor& index, int64_t dim_size, int64_t dim,
               int64_t batch_dims) {
  CHECK_INPUT(values);
  CHECK_INPUT(index);
  return scatter_add<Rounded, OnCuda>(values, index, dim_size, dim, batch_dims, std::nullopt,
                                      "raise");
}

Tensor backward(const Tensor& grad_output, const Tensor& index, int64_t dim, int64_t batch_dims) {
  CHECK_INPUT(grad_output);
  CHECK_INPUT(index);
  at::AutoDispatchBelowADInplaceOrView guard;
  return gather_back(grad_output, index, dim, batch_dims, "raise");
}

// What choose_cpu_blocking says: for the tests.
std::map<std::string, int64_t> cpu_blocking(int64_t slabs, int64_t entries, int64_t axis_size,
                                            int64_t inner, int64_t sum_bytes, int64_t threads,
                                            bool onto) {
  RowLayout layout{};
  layout.batch = slabs;
  layout.outer = 1;
  layout.entries = entries;
  layout.axis_size = axis_size;
  layout.inner = inner;
  const CpuBlocking blocking = choose_cpu_blocking(layout, sum_bytes, threads, onto);
  return {{"block_rows", blocking.block_rows()},
          {"blocks", blocking.blocks},
          {"columns", blocking.columns},
          {"tile_entries", blocking.tile_entries},
          {"piece_entries", blocking.piece_entries}};
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(torch_ops, m) {
  const auto def = [&](std::string name, const char* signature) {
    m.def((name + signature).c_str(), {at::Tag::pt2_compliant_tag});
  };
  for (const char* op : {Rounded::kOp, Unrounded::kOp}) {
    def(op,
        "(Tensor values, Tensor index, SymInt dim_size, int? dim=None, *, int batch_dims=0, "
        "bool? deterministic=None, str mode='raise') -> Tensor");
    def(op,
        ".plan(Tensor values, Tensor index, Tensor rows, Tensor order, SymInt dim_size, int dim, "
        "int batch_dims) -> Tensor");
  }
}

TORCH_LIBRARY_IMPL(torch_ops, CPU, m) {
  m.impl("scatter_add", scatter_add<Rounded, OnCpu>);
  m.impl("scatter_add.plan", scatter_add_by_plan<Rounded, OnCpu>);
  m.impl("_scatter_sum", scatter_add<Unrounded, OnCpu>);
  m.impl("_scatter_sum.plan", scatter_add_by_plan<Unrounded, OnCpu>);
}

TORCH_LIBRARY_IMPL(torch_ops, CUDA, m) {
  m.impl("scatter_add", scatter_add<Rounded, OnCuda>);
  m.impl("scatter_add.plan", scatter_add_by_plan<Rounded, OnCuda>);
  m.impl("_scatter_sum", scatter_add<Unrounded, OnCuda>);
  m.impl("_scatter_sum.plan", scatter_add_by_plan<Unrounded, OnCuda>);
}

TORCH_LIBRARY_IMPL(torch_ops, Meta, m) {
  m.impl("scatter_add", scatter_add_meta<Rounded>);
  m.impl("scatter_add.plan", scatter_add_by_plan_meta<Rounded>);
  m.impl("_scatter_sum", scatter_add_meta<Unrounded>);
  m.impl("_scatter_sum.plan", scatter_add_by_plan_meta<Unrounded>);
}

TORCH_LIBRARY_IMPL(torch_ops, Autograd, m) {
  m.impl("scatter_add", scatter_add_autograd<Rounded>);
  m.impl("scatter_add.plan", planned::derive<ByPlan<Rounded>>);
  m.impl("_scatter_sum", scatter_add_autograd<Unrounded>);
  m.impl("_scatter_sum.plan", planned::derive<ByPlan<Unrounded>>);
}

TORCH_LIBRARY_IMPL(torch_ops, FuncTorchBatched, m) {
  m.impl("scatter_add", scatter_add_batched<Rounded>);
  m.impl("scatter_add.plan", planned::batch<ByPlan<Rounded>>);
  m.impl("_scatter_sum", scatter_add_batched<Unrounded>);
  m.impl("_scatter_sum.plan", planned::batch<ByPlan<Unrounded>>);
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.doc() = "The direct kernels of scatter_add, on contiguous CUDA tensors and outside autograd.";
  m.def("forward", &forward, "values added into dim_size rows along dim, where index says",
        py::arg("values"), py::arg("index"), py::arg("dim_size"), py::arg("dim") = 0,
        py::arg("batch_dims") = 0);
  m.def("backward", &backward, "The rows of grad_output that forward added to",
        py::arg("grad_output"), py::arg("index"), py::arg("dim") = 0, py::arg("batch_dims") = 0);
  def_explain(m);
  m.def("cpu_blocking", &cpu_blocking, "How a call of these sizes is cut on the CPU",
        py::arg("slabs"), py::arg("entries"), py::arg("axis_size"), py::arg("inner"),
        py::arg("sum_bytes"), py::arg("threads"), py::arg("onto") = false);
  using ops::Dim;
  python_call::def(m, "call", ops::scatter_add());
  python_call::def(m, "call_by_plan", ByPlan<Rounded>::self());
  python_call::def(m, "call_elements", ops::scatter_elements_add());
  python_call::def(
      m, "call_reduce",
      find_op<Tensor(const Tensor&, const Tensor&, c10::SymInt, Dim, int64_t, std::string_view,
                     std::string_view, std::optional<bool>)>("scatter"));
  python_call::def(
      m, "call_reduce_by_plan",
      find_op<Tensor(const Tensor&, const Tensor&, const Tensor&, const Tensor&, c10::SymInt,
                     int64_t, int64_t, std::string_view)>("scatter", "plan"));
  python_call::def(
      m, "call_inplace",
      find_op<Tensor&(Tensor&, const Tensor&, const Tensor&, Dim, int64_t, std::string_view)>(
          "scatter_add_"));
}

}  // namespace torch_ops
