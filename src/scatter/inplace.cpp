// The contract of scatter_add_, which adds to a tensor that there is. Its mode is for index_add,
// which reads entries from the end.
#include <ATen/Context.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/view_as_real.h>
#include <torch/library.h>

#include "common/gather_family/gather_ops.h"
#include "common/gather_family/index_mode_args.h"
#include "common/gather_family/indexing.h"
#include "common/torch/autograd.h"
#include "common/torch/batching.h"
#include "common/torch/inplace.h"
#include "scatter/scatter.h"

namespace torch_ops {
namespace {

using at::Tensor;
using autograd::SavedVariable;
using autograd::variable_list;
using ops::Dim;

constexpr const char* kOp = "scatter_add_";

const auto& inplace_op() {
  static const auto op =
      find_op<Tensor&(Tensor&, const Tensor&, const Tensor&, Dim, int64_t, std::string_view)>(
          "scatter_add_");
  return op;
}

// What is added to `out`, as a tensor of its own.
Tensor sums_for(const Tensor& out, const Tensor& values, const Tensor& index, int64_t dim,
                int64_t batch_dims, std::string_view mode) {
  static const indexing::ModesOf modes(kOp);
  return ops::scatter_add().call(values, index, out.sym_size(dim), dim, batch_dims, std::nullopt,
                                 modes(mode));
}

// Torch adds no uint16, uint32 and uint64; of as many bits, their sums are those of signed
// integers.
Tensor plus(const Tensor& out, const Tensor& sums) {
  const at::ScalarType dtype = out.scalar_type(), added = as_dispatched(dtype);
  return added == dtype ? out + sums : (out.view(added) + sums.view(added)).view(dtype);
}

// ---- CPU, CUDA and Meta kernels -----------------------------------------------------------------

struct Call {
  indexing::Axes axes;
  IndexMode mode;
  const char* op;  // in whose name errors are raised
};

Call check(const Tensor& out, const Tensor& values, const Tensor& index, Dim dim,
           int64_t batch_dims, std::string_view mode) {
  const auto [parsed, op] = indexing::parse_named_mode(kOp, mode);
  check_summable(op, values);
  TORCH_CHECK_TYPE(out.scalar_type() == values.scalar_type(), op,
                   ": out and values must have one dtype, but out is ",
                   dtype_name(out.scalar_type()), " and values is ",
                   dtype_name(values.scalar_type()), ".");
  TORCH_CHECK(out.device() == values.device(), op,
              ": out and values must be on one device, but out is on ", out.device(),
              " and values is on ", values.device(), ".");
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

// Can values be added to what there is? Not where sums that grow in it would be rounded, or added
// in any order, and must not.
bool adds_to_out(const Tensor& out) {
  const at::ScalarType real = c10::toRealValueType(out.scalar_type());
  if (out.is_cpu()) return true;  // 16-bit floats are rounded when all is added
  return sum_type(real) == as_dispatched(real) && !at::globalContext().deterministicAlgorithms();
}

// `out` or, where its elements are apart or do not begin where CUDA may add vectors, a copy.
Tensor dense(const Tensor& out) {
  const uintptr_t alignment = out.is_cpu() ? out.element_size() : 16;
  const auto address = reinterpret_cast<uintptr_t>(out.const_data_ptr());
  return out.is_contiguous() && address % alignment == 0 ? out
                                                         : out.clone(at::MemoryFormat::Contiguous);
}

template <class On>
Tensor& scatter_add_(Tensor& out, const Tensor& values, const Tensor& index, Dim dim,
                     int64_t batch_dims, std::string_view mode) {
  const Call call = check(out, values, index, dim, batch_dims, mode);
  at::assert_no_internal_overlap(out);
  at::assert_no_overlap(out, values);
  if (!adds_to_out(out)) {
    const Tensor sums = sums_for(out, values, index, call.axes.dim, batch_dims, mode);
    const at::ScalarType added = as_dispatched(out.scalar_type());  // torch adds no uint16
    out.view(added).add_(sums.view(added));
    return out;
  }
  const Tensor sums = dense(out);
  Tensor entries = index;
  if (at::get_overlap_status(out, index) != at::MemOverlapStatus::No &&
      out.storage().is_alias_of(index.storage())) {
    entries = index.clone();  // else an entry may be read that has been added to
  }
  auto sizes = out.sizes().vec();
  if (out.is_complex()) sizes.push_back(2);  // two real numbers side by side
  const RowLayout layout = indexing::lay_out_contiguous(sizes, entries, call.axes);
  const auto as_real = [](const Tensor& tensor) {
    const Tensor real = tensor.is_complex() ? at::view_as_real(tensor) : tensor;
    return real.view(as_dispatched(real.scalar_type()));
  };
  const Tensor rows = as_real(values.contiguous()), to = as_real(sums);
  const IndexRule rule(call.mode, layout.axis_size);
  call_indexed<On>(call.op, entries, layout, call.mode, to, [&](auto on, const auto&... errors) {
    return dispatch_summed(rows.scalar_type(), [&](auto zero) {
      using Value = decltype(zero);
      using Result = std::conditional_t<std::is_same_v<On, OnCpu>, Value, SumOf<Value>>;
      return kernels::scatter_add_to<Value>(
          on, reduce_call<Value, Result>(rows, entries, layout, rule, to), errors...);
    });
  });
  if (!sums.is_same(out)) out.copy_(sums);
  return out;
}

Tensor& scatter_add__meta(Tensor& out, const Tensor& values, const Tensor& index, Dim dim,
                          int64_t batch_dims, std::string_view mode) {
  check(out, values, index, dim, batch_dims, mode);
  return out;
}

// ---- Derivative ---------------------------------------------------------------------------------

struct ScatterAddInplaceNode final : autograd::DerivativeNode<ScatterAddInplaceNode> {
  static constexpr const char* kName = "ScatterAddInplaceBackward";
  SavedVariable index;
  int64_t dim = 0;
  int64_t batch_dims = 0;
  int64_t mode = 0;

  template <class Visit>
  void fields(Visit&& visit) {
    visit(index);
    visit(dim);
    visit(batch_dims);
    visit(mode);
  }

  variable_list backward(const Tensor& grad_output) {
    variable_list grads(2);
    if (needs_input_grad(0)) grads[0] = grad_output;
    if (needs_input_grad(1)) {
      const auto name = indexing::mode_name(mode);
      grads[1] =
          ops::gather().call(grad_output, unpack(index), dim, batch_dims, name, ops::nothing(name));
    }
    return grads;
  }
};

Tensor& scatter_add__autograd(c10::DispatchKeySet keys, Tensor& out, const Tensor& values,
                              const Tensor& index, Dim dim, int64_t batch_dims,
                              std::string_view mode) {
  torch::autograd::check_inplace(out, torch::autograd::compute_requires_grad(out, values));
  const int64_t axis =
      indexing::resolve_axes(kOp, "out", out.dim(), index.dim(), dim, batch_dims).dim;
  const auto node = autograd::make_node<ScatterAddInplaceNode>(out, values);
  autograd::below_autograd(keys, inplace_op(), out, values, index, dim, batch_dims, mode);
  if (node) {
    torch::autograd::rebase_history(out, node);
    node->index = SavedVariable(index, /*is_output=*/false);
    node->dim = axis;
    node->batch_dims = batch_dims;
    const IndexMode parsed = indexing::parse_mode(kOp, mode);
    // What names no row was an error; the gradient need not look for it once more.
    node->mode = static_cast<int64_t>(parsed == IndexMode::kFromEnd ? IndexMode::kFill : parsed);
  }
  if (torch::autograd::isFwGradDefined(values)) {
    const Tensor added = sums_for(out, values._fw_grad(/*level=*/0), index, axis, batch_dims, mode);
    const bool had_one = torch::autograd::isFwGradDefined(out);
    // In place, so that the tangents of views of `out` follow.
    const Tensor tangent = had_one ? out._fw_grad(/*level=*/0).add_(added) : added;
    out._set_fw_grad(tangent, /*level=*/0, /*is_inplace_op=*/true);
  }
  return out;
}

Tensor& scatter_add__version(c10::DispatchKeySet keys, Tensor& out, const Tensor& values,
                             const Tensor& index, Dim dim, int64_t batch_dims,
                             std::string_view mode) {
  return inplace::bump_version(keys, inplace_op(), out, values, index, dim, batch_dims, mode);
}

Tensor& scatter_add__functionalize(Tensor& out, const Tensor& values, const Tensor& index, Dim dim,
                                   int64_t batch_dims, std::string_view mode) {
  return inplace::functionalize_call(
      [&](Tensor& to, const Tensor& from, const Tensor& picks) {
        inplace_op().call(to, from, picks, dim, batch_dims, mode);
      },
      [&](const Tensor& before, const Tensor& from, const Tensor& picks) {
        const int64_t axis = check(before, from, picks, dim, batch_dims, mode).axes.dim;
        return plus(before, sums_for(before, from, picks, axis, batch_dims, mode));
      },
      out, values, index);
}

// ---- torch.vmap ---------------------------------------------------------------------------------

// As for scatter_add. Samples that add to one `out` in turn are no batch.
Tensor& scatter_add__batched(Tensor& out, const Tensor& values, const Tensor& index, Dim dim,
                             int64_t batch_dims, std::string_view mode) {
  using batching::Batched;
  batching::apply(
      [&](const Batched& sums, const Batched& rows, const Batched& picks) -> Batched {
        TORCH_CHECK(sums.axis || !(rows.axis || picks.axis),
                    "scatter_add_: torch.vmap cannot map over values or index where out is one "
                    "for all samples. Give it out.expand(...).clone(), or call scatter_add.");
        Tensor to = sums.value;
        if (!sums.axis) {
          inplace_op().call(to, rows.value, picks.value, dim, batch_dims, mode);
          return sums;
        }
        const int64_t axis =
            indexing::resolve_axes(kOp, "out", to.dim() - 1,
                                   picks.value.dim() - (picks.axis ? 1 : 0), dim, batch_dims)
                .dim;
        // An axis hidden in the index too is a batch axis, and else an outer one.
        const int64_t place = picks.axis ? 0 : batch_dims;
        to = sums.at(place);
        inplace_op().call(to, rows.expanded_at(place, sums.size()),
                          picks.axis ? picks.at(0) : picks.value, axis + 1,
                          batch_dims + (picks.axis ? 1 : 0), mode);
        return sums;
      },
      out, values, index);
  return out;
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(torch_ops, m) {
  m.def(
      "scatter_add_(Tensor(a!) out, Tensor values, Tensor index, int? dim=None, *, "
      "int batch_dims=0, str mode='raise') -> Tensor(a!)",
      {at::Tag::pt2_compliant_tag});
}

TORCH_LIBRARY_IMPL(torch_ops, CPU, m) { m.impl("scatter_add_", scatter_add_<OnCpu>); }

TORCH_LIBRARY_IMPL(torch_ops, CUDA, m) { m.impl("scatter_add_", scatter_add_<OnCuda>); }

TORCH_LIBRARY_IMPL(torch_ops, Meta, m) { m.impl("scatter_add_", scatter_add__meta); }

TORCH_LIBRARY_IMPL(torch_ops, Autograd, m) { m.impl("scatter_add_", scatter_add__autograd); }

TORCH_LIBRARY_IMPL(torch_ops, FuncTorchBatched, m) { m.impl("scatter_add_", scatter_add__batched); }

TORCH_LIBRARY_IMPL(torch_ops, ADInplaceOrView, m) { m.impl("scatter_add_", scatter_add__version); }

TORCH_LIBRARY_IMPL(torch_ops, Functionalize, m) {
  m.impl("scatter_add_", scatter_add__functionalize);
}

}  // namespace torch_ops
