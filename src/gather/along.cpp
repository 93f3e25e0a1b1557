// The contract of gather_elements and take_along_dim: schemas, checks, allocation, derivative.
#include <ATen/ExpandUtils.h>
#include <ATen/ops/empty.h>

#include "common/gather_family/elements.h"
#include "common/gather_family/gather_ops.h"
#include "common/gather_family/index_mode_args.h"
#include "common/torch/calls/new_output.h"
#include "common/torch/registration/derive.h"
#include "common/torch/registration/sharding.h"
#include "gather/gather.h"

namespace torch_ops {
namespace {

using at::Tensor;
using ops::Fill;
using ops::Name;

template <class On>
Tensor pick(const char* op, const Tensor& source, const Tensor& index, int64_t axis, IndexMode mode,
            const Fill& fill_value) {
  Tensor output = new_output(index.sizes(), source.options());
  const GatherPolicy policy =
      make_policy(mode, source.dim() > 0 ? source.size(axis) : 1, fill_value, source);
  if (index.numel() == 0) {  // of any rank
    launch_gather<On>(op, source, index, ElementLayout{}, policy, output);
    return output;
  }
  if (fill_empty_axis(policy, output)) return output;
  const Tensor entries = indexing::for_kernels(elements::at_least_1d(index));
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

struct GatherElements {
  static constexpr const char* kSchema =
      "gather_elements(Tensor source, Tensor index, int dim, *, str mode='raise', "
      "Scalar? fill_value=None, str? name=None) -> Tensor";
  static constexpr const char* kNode = "GatherElementsBackward";

  template <class On>
  static Tensor kernel(const Tensor& source, const Tensor& index, int64_t dim,
                       std::string_view mode, const Fill& fill_value, Name name) {
    const char* const op = indexing::name_of("gather_elements", name);
    const IndexMode parsed = indexing::parse_mode(op, mode);
    check_one_device(op, "source", source, "index", index);
    const int64_t axis = elements::check_table(op, "source", source.sym_sizes(), index, dim);
    indexing::check_fill_value(op, parsed, fill_value, source.scalar_type());
    if constexpr (std::is_same_v<On, OnMeta>) {
      return at::empty_symint(index.sym_sizes(), source.options());
    } else {
      return pick<On>(op, source, index, axis, parsed, fill_value);
    }
  }

  static auto keep(const Tensor& source, const Tensor& index, int64_t dim, std::string_view mode,
                   const Fill&, Name) {
    return std::tuple(index, source.sym_sizes().vec(), dim,
                      indexing::mode_of_gradient("gather_elements", mode), shards_of(source));
  }

  static Tensor backward(const Tensor& grad_output, const Tensor& index,
                         const std::vector<c10::SymInt>& size, int64_t dim, int64_t mode,
                         const std::vector<int64_t>& shards) {
    return ops::add_elements(grad_output, index, size, dim, indexing::mode_name(mode), shards);
  }

  static Tensor tangent(const Tensor& tangent, const Tensor&, const Tensor& index, int64_t dim,
                        std::string_view mode, const Fill&, Name name) {
    return ops::gather_elements().call(tangent, index, dim, mode, ops::nothing(mode), name);
  }

  template <class... Rest>
  static Tensor batch(const Tensor& source, const Tensor& index, int64_t dim, const Rest&... rest) {
    return elements::batch(source, index, index.dim() == 0,
                           [&](const Tensor& table, const Tensor& entries, bool is_lifted) {
                             const int64_t axis = is_lifted && dim >= 0 ? dim + 1 : dim;
                             return ops::gather_elements().call(table, entries, axis, rest...);
                           });
  }
};

// An axis of length 1 is expanded to the other tensor's length, without a copy. Negative entries
// count from the end by default, as in torch and NumPy.
struct TakeAlongDim {
  static constexpr const char* kSchema =
      "take_along_dim(Tensor source, Tensor index, int? dim=None, *, str mode='raise', "
      "Scalar? fill_value=None) -> Tensor";

  static Tensor compose(const Tensor& source, const Tensor& index, ops::Dim dim,
                        std::string_view mode, const Fill& fill_value) {
    const auto pick = [&](const Tensor& table, const Tensor& entries, int64_t axis) {
      return ops::gather_elements().call(table, entries, axis, mode == "raise" ? "from_end" : mode,
                                         fill_value, "take_along_dim");
    };
    if (!dim) return pick(source.reshape({-1}), index.reshape({-1}), 0);
    TORCH_CHECK_VALUE(
        source.dim() == index.dim(),
        "take_along_dim: source and index must have the same number of axes, but their shapes are ",
        source.sym_sizes(), " and ", index.sym_sizes(), ".");
    const int64_t axis = indexing::resolve_dim("take_along_dim", "source",
                                               elements::rank_of(source.sym_sizes()), *dim);
    if (source.dim() == 0) return pick(source, index, 0);
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
    return pick(source_grows ? source.expand_symint(from) : source,
                index_grows ? index.expand_symint(picks) : index, axis);
  }
};

}  // namespace

TORCH_LIBRARY_FRAGMENT(torch_ops, m) {
  register_op<GatherElements>(m);
  register_op<TakeAlongDim>(m);
}

}  // namespace torch_ops
