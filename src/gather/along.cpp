// The contract of gather_elements and take_along_dim: schemas, checks, allocation, derivative.
#include <ATen/ExpandUtils.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "common/gather_family/elements.h"
#include "common/gather_family/gather_ops.h"
#include "common/gather_family/index_mode_args.h"
#include "common/torch/autograd.h"
#include "common/torch/batching.h"
#include "common/torch/new_output.h"
#include "gather/gather.h"

namespace torch_ops {
namespace {

using at::Tensor;
using autograd::SavedVariable;
using autograd::variable_list;
using ops::Fill;

// ---- CPU, CUDA and Meta kernels -----------------------------------------------------------------

struct Call {
  int64_t axis;
  IndexMode mode;
  const char* op;  // in whose name errors are raised
};

Call check(const Tensor& source, const Tensor& index, int64_t dim, std::string_view mode,
           const Fill& fill_value) {
  const auto [parsed, op] = indexing::parse_named_mode("gather_elements", mode);
  TORCH_CHECK(source.device() == index.device(), op,
              ": source and index must be on one device, but source is on ", source.device(),
              " and index is on ", index.device(), ".");
  const int64_t axis = elements::check_table(op, "source", source.sym_sizes(), index, dim);
  indexing::check_fill_value(op, parsed, fill_value, source.scalar_type());
  return {axis, parsed, op};
}

template <class On>
Tensor gather_elements(const Tensor& source, const Tensor& index, int64_t dim,
                       std::string_view mode, const Fill& fill_value) {
  const auto [axis, parsed, op] = check(source, index, dim, mode, fill_value);
  Tensor output = new_output(index.sizes(), source.options());
  const GatherPolicy policy =
      make_policy(parsed, source.dim() > 0 ? source.size(axis) : 1, fill_value, source);
  if (index.numel() == 0) {  // of any rank
    launch_gather<On>(op, source, index, ElementLayout{}, policy, output);
    return output;
  }
  if (fill_empty_axis(policy, output)) return output;
  const Tensor entries = elements::at_least_1d(index);
  const Tensor table =
      aligned(elements::cut_to(elements::at_least_1d(source), entries.sizes(), axis));
  if (const auto rows = elements::as_rows(entries, axis)) {
    if (const auto layout = elements::lay_out_rows(table, *rows, axis)) {
      launch_gather<On>(op, table, rows->index, *layout, policy, output);
      return output;
    }
  }
  const Tensor picked = elements::at_least_1d(output);
  launch_gather<On>(op, table, entries,
                    elements::lay_out(op, table.sizes(), table.strides(), entries, picked, axis),
                    policy, picked);
  return output;
}

Tensor gather_elements_meta(const Tensor& source, const Tensor& index, int64_t dim,
                            std::string_view mode, const Fill& fill_value) {
  check(source, index, dim, mode, fill_value);
  return at::empty_symint(index.sym_sizes(), source.options());
}

// ---- take_along_dim: a composition --------------------------------------------------------------

// Axes of length 1 are as long as the other tensor's; nothing is copied for that. Negative entries
// count from the end by default, as in torch and NumPy.
Tensor take_along_dim(const Tensor& source, const Tensor& index, std::optional<int64_t> dim,
                      std::string_view mode, const Fill& fill_value) {
  static const indexing::ModesOf modes("take_along_dim");
  const std::string_view named = modes(mode == "raise" ? "from_end" : mode);
  if (!dim) {
    return ops::gather_elements().call(source.reshape({-1}), index.reshape({-1}), 0, named,
                                       fill_value);
  }
  TORCH_CHECK_VALUE(
      source.dim() == index.dim(),
      "take_along_dim: source and index must have the same number of axes, but their shapes are ",
      source.sym_sizes(), " and ", index.sym_sizes(), ".");
  const int64_t axis = elements::resolve_dim("take_along_dim", "source",
                                             elements::rank_of(source.sym_sizes()), *dim);
  if (source.dim() == 0) return ops::gather_elements().call(source, index, 0, named, fill_value);
  c10::SymDimVector from(source.sym_sizes().begin(), source.sym_sizes().end());
  c10::SymDimVector picks(index.sym_sizes().begin(), index.sym_sizes().end());
  bool source_grows = false, index_grows = false;
  for (int64_t d = 0; d < source.dim(); ++d) {
    if (d == axis || TORCH_GUARD_OR_FALSE(from[d].sym_eq(picks[d]))) continue;
    if (TORCH_GUARD_OR_FALSE(from[d].sym_eq(1))) {
      from[d] = picks[d];
      source_grows = true;
    } else if (TORCH_GUARD_OR_FALSE(picks[d].sym_eq(1))) {
      picks[d] = from[d];
      index_grows = true;
    } else {
      TORCH_CHECK_VALUE(from[d].sym_eq(picks[d]).expect_true(__FILE__, __LINE__),
                        "take_along_dim: source with shape ", source.sym_sizes(),
                        " and index with shape ", index.sym_sizes(),
                        " must have the same length on each axis but dim = ", axis,
                        ", or one of them length 1, but they differ on axis ", d, ".");
    }
  }
  const auto expand = [](const Tensor& tensor, const c10::SymDimVector& sizes, bool needed) {
    return needed ? tensor.expand_symint(sizes) : tensor;  // a call of its own
  };
  return ops::gather_elements().call(expand(source, from, source_grows),
                                     expand(index, picks, index_grows), axis, named, fill_value);
}

// ---- Derivative ---------------------------------------------------------------------------------

struct GatherElementsNode final : autograd::DerivativeNode<GatherElementsNode> {
  static constexpr const char* kName = "GatherElementsBackward";
  SavedVariable index;
  std::vector<c10::SymInt> size;
  int64_t dim = 0;
  int64_t mode = 0;

  template <class Visit>
  void fields(Visit&& visit) {
    visit(index);
    visit(size);
    visit(dim);
    visit(mode);
  }

  variable_list backward(const Tensor& grad_output) {
    return {ops::scatter_elements_add().call(grad_output, unpack(index), size, dim, std::nullopt,
                                             indexing::mode_name(mode))};
  }
};

Tensor gather_elements_autograd(c10::DispatchKeySet keys, const Tensor& source, const Tensor& index,
                                int64_t dim, std::string_view mode, const Fill& fill_value) {
  const auto node = autograd::make_node<GatherElementsNode>(source);
  Tensor output =
      autograd::below_autograd(keys, ops::gather_elements(), source, index, dim, mode, fill_value);
  autograd::record(output, node);
  autograd::set_tangent(
      output,
      [&](const Tensor& tangent) {
        return ops::gather_elements().call(tangent, index, dim, mode, ops::nothing(mode));
      },
      source);
  if (node) {
    node->index = SavedVariable(index, /*is_output=*/false);
    node->size = source.sym_sizes().vec();
    node->dim = dim;
    const IndexMode parsed = indexing::parse_mode("gather_elements", mode);
    // What names no row was an error; the gradient need not look for it once more.
    node->mode = static_cast<int64_t>(parsed == IndexMode::kFromEnd ? IndexMode::kFill : parsed);
  }
  return output;
}

// ---- torch.vmap ---------------------------------------------------------------------------------

Tensor gather_elements_batched(const Tensor& source, const Tensor& index, int64_t dim,
                               std::string_view mode, const Fill& fill_value) {
  using batching::Batched;
  return batching::apply(
      [&](const Batched& from, const Batched& picks) -> Batched {
        if (!from.axis && !picks.axis) {
          return {ops::gather_elements().call(from.value, picks.value, dim, mode, fill_value),
                  std::nullopt};
        }
        const bool scalar = picks.value.dim() == (picks.axis ? 1 : 0);
        const Tensor output = elements::with_hidden_axis(
            from, picks, [&](const Tensor& lifted_source, const Tensor& lifted_index) {
              return ops::gather_elements().call(lifted_source, lifted_index, elements::lifted(dim),
                                                 mode, fill_value);
            });
        return {scalar ? output.squeeze(1) : output, 0};
      },
      source, index);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(torch_ops, m) {
  m.def(
      "gather_elements(Tensor source, Tensor index, int dim, *, str mode='raise', "
      "Scalar? fill_value=None) -> Tensor",
      {at::Tag::pt2_compliant_tag});
  m.def(
      "take_along_dim(Tensor source, Tensor index, int? dim=None, *, str mode='raise', "
      "Scalar? fill_value=None) -> Tensor",
      {at::Tag::pt2_compliant_tag});
}

TORCH_LIBRARY_IMPL(torch_ops, CPU, m) { m.impl("gather_elements", gather_elements<OnCpu>); }

TORCH_LIBRARY_IMPL(torch_ops, CUDA, m) { m.impl("gather_elements", gather_elements<OnCuda>); }

TORCH_LIBRARY_IMPL(torch_ops, Meta, m) { m.impl("gather_elements", gather_elements_meta); }

TORCH_LIBRARY_IMPL(torch_ops, Autograd, m) { m.impl("gather_elements", gather_elements_autograd); }

TORCH_LIBRARY_IMPL(torch_ops, FuncTorchBatched, m) {
  m.impl("gather_elements", gather_elements_batched);
  m.impl("take_along_dim", take_along_dim);
}

TORCH_LIBRARY_IMPL(torch_ops, CompositeImplicitAutograd, m) {
  m.impl("take_along_dim", take_along_dim);
}

}  // namespace torch_ops
