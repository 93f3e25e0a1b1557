// embedding: gather with what torch.nn.functional.embedding asks of its gradient. A composition of
// registered ops, so there are no kernels here.
#include <ATen/OpMathType.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/div.h>
#include <ATen/ops/embedding_sparse_backward.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/where.h>
#include <torch/csrc/utils/pybind.h>

#include "common/gather_family/gather_batching.h"
#include "common/gather_family/gather_ops.h"
#include "common/torch/checks.h"
#include "common/torch/derive.h"
#include "common/torch/python_call.h"
#include "common/torch/sharding.h"

namespace torch_ops {
namespace {

using at::Tensor;

constexpr const char* kOp = "embedding";

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
      "bool scale_grad_by_freq=False, bool sparse=False, *, int dim=0, int batch_dims=0) -> Tensor";
  static constexpr const char* kNode = "EmbeddingBackward";

  // The options are the gradient's.
  static Tensor compute(const Tensor& input, const Tensor& weight,
                        std::optional<int64_t> /*padding_idx*/, bool /*scale_grad_by_freq*/,
                        bool /*sparse*/, int64_t dim, int64_t batch_dims) {
    return pick(weight, input, dim, batch_dims);
  }

  static auto keep(const Tensor& input, const Tensor& weight, std::optional<int64_t> padding_idx,
                   bool scale_grad_by_freq, bool sparse, int64_t dim, int64_t batch_dims) {
    return std::tuple(input, weight.sym_size(dim), padding_idx.value_or(-1), scale_grad_by_freq,
                      sparse, dim, batch_dims, shards_of(weight));
  }

  // Of the weight.
  static Tensor backward(const Tensor& grad_output, const Tensor& index, const c10::SymInt& rows,
                         int64_t padding_idx, bool scale_grad_by_freq, bool sparse, int64_t dim,
                         int64_t batch_dims, const std::vector<int64_t>& shards) {
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
    Tensor sums = ops::add_rows(grad_output, entries, rows, dim, batch_dims,
                                drops ? "fill" : "raise", kOp, shards);
    if (scale_grad_by_freq) sums = scale_by_frequency(sums, index, rows, dim, batch_dims, shards);
    if (padding_idx >= 0 && !drops) sums.select(dim, padding_idx).zero_();
    return sums;
  }

  static Tensor derive(c10::DispatchKeySet keys, const Tensor& input, const Tensor& weight,
                       std::optional<int64_t> padding_idx, bool scale_grad_by_freq, bool sparse,
                       int64_t dim, int64_t batch_dims) {
    const auto node = autograd::make_node<autograd::Node<Embedding>>(weight);
    Tensor output = autograd::below_autograd(keys, op_of<Embedding>(), input, weight, padding_idx,
                                             scale_grad_by_freq, sparse, dim, batch_dims);
    autograd::record(output, node);
    autograd::set_tangent(
        output, [&](const Tensor& tangent) { return pick(tangent, input, dim, batch_dims); },
        weight);
    if (node) {
      node->keep(input, weight, padding_idx, scale_grad_by_freq, sparse, dim, batch_dims);
    }
    return output;
  }

  // dim and batch_dims are there for this.
  static Tensor batch(const Tensor& input, const Tensor& weight, std::optional<int64_t> padding_idx,
                      bool scale_grad_by_freq, bool sparse, int64_t dim, int64_t batch_dims) {
    TORCH_CHECK(!sparse || !at::functorch::isBatchedAtLevel(weight, batching::current_level()),
                "embedding: a sparse gradient is of one weight: torch.vmap cannot map over "
                "weight with sparse=True.");
    return batch_gather(kOp, weight, input, dim, batch_dims,
                        [&](const Tensor& w, const Tensor& i, ops::Dim axis, int64_t batches) {
                          return op_of<Embedding>().call(i, w, padding_idx, scale_grad_by_freq,
                                                         sparse, *axis, batches);
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
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.doc() = "The direct kernels of embedding, on contiguous CUDA tensors and outside autograd.";
  m.def("forward", &forward, "The rows of weight that input picks", py::arg("input"),
        py::arg("weight"));
  m.def("backward", &backward, "grad_output's rows added where forward read them",
        py::arg("grad_output"), py::arg("input"), py::arg("num_embeddings"));
  python_call::def(m, "call", op_of<Embedding>());
}

}  // namespace torch_ops
