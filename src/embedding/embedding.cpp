// embedding: gather with what torch.nn.functional.embedding asks of its gradient; and its rows,
// reduced by bags. Compositions of registered ops, so there are no kernels here.
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

#include "common/gather_family/gather_batching.h"
#include "common/gather_family/gather_ops.h"
#include "common/gather_family/planned.h"
#include "common/torch/checks.h"
#include "common/torch/derive.h"
#include "common/torch/python_call.h"
#include "common/torch/sharding.h"

namespace torch_ops {
namespace {

using at::Tensor;

constexpr const char* kOp = "embedding";
using Part = std::optional<Tensor>;  // of a plan

Tensor pick(const Tensor& weight, const Tensor& input, ops::Dim dim, int64_t batch_dims) {
  return ops::gather().call(weight, input, dim, batch_dims, "raise", std::nullopt, kOp);
}

// The sums of each row divided by how often the input names it.
Tensor scale_by_frequency(const Tensor& sums, const Tensor& input, const c10::SymInt& rows,
                          int64_t dim, int64_t batch_dims, std::vector<int64_t> shards) {
  for (int64_t& axis : shards) axis = axis == dim ? batch_dims : -1;  // of the counts
  const Tensor ones = at::ones_like(input, input.options().dtype(at::kFloat));
  Tensor counts = ops::add_rows(ones, input, rows, batch_dims, batch_dims, "raise", kOp, shards);
  for (int64_t axis = batch_dims; axis < dim; ++axis) counts = counts.unsqueeze(batch_dims);
  while (counts.dim() < sums.dim()) counts = counts.unsqueeze(-1);
  // 16-bit sums are divided in float32.
  return at::div(sums, counts.clamp_min(1)).to(sums.scalar_type());
}

struct Embedding {
  static constexpr const char* kSchema =
      "embedding(Tensor input, Tensor weight, int? padding_idx=None, "
      "bool scale_grad_by_freq=False, bool sparse=False, *, int dim=0, int batch_dims=0, "
      "Tensor? rows=None, Tensor? order=None) -> Tensor";
  static constexpr const char* kNode = "EmbeddingBackward";

  // The options are the gradient's, and so are the rows and the order of a plan.
  static Tensor compute(const Tensor& input, const Tensor& weight,
                        std::optional<int64_t> /*padding_idx*/, bool /*scale_grad_by_freq*/,
                        bool /*sparse*/, int64_t dim, int64_t batch_dims, const Part& rows,
                        const Part& order) {
    if (rows) indexing::check_plan(kOp, "weight", weight, input, *rows, order.value());
    return pick(weight, input, dim, batch_dims);
  }

  static auto keep(const Tensor& input, const Tensor& weight, std::optional<int64_t> padding_idx,
                   bool scale_grad_by_freq, bool sparse, int64_t dim, int64_t batch_dims,
                   const Part& rows, const Part& order) {
    return std::tuple(input, rows.value_or(Tensor()), order.value_or(Tensor()),
                      weight.sym_size(dim), padding_idx.value_or(-1), scale_grad_by_freq, sparse,
                      dim, batch_dims, shards_of(weight));
  }

  // Of the weight.
  static Tensor backward(const Tensor& grad_output, const Tensor& index, const Tensor& sorted,
                         const Tensor& order, const c10::SymInt& rows, int64_t padding_idx,
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
    // the padding row is dropped instead, for it names the row behind the last.
    const Tensor entries =
        drops ? index.to(at::kLong).masked_fill(index.eq(padding_idx), rows) : index;
    static const auto add_by_plan = find_op<planned::Signature>("scatter_add.plan");
    Tensor sums = sorted.defined() && !distributed
                      ? add_by_plan.call(grad_output, index, sorted, order, rows, dim, batch_dims)
                      : ops::add_rows(grad_output, entries, rows, dim, batch_dims,
                                      drops ? "fill" : "raise", kOp, shards);
    if (scale_grad_by_freq) sums = scale_by_frequency(sums, index, rows, dim, batch_dims, shards);
    if (padding_idx >= 0 && !drops) sums.select(dim, padding_idx).zero_();
    return sums;
  }

  static Tensor derive(c10::DispatchKeySet keys, const Tensor& input, const Tensor& weight,
                       std::optional<int64_t> padding_idx, bool scale_grad_by_freq, bool sparse,
                       int64_t dim, int64_t batch_dims, const Part& rows, const Part& order) {
    const auto node = autograd::make_node<autograd::Node<Embedding>>(weight);
    Tensor output =
        autograd::below_autograd(keys, op_of<Embedding>(), input, weight, padding_idx,
                                 scale_grad_by_freq, sparse, dim, batch_dims, rows, order);
    autograd::record(output, node);
    autograd::set_tangent(
        output, [&](const Tensor& tangent) { return pick(tangent, input, dim, batch_dims); },
        weight);
    if (node) {
      node->keep(input, weight, padding_idx, scale_grad_by_freq, sparse, dim, batch_dims, rows,
                 order);
    }
    return output;
  }

  // dim and batch_dims are there for this.
  static Tensor batch(const Tensor& input, const Tensor& weight, std::optional<int64_t> padding_idx,
                      bool scale_grad_by_freq, bool sparse, int64_t dim, int64_t batch_dims,
                      const Part& rows, const Part& order) {
    const int64_t level = batching::current_level();
    planned::check_not_mapped(kOp, rows && (at::functorch::isBatchedAtLevel(input, level) ||
                                            at::functorch::isBatchedAtLevel(*rows, level) ||
                                            at::functorch::isBatchedAtLevel(*order, level)));
    TORCH_CHECK(!sparse || !at::functorch::isBatchedAtLevel(weight, batching::current_level()),
                "embedding: a sparse gradient is of one weight: torch.vmap cannot map over "
                "weight with sparse=True.");
    return batch_gather(kOp, weight, input, dim, batch_dims,
                        [&](const Tensor& w, const Tensor& i, ops::Dim axis, int64_t batches) {
                          return op_of<Embedding>().call(i, w, padding_idx, scale_grad_by_freq,
                                                         sparse, *axis, batches, rows, order);
                        });
  }
};

// max_norm: scales the rows of weight that the input names, in place, to a norm of max_norm where
// theirs is larger. Entries of one row write the same values, so that it does not matter which
// does.
struct EmbeddingRenorm {
  static constexpr const char* kSchema =
      "embedding_renorm_(Tensor(a!) weight, Tensor input, float max_norm, float norm_type=2.0) "
      "-> Tensor(a!)";

  static Tensor& compose(Tensor& weight, const Tensor& input, double max_norm, double norm_type) {
    CHECK_FLOATING("embedding with max_norm", weight);
    TORCH_CHECK_VALUE(weight.dim() == 2, "embedding_renorm_: weight must have two axes, but its ",
                      "shape is ", weight.sym_sizes(), ".");
    const at::NoGradGuard no_grad;
    Tensor table = weight.detach();
    const Tensor entries = input.reshape({-1});
    const Tensor rows = pick(table, entries, 0, /*batch_dims=*/0);
    const at::ScalarType wide = at::toOpMathType(weight.scalar_type());
    const Tensor norms = at::linalg_vector_norm(rows, norm_type, at::IntArrayRef{1},
                                                /*keepdim=*/true, wide);
    // torch's own epsilon.
    const Tensor scale = at::where(norms > max_norm, max_norm / (norms + 1e-7), 1.0);
    // put_points_ counts negative entries from the end; here they are out of range.
    const Tensor places = ops::ravel_multi_index().call({entries}, {weight.sym_size(0)}, "raise",
                                                        /*axes=*/std::nullopt, kOp);
    ops::put_points_().call(table, {places}, {0}, rows.mul(scale).to(weight.scalar_type()),
                            /*batch_dims=*/0, /*front=*/false, /*axes=*/std::nullopt, kOp);
    return weight;
  }
};

// The rows that the entries of a bag name, reduced.
struct EmbeddingBag {
  static constexpr const char* kSchema =
      "embedding_bag(Tensor input, Tensor weight, Tensor? offsets=None, "
      "bool scale_grad_by_freq=False, str mode='mean', bool sparse=False, "
      "Tensor? per_sample_weights=None, bool include_last_offset=False, int? padding_idx=None) "
      "-> Tensor";
  static constexpr const char* kName = "embedding_bag";

  static Tensor compose(const Tensor& input, const Tensor& weight, const Part& offsets,
                        bool scale_grad_by_freq, std::string_view mode, bool sparse,
                        const Part& factors, bool include_last_offset,
                        std::optional<int64_t> padding_idx) {
    check(input, weight, offsets, mode, factors, include_last_offset);
    const Bags bags = bags_of(input, offsets, include_last_offset, padding_idx);
    Tensor rows = op_of<Embedding>().call(bags.entries, weight, padding_idx, scale_grad_by_freq,
                                          sparse, 0, 0, std::nullopt, std::nullopt);
    const at::ScalarType dtype = weight.scalar_type();
    if (factors) {  // those of 16-bit floats are multiplied in float32
      const Tensor each = factors->reshape_symint(bags.entries.sym_sizes()).unsqueeze(-1);
      rows = rows * each.to(at::toOpMathType(dtype));
    }
    static const auto scatter = find_op<Tensor(
        const Tensor&, const Tensor&, c10::SymInt, ops::Dim, int64_t, std::string_view,
        std::string_view, std::optional<bool>, double, std::optional<at::ScalarType>)>("scatter");
    const Tensor result =
        scatter.call(rows, bags.index, bags.count, bags.batch_dims, bags.batch_dims, mode, "fill",
                     /*deterministic=*/std::nullopt,
                     /*correction=*/1, /*dtype=*/std::nullopt);
    return (bags.batch_dims == 1 ? result.squeeze(1) : result).to(dtype);
  }

 private:
  // How scatter takes the rows of the entries: those of 2 axes in batches, each to one row.
  struct Bags {
    Tensor entries;
    Tensor index;  // what is dropped names the row behind the last
    c10::SymInt count;
    int64_t batch_dims;
  };

  static Bags bags_of(const Tensor& input, const Part& offsets, bool include_last_offset,
                      std::optional<int64_t> padding_idx) {
    if (!offsets) {
      const auto byte = input.options().dtype(at::kByte);
      return {input,
              padding_idx ? input.eq(*padding_idx).to(at::kByte) : at::zeros_like(input, byte), 1,
              /*batch_dims=*/1};
    }
    const c10::SymInt count = offsets->sym_size(0) - (include_last_offset ? 1 : 0);
    const c10::SymInt entries = input.sym_size(0);
    // How many bags have begun at each entry. What comes before the first is of the first.
    const Tensor ones = at::ones_like(*offsets, offsets->options().dtype(at::kInt));
    const Tensor begins = ops::scatter_add().call(ones, *offsets, entries + 1, 0, 0,
                                                  /*deterministic=*/std::nullopt, "raise", kName);
    Tensor index = at::cumsum(begins, 0, at::kLong).narrow_symint(0, 0, entries) - 1;
    index = index.clamp_min(0);
    if (padding_idx) index = index.masked_fill(input.eq(*padding_idx), count);
    return {input, index, count, /*batch_dims=*/0};
  }

  static void check(const Tensor& input, const Tensor& weight, const Part& offsets,
                    std::string_view mode, const Part& factors, bool include_last_offset) {
    indexing::check_index_dtype(kOp, input);
    TORCH_CHECK_VALUE(weight.dim() == 2, kName, ": weight must have two axes, but its shape is ",
                      weight.sym_sizes(), ".");
    TORCH_CHECK_VALUE(mode == "sum" || mode == "mean" || mode == "max", kName,
                      R"(: mode must be "sum", "mean" or "max", but it is ")", mode, R"(".)");
    TORCH_CHECK_VALUE(input.dim() == 1 || input.dim() == 2, kName,
                      ": input must have one axis or two, but its shape is ", input.sym_sizes(),
                      ".");
    TORCH_CHECK_VALUE(offsets.has_value() == (input.dim() == 1), kName,
                      ": offsets say where the bags of an input of one axis begin; an input of two "
                      "has a bag in each row and no offsets. But input has shape ",
                      input.sym_sizes(), ", and offsets ", offsets ? "are given." : "are missing.");
    if (offsets) {
      TORCH_CHECK_VALUE(offsets->dim() == 1, kName,
                        ": offsets must have one axis, but its shape is ", offsets->sym_sizes(),
                        ".");
      TORCH_CHECK_VALUE(
          !include_last_offset || offsets->sym_size(0).sym_ge(1).expect_true(__FILE__, __LINE__),
          kName, ": offsets must have an entry with include_last_offset.");
      indexing::check_one_device(kName, "input", input, "offsets", *offsets);
    }
    if (factors) {
      TORCH_CHECK_VALUE(mode == "sum", kName,
                        R"(: per_sample_weights is for mode="sum", but mode is ")", mode, R"(".)");
      TORCH_CHECK_TYPE(factors->scalar_type() == weight.scalar_type(), kName,
                       ": per_sample_weights and weight must have one dtype, but they are ",
                       dtype_name(factors->scalar_type()), " and ",
                       dtype_name(weight.scalar_type()), ".");
      TORCH_CHECK_VALUE(factors->sym_sizes() == input.sym_sizes(), kName,
                        ": per_sample_weights must have the shape of input, ", input.sym_sizes(),
                        ", but its shape is ", factors->sym_sizes(), ".");
      indexing::check_one_device(kName, "weight", weight, "per_sample_weights", *factors);
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
  register_op<EmbeddingBag>(m);
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.doc() = "The direct kernels of embedding, on contiguous CUDA tensors and outside autograd.";
  m.def("forward", &forward, "The rows of weight that input picks", py::arg("input"),
        py::arg("weight"));
  m.def("backward", &backward, "grad_output's rows added where forward read them",
        py::arg("grad_output"), py::arg("input"), py::arg("num_embeddings"));
  python_call::def(m, "call", op_of<Embedding>());
  python_call::def(m, "call_bag", op_of<EmbeddingBag>());
}

}  // namespace torch_ops
