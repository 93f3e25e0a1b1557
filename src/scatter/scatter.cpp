// The contract of scatter_add: schema, checks, allocation, derivative, binding.
#include "scatter/scatter.h"

#include <ATen/Context.h>
#include <torch/csrc/utils/pybind.h>

#include "common/gather_family/gather_ops.h"
#include "common/gather_family/index_mode_args.h"
#include "common/gather_family/indexing.h"
#include "common/gather_family/planned.h"
#include "common/torch/calls/checks.h"
#include "common/torch/calls/python_call.h"
#include "common/torch/registration/derive.h"
#include "scatter/batching.h"
#include "scatter/explain.h"
#include "scatter/scatter_ops.h"

namespace torch_ops {
namespace {

using at::Tensor;
using ops::Dim;
using ops::Name;

// The two ops, which differ in what they return for 16-bit floats (or complex numbers of two of
// them): sums rounded to these, or in float32.
#define SUM_ARGUMENTS                                                                   \
  "(Tensor values, Tensor index, SymInt dim_size, int? dim=None, *, int batch_dims=0, " \
  "bool? deterministic=None, str mode='raise', str? name=None) -> Tensor"
#define SUM_BY_PLAN_ARGUMENTS                                                                \
  ".plan(Tensor values, Tensor index, Tensor rows, Tensor order, SymInt dim_size, int dim, " \
  "int batch_dims) -> Tensor"

SumCall check(const Tensor& values, const Tensor& index, const c10::SymInt& dim_size, Dim dim,
              int64_t batch_dims, std::string_view mode, Name name) {
  const char* const op = indexing::name_of("scatter_add", name);
  const IndexMode parsed = indexing::parse_mode(op, mode);
  check_summable(op, values);
  return {indexing::check_scatter(op, values, index, dim_size, dim, batch_dims), parsed, op};
}

// The sums of a checked call. On CUDA floats with a plan are summed in order. Unless the caller
// says it, the global flag says whether bits must be the same on every run.
template <bool kRounds, class On>
Tensor sum(const Tensor& values, const Tensor& index, const c10::SymInt& dim_size,
           const SumCall& call, std::optional<bool> deterministic,
           const std::optional<Plan>& plan = std::nullopt) {
  const at::ScalarType dtype = values.scalar_type();
  return reduce_rows<On>(
      call, values, index, dim_size, plan, kRounds ? dtype : unrounded(dtype),
      [&](auto on, const RowsCall& sums, const auto&... errors) {
        return dispatch_summed(c10::toRealValueType(dtype), [&](auto zero) {
          using Value = decltype(zero);
          using Result =
              std::conditional_t<kRounds || sizeof(Value) != 2 || std::is_integral_v<Value>, Value,
                                 SumOf<Value>>;
          if constexpr (std::is_same_v<On, OnCpu>) {
            return kernels::scatter_add(on, sums.of<Value, Result>());
          } else {
            const bool repeatable =
                deterministic.value_or(at::globalContext().deterministicAlgorithms());
            return kernels::scatter_add(on, sums.of<Value, Result>(), repeatable, errors...);
          }
        });
      });
}

template <bool kRounds>
struct ScatterAdd {
  static constexpr const char* kSchema =
      kRounds ? "scatter_add" SUM_ARGUMENTS : "_scatter_sum" SUM_ARGUMENTS;
  static constexpr const char* kNode = "ScatterAddBackward";

  template <class On>
  static Tensor kernel(const Tensor& values, const Tensor& index, c10::SymInt dim_size, Dim dim,
                       int64_t batch_dims, std::optional<bool> deterministic, std::string_view mode,
                       Name name) {
    return sum<kRounds, On>(values, index, dim_size,
                            check(values, index, dim_size, dim, batch_dims, mode, name),
                            deterministic);
  }

  static auto keep(const Tensor& values, const Tensor& index, const c10::SymInt&, Dim dim,
                   int64_t batch_dims, std::optional<bool>, std::string_view mode, Name) {
    return std::tuple(index,
                      resolve_result_dim("scatter_add", values.dim(), index.dim(), dim, batch_dims),
                      batch_dims, static_cast<int64_t>(indexing::parse_mode("scatter_add", mode)),
                      static_cast<int64_t>(values.scalar_type()));
  }

  static Tensor backward(const Tensor& grad_output, const Tensor& index, int64_t dim,
                         int64_t batch_dims, int64_t mode, int64_t dtype) {
    return ops::gather_back(grad_output.to(static_cast<at::ScalarType>(dtype)), index, dim,
                            batch_dims, indexing::mode_name(mode));
  }

  template <class... Rest>
  static Tensor batch(const Tensor& values, const Tensor& index, const c10::SymInt& dim_size,
                      Dim dim, int64_t batch_dims, const Rest&... rest) {
    return batch_scatter("scatter_add", values, index, dim, batch_dims,
                         [&](const Tensor& v, const Tensor& i, Dim axis, int64_t batches) {
                           return op_of<ScatterAdd>().call(v, i, dim_size, axis, batches, rest...);
                         });
  }
};

// The gradient of a gather from a DTensor, whose axes are to be distributed as `shards` says. It is
// scatter_add for all other tensors, which have no such axes.
struct ScatterAddSharded {
  static constexpr const char* kSchema =
      "_scatter_add_sharded(Tensor values, Tensor index, SymInt dim_size, int dim, int batch_dims, "
      "bool? deterministic, str mode, int[] shards, str? name=None) -> Tensor";
  static constexpr const char* kNode = "ScatterAddShardedBackward";

  static Tensor compute(const Tensor& values, const Tensor& index, c10::SymInt dim_size,
                        int64_t dim, int64_t batch_dims, std::optional<bool> deterministic,
                        std::string_view mode, at::IntArrayRef /*shards*/, Name name) {
    return ops::scatter_add().call(values, index, dim_size, dim, batch_dims, deterministic, mode,
                                   name);
  }

  static auto keep(const Tensor& values, const Tensor& index, const c10::SymInt& dim_size,
                   int64_t dim, int64_t batch_dims, std::optional<bool> deterministic,
                   std::string_view mode, at::IntArrayRef, Name name) {
    return ScatterAdd<true>::keep(values, index, dim_size, dim, batch_dims, deterministic, mode,
                                  name);
  }

  static constexpr auto backward = &ScatterAdd<true>::backward;
};

template <bool kRounds>
struct ScatterAddByPlan : planned::Op<ScatterAddByPlan<kRounds>> {
  static constexpr const char* kSchema =
      kRounds ? "scatter_add" SUM_BY_PLAN_ARGUMENTS : "_scatter_sum" SUM_BY_PLAN_ARGUMENTS;
  static constexpr const char* kName = "scatter_add";
  static constexpr const char* kNode = "ScatterAddByPlanBackward";
  static constexpr const char* kTranspose = "gather.plan";

  template <class On>
  static Tensor kernel(const Tensor& values, const Tensor& index, const Tensor& rows,
                       const Tensor& order, c10::SymInt dim_size, int64_t dim, int64_t batch_dims) {
    indexing::check_plan(kName, "values", values, index, rows, order);
    const SumCall call = check(values, index, dim_size, dim, batch_dims, "raise", std::nullopt);
    return sum<kRounds, On>(values, index, dim_size, call, /*deterministic=*/true,
                            Plan{rows, order});
  }
};

// ---- The direct pair: outside autograd, on contiguous CUDA tensors ------------------------------

Tensor forward(const Tensor& values, const Tensor& index, int64_t dim_size, int64_t dim,
               int64_t batch_dims) {
  CHECK_INPUT(values);
  CHECK_INPUT(index);
  return ScatterAdd<true>::kernel<OnCuda>(values, index, dim_size, dim, batch_dims, std::nullopt,
                                          "raise", std::nullopt);
}

Tensor backward(const Tensor& grad_output, const Tensor& index, int64_t dim, int64_t batch_dims) {
  CHECK_INPUT(grad_output);
  CHECK_INPUT(index);
  at::AutoDispatchBelowADInplaceOrView guard;
  return ops::gather_back(grad_output, index, dim, batch_dims, "raise");
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(torch_ops, m) {
  register_op<ScatterAdd<true>>(m);
  register_op<ScatterAddByPlan<true>>(m);
  register_op<ScatterAddSharded>(m);
  register_op<ScatterAdd<false>>(m);
  register_op<ScatterAddByPlan<false>>(m);
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.doc() = "The direct kernels of scatter_add, on contiguous CUDA tensors and outside autograd.";
  autograd::name_nodes_in_python();
  m.def("forward", &forward, "values added into dim_size rows along dim, where index says",
        py::arg("values"), py::arg("index"), py::arg("dim_size"), py::arg("dim") = 0,
        py::arg("batch_dims") = 0);
  m.def("backward", &backward, "The rows of grad_output that forward added to",
        py::arg("grad_output"), py::arg("index"), py::arg("dim") = 0, py::arg("batch_dims") = 0);
  def_explain(m);
  python_call::def(m, "call", ops::scatter_add());
  python_call::def(m, "call_by_plan", op_of<ScatterAddByPlan<true>>());
  python_call::def(m, "call_elements", ops::scatter_elements_add());
  python_call::def(m, "call_reduce", ops::scatter());
  python_call::def(m, "call_reduce_by_plan", ops::scatter_by_plan());
  python_call::def(m, "call_inplace", ops::scatter_add_());
  python_call::def(
      m, "call_reduce_inplace",
      find_op<Tensor&(Tensor&, const Tensor&, const Tensor&, Dim, int64_t, std::string_view, bool)>(
          "scatter_"));
}

}  // namespace torch_ops
