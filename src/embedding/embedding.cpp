// embedding: gather with what torch.nn.functional.embedding asks of its gradient; and its rows,
// reduced by bags. Compositions of registered ops, but for what reduces bags.
#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/cumsum.h>
#include <ATen/ops/div.h>
#include <ATen/ops/embedding_sparse_backward.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>

#include "common/gather_family/call_indexed.h"
#include "common/gather_family/gather_batching.h"
#include "common/gather_family/gather_ops.h"
#include "common/gather_family/planned.h"
#include "common/gather_family/summable.h"
#include "common/torch/calls/checks.h"
#include "common/torch/calls/new_output.h"
#include "common/torch/calls/python_call.h"
#include "common/torch/registration/derive.h"
#include "common/torch/registration/sharding.h"
#include "embedding/bag_launch.h"

namespace torch_ops {
namespace {

using at::Tensor;

constexpr const char* kOp = "embedding";
using Part = std::optional<Tensor>;  // of a plan

Tensor pick(const Tensor& weight, const Tensor& input, ops::Dim dim, int64_t batch_dims,
            ops::Name name = std::nullopt) {
  return ops::gather().call(weight, input, dim, batch_dims, "raise", std::nullopt,
                            name.value_or(kOp));
}

// The sums of each row divided by how often the input names it.
Tensor scale_by_frequency(const Tensor& sums, const Tensor& input, const c10::SymInt& rows,
                          int64_t dim, int64_t batch_dims, std::vector<int64_t> shards) {
  for (int64_t& axis : shards) axis = axis == dim ? batch_dims : -1;  // of the counts
  const Tensor ones = at::ones_like(input, input.options().dtype(at::kLong));
  Tensor counts = ops::add_rows(ones, input, rows, batch_dims, batch_dims, "raise", kOp, shards);
  counts = indexing::per_row(counts, batch_dims, dim, sums.dim());
  return at::div(sums, counts.clamp_min(1));
}

struct Embedding {
  static constexpr const char* kSchema =
      "embedding(Tensor input, Tensor weight, int? padding_idx=None, "
      "bool scale_grad_by_freq=False, bool sparse=False, *, int dim=0, int batch_dims=0, "
      "Tensor? rows=None, Tensor? order=None, str? name=None) -> Tensor";
  static constexpr const char* kNode = "EmbeddingBackward";

  // The options are the gradient's, and so are the rows and the order of a plan.
  static Tensor compute(const Tensor& input, const Tensor& weight,
                        std::optional<int64_t> /*padding_idx*/, bool /*scale_grad_by_freq*/,
                        bool /*sparse*/, int64_t dim, int64_t batch_dims, const Part& rows,
                        const Part& order, ops::Name name) {
    if (rows) indexing::check_plan(kOp, "weight", weight, input, *rows, order.value());
    return pick(weight, input, dim, batch_dims, name);
  }

  static auto keep(const Tensor& input, const Tensor& weight, std::optional<int64_t> padding_idx,
                   bool scale_grad_by_freq, bool sparse, int64_t dim, int64_t batch_dims,
                   const Part& rows, const Part& order, ops::Name /*name*/) {
    return std::tuple(input, rows, order, weight.sym_size(dim), padding_idx.value_or(-1),
                      scale_grad_by_freq, sparse, dim, batch_dims, shards_of(weight));
  }

  // Of the weight.
  static Tensor backward(const Tensor& grad_output, const Tensor& index, const Part& sorted,
                         const Part& order, const c10::SymInt& rows, int64_t padding_idx,
                         bool scale_grad_by_freq, bool sparse, int64_t dim, int64_t batch_dims,
                         const std::vector<int64_t>& shards) {
    if (sparse) {
      TORCH_CHECK_NOT_IMPLEMENTED(
          shards.empty(),
          "embedding: the gradient of a weight that is a DTensor cannot be sparse. "
          "Use sparse=False.");
      const bool narrow = index.scalar_type() != at::kLong && index.scalar_type() != at::kInt;
      const Tensor entries = (narrow ? index.to(at::kLong) : index).reshape({-1});
      const Tensor grads_of_entries =
          index.dim() == 0 ? grad_output.unsqueeze(0) : grad_output.flatten(0, index.dim() - 1);
      return at::embedding_sparse_backward(grads_of_entries, entries, rows.expect_int(),
                                           padding_idx, scale_grad_by_freq);
    }
    const bool distributed = !shards.empty();
    const bool drops = distributed && padding_idx >= 0;
    // A row of a DTensor may be a copy, and nothing is to be written there: what would be added to
    // the padding row is dropped instead, for it names the row after the last.
    const Tensor entries =
        drops ? index.to(at::kLong).masked_fill(index.eq(padding_idx), rows) : index;
    static const auto add_by_plan = find_op<planned::Signature>("scatter_add.plan");
    const at::ScalarType dtype = grad_output.scalar_type();
    // Sums that are divided are rounded after that.
    const Tensor grads = scale_grad_by_freq ? grad_output.to(unrounded(dtype)) : grad_output;
    Tensor sums = sorted && !distributed
                      ? add_by_plan.call(grads, index, *sorted, *order, rows, dim, batch_dims)
                      : ops::add_rows(grads, entries, rows, dim, batch_dims,
                                      drops ? "fill" : "raise", kOp, shards);
    if (scale_grad_by_freq) {
      sums = scale_by_frequency(sums, index, rows, dim, batch_dims, shards).to(dtype);
    }
    if (padding_idx >= 0 && !drops) sums.select(dim, padding_idx).zero_();
    return sums;
  }

  template <class... Rest>
  static Tensor derive(c10::DispatchKeySet keys, const Tensor& input, const Tensor& weight,
                       std::optional<int64_t> padding_idx, bool scale_grad_by_freq, bool sparse,
                       int64_t dim, int64_t batch_dims, const Rest&... rest) {
    const auto node = autograd::make_node<autograd::Node<Embedding>>(weight);
    Tensor output = autograd::below_autograd(keys, op_of<Embedding>(), input, weight, padding_idx,
                                             scale_grad_by_freq, sparse, dim, batch_dims, rest...);
    autograd::record(output, node);
    autograd::set_tangent(
        output, [&](const Tensor& tangent) { return pick(tangent, input, dim, batch_dims); },
        weight);
    if (node) {
      node->keep(input, weight, padding_idx, scale_grad_by_freq, sparse, dim, batch_dims, rest...);
    }
    return output;
  }

  // dim and batch_dims are there for this.
  static Tensor batch(const Tensor& input, const Tensor& weight, std::optional<int64_t> padding_idx,
                      bool scale_grad_by_freq, bool sparse, int64_t dim, int64_t batch_dims,
                      const Part& rows, const Part& order, ops::Name name) {
    if (rows) planned::check_not_mapped(kOp, input, *rows, *order);
    TORCH_CHECK(!sparse || !at::functorch::isBatchedAtLevel(weight, batching::current_level()),
                "embedding: a sparse gradient is of one weight: torch.vmap cannot map over "
                "weight with sparse=True.");
    return batch_gather(kOp, weight, input, dim, batch_dims,
                        [&](const Tensor& w, const Tensor& i, ops::Dim axis, int64_t batches) {
                          return op_of<Embedding>().call(i, w, padding_idx, scale_grad_by_freq,
                                                         sparse, *axis, batches, rows, order, name);
                        });
  }
};

// max_norm: scales the rows of weight that the input names, in place, to a norm of max_norm where
// theirs is larger. Entries of one row write the same values, so that it does not matter which
// does.
struct EmbeddingRenorm {
  static constexpr const char* kSchema =
      "embedding_renorm_(Tensor(a!) weight, Tensor input, float max_norm, float norm_type=2.0, *, "
      "str? name=None) -> Tensor(a!)";

  static Tensor& compose(Tensor& weight, const Tensor& input, double max_norm, double norm_type,
                         ops::Name name) {
    const char* const op = indexing::name_of(kOp, name);
    const std::string_view shown = indexing::shown(op);
    check_floating(c10::str(shown, " with max_norm"), "weight", weight);
    TORCH_CHECK_VALUE(weight.dim() == 2, shown, ": weight must have two axes, but its shape is ",
                      weight.sym_sizes(), ".");
    const at::NoGradGuard no_grad;
    Tensor table = weight.detach();
    const Tensor entries = input.reshape({-1});
    const Tensor rows = pick(table, input, 0, /*batch_dims=*/0, op)
                            .reshape_symint({entries.sym_size(0), weight.sym_size(1)});
    const at::ScalarType wide = at::toOpMathType(weight.scalar_type());
    const Tensor norms = at::linalg_vector_norm(rows, norm_type, at::IntArrayRef{1},
                                                /*keepdim=*/true, wide);
    // torch's own epsilon.
    const Tensor scale = at::where(norms > max_norm, max_norm / (norms + 1e-7), 1.0);
    // put_points_ counts negative entries from the end; here they are out of range.
    const Tensor places = ops::ravel_multi_index().call({entries}, {weight.sym_size(0)}, "raise",
                                                        /*axes=*/std::nullopt, op);
    ops::put_points_().call(table, {places}, {0}, rows.mul(scale).to(weight.scalar_type()),
                            /*batch_dims=*/0, /*front=*/false, /*axes=*/std::nullopt, op);
    return weight;
  }
};

// ---- Bags ---------------------------------------------------------------------------------------

constexpr const char* kBagOp = "embedding_bag";
// In whose names errors of the indices are raised (callers.h).
constexpr const char* kOfInput = "embedding_bag:input";
constexpr const char* kOfOffsets = "embedding_bag:offsets";

c10::SymInt count_bags(const Tensor& input, const Part& offsets, bool include_last_offset) {
  return offsets ? offsets->sym_size(0) - (include_last_offset ? 1 : 0) : input.sym_size(0);
}

// How scatter takes the rows of the entries: those of 2 axes in batches, each to one row.
struct Bags {
  Tensor index;  // what is dropped names the row after the last
  c10::SymInt count;
  int64_t batch_dims;
};

Bags bags_of(const Tensor& input, const Part& offsets, bool include_last_offset,
             std::optional<int64_t> padding_idx) {
  if (!offsets) {
    const auto byte = input.options().dtype(at::kByte);
    return {padding_idx ? input.eq(*padding_idx).to(at::kByte) : at::zeros_like(input, byte), 1,
            /*batch_dims=*/1};
  }
  const c10::SymInt count = count_bags(input, offsets, include_last_offset);
  const c10::SymInt entries = input.sym_size(0);
  // How many bags have begun at each entry. What comes before the first is of the first.
  const Tensor ones = at::ones_like(*offsets, offsets->options().dtype(at::kInt));
  const Tensor begins =
      ops::scatter_add().call(ones, *offsets, entries + 1, 0, 0,
                              /*deterministic=*/std::nullopt, "raise", kOfOffsets);
  Tensor index = at::cumsum(begins, 0, at::kLong).narrow_symint(0, 0, entries) - 1;
  index = index.clamp_min(0);
  if (padding_idx) index = index.masked_fill(input.eq(*padding_idx), count);
  return {index, count, /*batch_dims=*/0};
}

Tensor scatter_bags(const Tensor& rows, const Bags& bags, std::string_view mode) {
  const Tensor result = ops::scatter().call(
      rows, bags.index, bags.count, bags.batch_dims, bags.batch_dims, mode, "fill",
      /*deterministic=*/std::nullopt, /*correction=*/1, /*dtype=*/std::nullopt);
  return bags.batch_dims == 1 ? result.squeeze(1) : result;
}

// Of the rows themselves, for what no kernel does.
Tensor reduce_rows(const Tensor& weight, const Tensor& input, const Part& offsets,
                   const Part& factors, std::string_view mode, bool include_last_offset,
                   std::optional<int64_t> padding_idx, bool scale_grad_by_freq, bool sparse) {
  Tensor rows = op_of<Embedding>().call(input, weight, padding_idx, scale_grad_by_freq, sparse, 0,
                                        0, std::nullopt, std::nullopt, kOfInput);
  const at::ScalarType dtype = weight.scalar_type();
  if (factors) {  // those of 16-bit floats are multiplied in float32
    rows = rows * factors->unsqueeze(-1).to(at::toOpMathType(dtype));
  }
  return scatter_bags(rows, bags_of(input, offsets, include_last_offset, padding_idx), mode)
      .to(dtype);
}

bool is_block_enough(const Tensor& input, int64_t bags) {
  constexpr int64_t kMostAverage = 4096;  // entries of a bag, which is the work of a block
  return input.numel() <= kMostAverage * bags;
}

// The sums or the means of bags; or their largest values, and to `rows_of_largest` where they are.
template <class On>
Tensor run_bags(const Tensor& table, const Part& scales, const Tensor& input, const Part& offsets,
                std::string_view mode, int64_t bags, std::optional<int64_t> padding_idx,
                int64_t* rows_of_largest = nullptr) {
  const Tensor weight = table.contiguous();
  const Tensor factors = scales ? scales->contiguous() : Tensor();
  const Tensor entries = indexing::for_kernels(input).contiguous();
  const int64_t padding = padding_idx.value_or(-1);
  const int64_t count = entries.numel();
  const Tensor begins = offsets ? offsets->to(at::kLong).contiguous() : Tensor();
  if (offsets && std::is_same_v<On, OnCpu>) {  // on CUDA the kernel checks them
    const auto* const first = begins.const_data_ptr<int64_t>();
    const auto bad = std::find_if(first, first + begins.numel(),
                                  [=](int64_t at) { return at < 0 || at > count; });
    if (bad != first + begins.numel()) {
      indexing::raise_out_of_range(kOfOffsets, begins, bad - first, count + 1, false);
    }
  }
  const Tensor result = new_output({bags, weight.size(1)}, weight.options());
  ElementLayout layout{};
  layout.count = count;
  layout.axis_size = weight.size(0);
  const auto reduce_entries = [&](const auto&... offset_errors) {
    call_indexed<On>(
        kOfInput, entries, layout, IndexMode::kRaise, result, [&](auto on, const auto&... errors) {
          return AT_DISPATCH_FLOATING_TYPES_AND2(
              at::kHalf, at::kBFloat16, weight.scalar_type(), kBagOp, [&] {
                const auto read = [](const Tensor& tensor, auto zero) {
                  return static_cast<const decltype(zero)*>(
                      tensor.defined() ? tensor.const_data_ptr() : nullptr);
                };
                using Value = typename KernelTypeOf<scalar_t>::type;
                const BagCall<Value> call{read(weight, Value()),
                                          index_array(entries),
                                          read(begins, int64_t()),
                                          read(factors, Value()),
                                          static_cast<Value*>(result.mutable_data_ptr()),
                                          rows_of_largest,
                                          weight.size(0),
                                          weight.size(1),
                                          count,
                                          bags,
                                          offsets ? begins.numel() : 0,
                                          entries.dim() == 2 ? entries.size(1) : 0,
                                          padding,
                                          mode == "mean"};
                return kernels::reduce_bags(on, call, errors..., offset_errors...);
              });
        });
  };
  if constexpr (std::is_same_v<On, OnCpu>) {
    reduce_entries();
  } else if (offsets) {
    ElementLayout places{};
    places.count = begins.numel();
    places.axis_size = count + 1;
    call_indexed<On>(kOfOffsets, begins, places, IndexMode::kRaise, result,
                     [&](auto, const auto& errors) { reduce_entries(errors); });
  } else {
    reduce_entries(IndexErrorSite{});
  }
  return result;
}

// Sums, or means, without the rows in memory.
struct BagSum {
  static constexpr const char* kSchema =
      "_embedding_bag(Tensor weight, Tensor? factors, Tensor input, Tensor? offsets, str mode, "
      "bool include_last_offset, int? padding_idx, bool scale_grad_by_freq, bool sparse) -> Tensor";
  static constexpr const char* kNode = "EmbeddingBagBackward";

  template <class On>
  static Tensor kernel(const Tensor& weight, const Part& factors, const Tensor& input,
                       const Part& offsets, std::string_view mode, bool include_last_offset,
                       std::optional<int64_t> padding_idx, bool scale_grad_by_freq, bool sparse) {
    const c10::SymInt bags = count_bags(input, offsets, include_last_offset);
    if constexpr (std::is_same_v<On, OnMeta>) {
      return at::empty_symint({bags, weight.sym_size(1)}, weight.options());
    } else if (std::is_same_v<On, OnCuda> && !is_block_enough(input, bags.expect_int())) {
      return reduce_rows(weight, input, offsets, factors, mode, include_last_offset, padding_idx,
                         scale_grad_by_freq, sparse);
    } else {
      return run_bags<On>(weight, factors, input, offsets, mode, bags.expect_int(), padding_idx);
    }
  }

  static auto keep(const Tensor& weight, const Part& factors, const Tensor& input,
                   const Part& offsets, std::string_view mode, bool include_last_offset,
                   std::optional<int64_t> padding_idx, bool scale_grad_by_freq, bool sparse) {
    return std::tuple(factors ? weight : Tensor(), factors, input, offsets, weight.sym_size(0),
                      mode == "mean", include_last_offset, padding_idx, scale_grad_by_freq, sparse,
                      static_cast<int64_t>(weight.scalar_type()));
  }

  static autograd::variable_list backward(autograd::Needed needed, const Tensor& grad_output,
                                          const Tensor& weight, const Part& factors,
                                          const Tensor& input, const Part& offsets,
                                          const c10::SymInt& rows, bool mean,
                                          bool include_last_offset,
                                          std::optional<int64_t> padding_idx,
                                          bool scale_grad_by_freq, bool sparse, int64_t dtype) {
    const Bags bags = bags_of(input, offsets, include_last_offset, padding_idx);
    Tensor grad = grad_output;
    // What is divided or multiplied is rounded after it is summed.
    if (mean || factors) grad = grad.to(unrounded(grad.scalar_type()));
    if (mean) {
      const Tensor ones = at::ones_like(input, grad.options().dtype(at::kFloat));
      grad = grad / scatter_bags(ones, bags, "sum").clamp_min(1).unsqueeze(-1);
    }
    if (bags.batch_dims == 1) grad = grad.unsqueeze(1);
    const Tensor spread = ops::gather().call(grad, bags.index, bags.batch_dims, bags.batch_dims,
                                             "fill", 0, std::nullopt);  // to the entries
    autograd::variable_list grads(2);
    if (needed[0]) {
      const Tensor scaled = factors ? spread * factors->unsqueeze(-1) : spread;
      grads[0] = Embedding::backward(scaled, input, std::nullopt, std::nullopt, rows,
                                     padding_idx.value_or(-1), scale_grad_by_freq, sparse, 0, 0, {})
                     .to(static_cast<at::ScalarType>(dtype));
    }
    if (needed[1]) {
      grads[1] = (spread * pick(weight, input, 0, 0)).sum(-1).to(factors->scalar_type());
    }
    return grads;
  }

  template <class... Rest>
  static Tensor derive(c10::DispatchKeySet keys, const Tensor& weight, const Part& factors,
                       const Rest&... rest) {
    const Tensor scales = factors.value_or(Tensor());
    const auto node = autograd::make_node<autograd::Node<BagSum>>(weight, scales);
    Tensor output = autograd::below_autograd(keys, op_of<BagSum>(), weight, factors, rest...);
    autograd::record(output, node);
    autograd::set_tangent(
        output,
        [&](const Tensor& of_weight, const Tensor& of_scales) {
          const auto& op = op_of<BagSum>();
          if (!of_weight.defined()) return op.call(autograd::primal(weight), of_scales, rest...);
          const Part primal = factors ? Part(autograd::primal(scales)) : std::nullopt;
          const Tensor change = op.call(of_weight, primal, rest...);
          if (!of_scales.defined()) return change;
          return change + op.call(autograd::primal(weight), of_scales, rest...);
        },
        weight, scales);
    if (node) node->keep(weight, factors, rest...);
    return output;
  }

  template <class... Rest>
  static Tensor batch(const Tensor& weight, const Part& factors, const Tensor& input,
                      const Part& offsets, const Rest&... rest) {
    return reduce_rows(weight, input, offsets, factors, rest...);
  }
};

// The largest values of each bag, and the rows that they are of: of equal ones the first; of no
// entry 0, and the row after the last.
struct BagLargest {
  static constexpr const char* kSchema =
      "_embedding_bag_largest(Tensor weight, Tensor input, Tensor? offsets, "
      "bool include_last_offset, int? padding_idx) -> (Tensor, Tensor)";
  static constexpr const char* kNode = "EmbeddingBagLargestBackward";
  using Results = std::tuple<Tensor, Tensor>;

  template <class On>
  static Results kernel(const Tensor& weight, const Tensor& input, const Part& offsets,
                        bool include_last_offset, std::optional<int64_t> padding_idx) {
    const c10::SymInt bags = count_bags(input, offsets, include_last_offset);
    if constexpr (std::is_same_v<On, OnMeta>) {
      const Tensor values = at::empty_symint({bags, weight.sym_size(1)}, weight.options());
      return {values, at::empty_like(values, values.options().dtype(at::kLong))};
    } else {
      if constexpr (std::is_same_v<On, OnCuda>) {
        if (is_block_enough(input, bags.expect_int())) {
          const Tensor rows =
              new_output({bags.expect_int(), weight.size(1)}, weight.options().dtype(at::kLong));
          const Tensor values =
              run_bags<On>(weight, std::nullopt, input, offsets, "max", bags.expect_int(),
                           padding_idx, rows.mutable_data_ptr<int64_t>());
          return {values, rows};
        }
      }
      return batch(weight, input, offsets, include_last_offset, padding_idx);
    }
  }

  // With the rows of all entries in memory.
  static Results batch(const Tensor& weight, const Tensor& input, const Part& offsets,
                       bool include_last_offset, std::optional<int64_t> padding_idx) {
    const Tensor rows = pick(weight, input, 0, /*batch_dims=*/0, kOfInput);
    const Bags bags = bags_of(input, offsets, include_last_offset, padding_idx);
    Tensor entries =
        ops::scatter_arg().call(rows, bags.index, bags.count, bags.batch_dims, bags.batch_dims,
                                /*largest=*/true, "fill", std::nullopt, std::nullopt, std::nullopt);
    if (bags.batch_dims == 1) entries = entries.squeeze(1);
    const Tensor largest =
        ops::gather().call(input.to(at::kLong), entries, bags.batch_dims, bags.batch_dims, "fill",
                           at::Scalar(weight.sym_size(0)), std::nullopt);
    return {values_at(weight, largest), largest};
  }

  static auto keep(const Tensor& weight, const Tensor& rows) {
    return std::tuple(rows, weight.sym_size(0));
  }

  static Tensor backward(const Tensor& grad_output, const Tensor& rows, const c10::SymInt& count) {
    return ops::add_elements(grad_output, rows, {count, rows.sym_size(1)}, 0, "fill", {});
  }

  template <class... Rest>
  static Results derive(c10::DispatchKeySet keys, const Tensor& weight, const Rest&... rest) {
    const auto node = autograd::make_node<autograd::Node<BagLargest>>(weight);
    Results results = autograd::below_autograd(keys, op_of<BagLargest>(), weight, rest...);
    const auto& [values, rows] = results;
    autograd::record(values, node);
    autograd::set_tangent(
        values, [&](const Tensor& tangent) { return values_at(tangent, rows); }, weight);
    if (node) node->keep(weight, rows);
    return results;
  }

 private:
  static Tensor values_at(const Tensor& weight, const Tensor& rows) {
    return ops::gather_elements().call(weight, rows, 0, "fill", 0, std::nullopt);
  }
};

struct EmbeddingBag {
  static constexpr const char* kSchema =
      "embedding_bag(Tensor input, Tensor weight, Tensor? offsets=None, "
      "bool scale_grad_by_freq=False, str mode='mean', bool sparse=False, "
      "Tensor? per_sample_weights=None, bool include_last_offset=False, int? padding_idx=None) "
      "-> Tensor";

  static Tensor compose(const Tensor& input, const Tensor& weight, const Part& offsets,
                        bool scale_grad_by_freq, std::string_view mode, bool sparse,
                        const Part& factors, bool include_last_offset,
                        std::optional<int64_t> padding_idx) {
    check(input, weight, offsets, mode, factors, include_last_offset);
    // On the CPU, the largest values are found without their rows, in less time.
    const bool largest = mode == "max";
    if (!is_kernel_float(weight) || !shards_of(weight).empty() ||
        (largest && (!weight.is_cuda() || sparse || scale_grad_by_freq))) {
      return reduce_rows(weight, input, offsets, factors, mode, include_last_offset, padding_idx,
                         scale_grad_by_freq, sparse);
    }
    if (largest) {
      return std::get<0>(
          op_of<BagLargest>().call(weight, input, offsets, include_last_offset, padding_idx));
    }
    return op_of<BagSum>().call(weight, factors, input, offsets, mode, include_last_offset,
                                padding_idx, scale_grad_by_freq, sparse);
  }

 private:
  static void check(const Tensor& input, const Tensor& weight, const Part& offsets,
                    std::string_view mode, const Part& factors, bool include_last_offset) {
    indexing::check_index_dtype(kOfInput, input);
    TORCH_CHECK_VALUE(weight.dim() == 2, kBagOp, ": weight must have two axes, but its shape is ",
                      weight.sym_sizes(), ".");
    check_floating(kBagOp, "weight", weight);
    TORCH_CHECK_VALUE(mode == "sum" || mode == "mean" || mode == "max", kBagOp,
                      R"(: mode must be "sum", "mean" or "max", but it is ")", mode, R"(".)");
    TORCH_CHECK_VALUE(input.dim() == 1 || input.dim() == 2, kBagOp,
                      ": input must have one axis or two, but its shape is ", input.sym_sizes(),
                      ".");
    check_one_device(kBagOp, "weight", weight, "input", input);
    TORCH_CHECK_VALUE(offsets.has_value() == (input.dim() == 1), kBagOp,
                      ": offsets say where the bags of an input of one axis begin; an input of two "
                      "has a bag in each row and no offsets. But input has shape ",
                      input.sym_sizes(), ", and offsets ", offsets ? "are given." : "are missing.");
    if (offsets) {
      indexing::check_index_dtype(kOfOffsets, *offsets);
      TORCH_CHECK_VALUE(offsets->dim() == 1, kBagOp,
                        ": offsets must have one axis, but its shape is ", offsets->sym_sizes(),
                        ".");
      TORCH_CHECK_VALUE(
          !include_last_offset || offsets->sym_size(0).sym_ge(1).expect_true(__FILE__, __LINE__),
          kBagOp, ": offsets must have an entry with include_last_offset.");
      check_one_device(kBagOp, "input", input, "offsets", *offsets);
    }
    if (factors) {
      TORCH_CHECK_VALUE(mode == "sum", kBagOp,
                        R"(: per_sample_weights is for mode="sum", but mode is ")", mode, R"(".)");
      TORCH_CHECK_TYPE(factors->scalar_type() == weight.scalar_type(), kBagOp,
                       ": per_sample_weights and weight must have one dtype, but they are ",
                       dtype_name(factors->scalar_type()), " and ",
                       dtype_name(weight.scalar_type()), ".");
      TORCH_CHECK_VALUE(factors->sym_sizes() == input.sym_sizes(), kBagOp,
                        ": per_sample_weights must have the shape of input, ", input.sym_sizes(),
                        ", but its shape is ", factors->sym_sizes(), ".");
      check_one_device(kBagOp, "weight", weight, "per_sample_weights", *factors);
    }
  }
};

// ---- The direct pair: outside autograd, on contiguous CUDA tensors ------------------------------

Tensor forward(const Tensor& input, const Tensor& weight) {
  CHECK_INPUT(input);
  CHECK_INPUT(weight);
  at::AutoDispatchBelowADInplaceOrView guard;
  return pick(weight, input, 0, /*batch_dims=*/0);
}

Tensor backward(const Tensor& grad_output, const Tensor& input, int64_t num_embeddings) {
  CHECK_INPUT(grad_output);
  CHECK_INPUT(input);
  at::AutoDispatchBelowADInplaceOrView guard;
  return ops::scatter_add().call(grad_output, input, num_embeddings, 0, /*batch_dims=*/0,
                                 /*deterministic=*/std::nullopt, "raise", kOp);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(torch_ops, m) {
  register_op<Embedding>(m);
  register_op<EmbeddingRenorm>(m);
  register_op<BagSum>(m);
  register_op<BagLargest>(m);
  register_op<EmbeddingBag>(m);
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.doc() = "The direct kernels of embedding, on contiguous CUDA tensors and outside autograd.";
  autograd::name_nodes_in_python();
  m.def("forward", &forward, "The rows of weight that input picks", py::arg("input"),
        py::arg("weight"));
  m.def("backward", &backward, "grad_output's rows added where forward read them",
        py::arg("grad_output"), py::arg("input"), py::arg("num_embeddings"));
  python_call::def(m, "call", op_of<Embedding>());
  python_call::def(m, "call_bag", op_of<EmbeddingBag>());
}

}  // namespace torch_ops
