// The contract of scatter_elements_add: schema, checks, allocation, derivative.
#include <ATen/Context.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/view_as_complex.h>
#include <ATen/ops/view_as_real.h>
#include <ATen/ops/zeros.h>
#include <c10/util/accumulate.h>
#include <c10/util/strides.h>

#include "common/gather_family/elements.h"
#include "common/gather_family/gather_ops.h"
#include "common/gather_family/index_mode_args.h"
#include "common/torch/calls/new_output.h"
#include "common/torch/registration/derive.h"
#include "scatter/scatter.h"
#include "scatter/sum/choose.h"

namespace torch_ops {
namespace {

using at::Tensor;

constexpr const char* kElementsOp = "scatter_elements_add";

// Returns dim counted from the front.
int64_t check(const Tensor& values, const Tensor& index, c10::SymIntArrayRef size, int64_t dim) {
  check_summable(kElementsOp, values);
  check_one_device(kElementsOp, "values", values, "index", index);
  for (const c10::SymInt& length : size) {
    TORCH_CHECK_VALUE(length.sym_ge(0).expect_true(__FILE__, __LINE__), kElementsOp,
                      ": size must not be negative, but it is ", size, ".");
  }
  const int64_t axis = elements::check_table(kElementsOp, "the result", size, index, dim);
  const auto picks = index.sym_sizes(), given = values.sym_sizes();
  TORCH_CHECK_VALUE(elements::rank_of(picks) == elements::rank_of(given), kElementsOp,
                    ": values and index must have the same number of axes, but their shapes are ",
                    given, " and ", picks, ".");
  for (size_t d = 0; d < picks.size() && d < given.size(); ++d) {
    TORCH_CHECK_VALUE(picks[d].sym_le(given[d]).expect_true(__FILE__, __LINE__), kElementsOp,
                      ": index with shape ", picks, " must not be longer than values with shape ",
                      given, ", but it is on axis ", d, ".");
  }
  return axis;
}

// A call in which the kernels see real numbers and at least one axis.
struct Pieces {
  Tensor values;
  Tensor index;
  std::vector<int64_t> size;
};

Pieces prepare(const Tensor& values, const Tensor& index, at::IntArrayRef size) {
  Pieces pieces{elements::at_least_1d(values), indexing::for_kernels(elements::at_least_1d(index)),
                size.vec()};
  if (size.empty()) pieces.size = {1};
  // Here the axis does not matter: values have the index's length there too.
  pieces.values = elements::cut_to(pieces.values, pieces.index.sizes(), /*axis=*/-1);
  if (values.is_complex()) {
    // Two adjacent real numbers, with one entry.
    auto picks = pieces.index.sizes().vec();
    picks.push_back(2);
    pieces.values = at::view_as_real(pieces.values);
    pieces.index = pieces.index.unsqueeze(-1).expand(picks);
    pieces.size.push_back(2);
  }
  return pieces;
}

// Whole rows: scatter_add of them. Nothing if it is not such a call.
std::optional<Tensor> add_rows(const Pieces& call, int64_t axis, std::optional<bool> deterministic,
                               std::string_view mode) {
  const auto rows = elements::as_rows(call.index, axis);
  if (!rows) return std::nullopt;
  for (int64_t d = 0; d < call.index.dim(); ++d) {
    if (d != axis && call.size[d] != call.index.size(d)) return std::nullopt;
  }
  Tensor entries = rows->index;
  for (int64_t d = entries.dim() - 1; d >= rows->batch_dims; --d) {
    if (d != axis) entries = entries.squeeze(d);
  }
  return ops::scatter_add().call(call.values, entries, call.size[axis], axis, rows->batch_dims,
                                 deterministic, mode, kElementsOp);
}

// On CUDA, in a fixed order or where few elements are added: every entry's place in the result,
// which needs 8 bytes, and scatter_add by these places.
Tensor add_by_places(const Pieces& call, const ElementLayout& layout, const IndexRule& rule,
                     bool in_order) {
  const int64_t total = c10::multiply_integers(call.size);
  const Tensor places = new_output({layout.count}, call.index.options().dtype(at::kLong));
  call_indexed<OnCuda>(
      kElementsOp, call.index, layout, rule.mode(), places, [&](auto on, const auto&... errors) {
        kernels::find_places(on, index_array(call.index), layout, rule,
                             /*nowhere=*/total, places.mutable_data_ptr<int64_t>(), errors...);
      });
  return ops::scatter_add()
      .call(call.values.reshape({-1}), places, total, 0, 0, in_order, "fill", std::nullopt)
      .view(call.size);
}

template <class On>
Tensor add(const Tensor& values, const Tensor& index, at::IntArrayRef sizes, int64_t axis,
           std::optional<bool> deterministic, std::string_view mode, IndexMode parsed) {
  const Pieces call = prepare(values, index, sizes);
  const auto finish = [&](const Tensor& result) {
    return (values.is_complex() ? at::view_as_complex(result) : result).view(sizes);
  };
  const at::ScalarType real = call.values.scalar_type();
  if (call.index.numel() == 0) return at::zeros(sizes, values.options());
  indexing::check_axis_not_empty(kElementsOp, index, call.size[axis], parsed);
  if (call.size[axis] == 0) return at::zeros(sizes, values.options());  // all are dropped
  if (const auto rows = add_rows(call, axis, deterministic, mode)) return finish(*rows);

  const IndexRule rule(parsed, call.size[axis]);
  const ElementLayout layout = elements::lay_out(
      kElementsOp, call.size, c10::contiguous_strides(call.size), call.index, call.values, axis);
  const bool in_order = call.values.is_cuda() && call.values.is_floating_point() &&
                        deterministic.value_or(at::globalContext().deterministicAlgorithms());
  bool by_places = in_order;
  if (call.values.is_cuda() && at::isReducedFloatingType(real)) {
    with_kernels<On>(call.values, [&](auto on) {
      by_places |= pays_by_places(layout.count, c10::multiply_integers(call.size),
                                  on.program.device_limits());
    });
  }
  if (by_places) return finish(add_by_places(call, layout, rule, in_order));
  const Tensor sums = new_output(call.size, call.values.options().dtype(sum_type(real)));
  call_indexed<On>(
      kElementsOp, call.index, layout, parsed, sums, [&](auto on, const auto&... errors) {
        return dispatch_summed(real, [&](auto zero) {
          using Value = decltype(zero);
          const AlongCall<Value> elements{static_cast<const Value*>(call.values.const_data_ptr()),
                                          index_array(call.index),
                                          layout,
                                          rule,
                                          static_cast<SumOf<Value>*>(sums.mutable_data_ptr()),
                                          sums.numel()};
          return kernels::add_along(on, elements, errors...);
        });
      });
  return finish(sums.to(real));
}

struct ScatterElementsAdd {
  static constexpr const char* kSchema =
      "scatter_elements_add(Tensor values, Tensor index, SymInt[] size, int dim, *, "
      "bool? deterministic=None, str mode='raise') -> Tensor";
  static constexpr const char* kNode = "ScatterElementsAddBackward";

  template <class On>
  static Tensor kernel(const Tensor& values, const Tensor& index, c10::SymIntArrayRef size,
                       int64_t dim, std::optional<bool> deterministic, std::string_view mode) {
    const int64_t axis = check(values, index, size, dim);
    const IndexMode parsed = indexing::parse_mode(kElementsOp, mode);
    if constexpr (std::is_same_v<On, OnMeta>) {
      return at::empty_symint(size, values.options());
    } else {
      return add<On>(values, index, C10_AS_INTARRAYREF_SLOW(size), axis, deterministic, mode,
                     parsed);
    }
  }

  static auto keep(const Tensor& values, const Tensor& index, c10::SymIntArrayRef, int64_t dim,
                   std::optional<bool>, std::string_view mode) {
    return std::tuple(index, values.sym_sizes().vec(), dim,
                      static_cast<int64_t>(indexing::parse_mode(kElementsOp, mode)));
  }

  // Zeros for values that were dropped, and for those that have no entry.
  static Tensor backward(const Tensor& grad_output, const Tensor& index,
                         const std::vector<c10::SymInt>& values_size, int64_t dim, int64_t mode) {
    const auto name = indexing::mode_name(mode);
    Tensor grad = ops::gather_elements().call(grad_output, index, dim, name, ops::nothing(name),
                                              std::nullopt);
    c10::SymDimVector missing;  // on each axis, from the last one on: before, after
    bool any = false;
    for (int64_t d = grad.dim() - 1; d >= 0; --d) {
      missing.push_back(0);
      missing.push_back(values_size[d] - grad.sym_size(d));
      any = any || !TORCH_GUARD_OR_FALSE(missing.back().sym_eq(0));
    }
    return any ? at::constant_pad_nd_symint(grad, missing, 0) : grad;
  }

  // As for gather_elements: one more axis in front, also of the result.
  template <class... Rest>
  static Tensor batch(const Tensor& values, const Tensor& index, c10::SymIntArrayRef size,
                      int64_t dim, const Rest&... rest) {
    return elements::batch(
        values, index, size.empty(), [&](const Tensor& v, const Tensor& i, bool is_lifted) {
          if (!is_lifted) return ops::scatter_elements_add().call(v, i, size, dim, rest...);
          c10::SymDimVector sizes{v.sym_size(0)};
          sizes.append(size.begin(), size.end());
          if (size.empty()) sizes.push_back(1);  // a scalar counts as one axis of size 1
          return ops::scatter_elements_add().call(v, i, sizes, dim < 0 ? dim : dim + 1, rest...);
        });
  }
};

// The gradient of gather_elements from a DTensor: like _scatter_add_sharded.
struct ScatterElementsAddSharded {
  static constexpr const char* kSchema =
      "_scatter_elements_add_sharded(Tensor values, Tensor index, SymInt[] size, int dim, "
      "str mode, int[] shards) -> Tensor";
  static constexpr const char* kNode = "ScatterElementsAddShardedBackward";

  static Tensor compute(const Tensor& values, const Tensor& index, c10::SymIntArrayRef size,
                        int64_t dim, std::string_view mode, at::IntArrayRef /*shards*/) {
    return ops::scatter_elements_add().call(values, index, size, dim, std::nullopt, mode);
  }

  static auto keep(const Tensor& values, const Tensor& index, c10::SymIntArrayRef size, int64_t dim,
                   std::string_view mode, at::IntArrayRef) {
    return ScatterElementsAdd::keep(values, index, size, dim, std::nullopt, mode);
  }

  static constexpr auto backward = &ScatterElementsAdd::backward;
};

}  // namespace

TORCH_LIBRARY_FRAGMENT(torch_ops, m) {
  register_op<ScatterElementsAdd>(m);
  register_op<ScatterElementsAddSharded>(m);
}

}  // namespace torch_ops
