// embedding: gather with what torch.nn.functional.embedding asks of its gradient. A composition of
// registered ops, so there are no kernels here.
#include <ATen/OpMathType.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/div.h>
#include <ATen/ops/embedding_sparse_backward.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/where.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/library.h>

#include "common/gather_family/gather_ops.h"
#include "common/gather_family/index_mode_args.h"
#include "common/gather_family/indexing.h"
#include "common/torch/autograd.h"
#include "common/torch/batching.h"
#include "common/torch/checks.h"
#include "common/torch/op.h"
#include "common/torch/python_call.h"

namespace torch_ops {
namespace {

using at::Tensor;
using at::TensorList;
using autograd::SavedVariable;
using autograd::variable_list;

// Errors are raised in embedding's name.
std::string_view raises() {
  static const indexing::ModesOf modes("embedding");
  return modes("raise");
}

const auto& embedding_op() {
  static const auto op = find_op<Tensor(const Tensor&, const Tensor&, std::optional<int64_t>, bool,
                                        bool, int64_t, int64_t)>("embedding");
  return op;
}

// For all backends. The options are the gradient's.
Tensor embedding(const Tensor& input, const Tensor& weight, std::optional<int64_t> /*padding_idx*/,
                 bool /*scale_grad_by_freq*/, bool /*sparse*/, int64_t dim, int64_t batch_dims) {
  return ops::gather().call(weight, input, dim, batch_dims, raises(), std::nullopt);
}

// ---- Derivative ---------------------------------------------------------------------------------

// The sums of each row divided by how often the input names it.
Tensor scale_by_frequency(const Tensor& sums, const Tensor& input, const c10::SymInt& rows,
                          int64_t dim, int64_t batch_dims) {
  const Tensor ones = at::ones_symint(input.sym_sizes(), input.options().dtype(at::kFloat));
  Tensor counts = ops::scatter_add().call(ones, input, rows, batch_dims, batch_dims,
                                          /*deterministic=*/std::nullopt, raises());
  for (int64_t axis = batch_dims; axis < dim; ++axis) counts = counts.unsqueeze(batch_dims);
  while (counts.dim() < sums.dim()) counts = counts.unsqueeze(-1);
  // 16-bit sums are divided in float32.
  return at::div(sums, counts.clamp_min(1)).to(sums.scalar_type());
}

struct EmbeddingNode final : autograd::DerivativeNode<EmbeddingNode> {
  static constexpr const char* kName = "EmbeddingBackward";
  SavedVariable input;
  c10::SymInt rows;
  int64_t padding_idx = -1;  // none
  bool scale_grad_by_freq = false;
  bool sparse = false;
  int64_t dim = 0;
  int64_t batch_dims = 0;

  template <class Visit>
  void fields(Visit&& visit) {
    visit(input);
    visit(rows);
    visit(padding_idx);
    visit(scale_grad_by_freq);
    visit(sparse);
    visit(dim);
    visit(batch_dims);
  }

  variable_list backward(const Tensor& grad_output) {
    const Tensor index = unpack(input);
    variable_list grads(2);
    if (!needs_input_grad(1)) return grads;
    if (sparse) {
      const bool narrow = index.scalar_type() != at::kLong && index.scalar_type() != at::kInt;
      const Tensor entries = (narrow ? index.to(at::kLong) : index).reshape({-1});
      const Tensor grads_of_entries =
          index.dim() == 0 ? grad_output.unsqueeze(0) : grad_output.flatten(0, index.dim() - 1);
      grads[1] = at::embedding_sparse_backward(grads_of_entries, entries, rows.expect_int(),
                                               padding_idx, scale_grad_by_freq);
      return grads;
    }
    Tensor sums = ops::scatter_add().call(grad_output, index, rows, dim, batch_dims,
                                          /*deterministic=*/std::nullopt, raises());
    if (scale_grad_by_freq) sums = scale_by_frequency(sums, index, rows, dim, batch_dims);
    if (padding_idx >= 0) sums.select(dim, padding_idx).zero_();
    grads[1] = sums;
    return grads;
  }
};

Tensor embedding_autograd(c10::DispatchKeySet keys, const Tensor& input, const Tensor& weight,
                          std::optional<int64_t> padding_idx, bool scale_grad_by_freq, bool sparse,
                          int64_t dim, int64_t batch_dims) {
  const auto node = autograd::make_node<EmbeddingNode>(input, weight);
  Tensor output = autograd::below_autograd(keys, embedding_op(), input, weight, padding_idx,
                                           scale_grad_by_freq, sparse, dim, batch_dims);
  autograd::record(output, node);
  autograd::set_tangent(
      output,
      [&](const Tensor& tangent) {
        return ops::gather().call(tangent, input, dim, batch_dims, raises(), std::nullopt);
      },
      weight);
  if (node) {
    node->input = SavedVariable(input, /*is_output=*/false);
    node->rows = weight.sym_size(dim);
    node->padding_idx = padding_idx.value_or(-1);
    node->scale_grad_by_freq = scale_grad_by_freq;
    node->sparse = sparse;
    node->dim = dim;
    node->batch_dims = batch_dims;
  }
  return output;
}

// ---- torch.vmap ---------------------------------------------------------------------------------

// As for gather: dim and batch_dims are there for this.
Tensor embedding_batched(const Tensor& input, const Tensor& weight,
                         std::optional<int64_t> padding_idx, bool scale_grad_by_freq, bool sparse,
                         int64_t dim, int64_t batch_dims) {
  using batching::Batched;
  return batching::apply(
      [&](const Batched& picks, const Batched& table) -> Batched {
        TORCH_CHECK(!sparse || !table.axis,
                    "embedding: a sparse gradient is of one weight: torch.vmap cannot map over "
                    "weight with sparse=True.");
        const auto call = [&](const Tensor& i, const Tensor& w, int64_t axis, int64_t batch) {
          return embedding_op().call(i, w, padding_idx, scale_grad_by_freq, sparse, axis, batch);
        };
        if (picks.axis && table.axis) {
          return {call(picks.at(0), table.at(0), dim + 1, batch_dims + 1), 0};
        }
        if (table.axis) {
          return {call(picks.value, table.at(batch_dims), dim + 1, batch_dims), batch_dims};
        }
        if (picks.axis) return {call(picks.at(batch_dims), table.value, dim, batch_dims), dim};
        return {call(picks.value, table.value, dim, batch_dims), std::nullopt};
      },
      input, weight);
}

// ---- max_norm -----------------------------------------------------------------------------------

// Scales the rows of weight that the input names, in place, to a norm of max_norm where theirs is
// larger. Entries of one row write the same values, so that it does not matter which does.
Tensor& embedding_renorm_(Tensor& weight, const Tensor& input, double max_norm, double norm_type) {
  CHECK_FLOATING("embedding with max_norm", weight);
  TORCH_CHECK_VALUE(weight.dim() == 2, "embedding_renorm_: weight must have two axes, but its ",
                    "shape is ", weight.sym_sizes(), ".");
  const at::NoGradGuard no_grad;
  Tensor table = weight.detach();
  const Tensor entries = input.reshape({-1});
  const Tensor rows =
      ops::gather().call(table, entries, 0, /*batch_dims=*/0, raises(), std::nullopt);
  const at::ScalarType wide = at::toOpMathType(weight.scalar_type());
  const Tensor norms = at::linalg_vector_norm(rows, norm_type, at::IntArrayRef{1},
                                              /*keepdim=*/true, wide);
  // torch's own epsilon.
  const Tensor scale = at::where(norms > max_norm, max_norm / (norms + 1e-7), 1.0);
  // put_points_ counts negative entries from the end; here they are out of range.
  const Tensor places = ops::ravel_multi_index().call({entries}, {weight.sym_size(0)}, raises(),
                                                      /*axes=*/std::nullopt);
  ops::put_points_().call(table, {places}, {0}, rows.mul(scale).to(weight.scalar_type()),
                          /*batch_dims=*/0, /*front=*/false, /*axes=*/std::nullopt,
                          /*name=*/"embedding");
  return weight;
}

// ---- The direct pair: outside autograd, on contiguous CUDA tensors ------------------------------

Tensor forward(const Tensor& input, const Tensor& weight) {
  CHECK_INPUT(input);
  CHECK_INPUT(weight);
  at::AutoDispatchBelowADInplaceOrView guard;
  return ops::gather().call(weight, input, 0, /*batch_dims=*/0, raises(), std::nullopt);
}

Tensor backward(const Tensor& grad_output, const Tensor& input, int64_t num_embeddings) {
  CHECK_INPUT(grad_output);
  CHECK_INPUT(input);
  at::AutoDispatchBelowADInplaceOrView guard;
  return ops::scatter_add().call(grad_output, input, num_embeddings, 0, /*batch_dims=*/0,
                                 /*deterministic=*/std::nullopt, raises());
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(torch_ops, m) {
  m.def(
      "embedding(Tensor input, Tensor weight, int? padding_idx=None, "
      "bool scale_grad_by_freq=False, bool sparse=False, *, int dim=0, int batch_dims=0) -> Tensor",
      {at::Tag::pt2_compliant_tag});
  m.def(
      "embedding_renorm_(Tensor(a!) weight, Tensor input, float max_norm, float norm_type=2.0) "
      "-> Tensor(a!)",
      {at::Tag::pt2_compliant_tag});
}

TORCH_LIBRARY_IMPL(torch_ops, CompositeExplicitAutograd, m) { m.impl("embedding", embedding); }

TORCH_LIBRARY_IMPL(torch_ops, Autograd, m) { m.impl("embedding", embedding_autograd); }

TORCH_LIBRARY_IMPL(torch_ops, FuncTorchBatched, m) {
  m.impl("embedding", embedding_batched);
  m.impl("embedding_renorm_", embedding_renorm_);
}

// A composition, which torch.vmap and torch.func.functionalize do not take apart by themselves.
TORCH_LIBRARY_IMPL(torch_ops, CompositeImplicitAutograd, m) {
  m.impl("embedding_renorm_", embedding_renorm_);
}

TORCH_LIBRARY_IMPL(torch_ops, Functionalize, m) { m.impl("embedding_renorm_", embedding_renorm_); }

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.doc() = "The direct kernels of embedding, on contiguous CUDA tensors and outside autograd.";
  m.def("forward", &forward, "The rows of weight that input picks", py::arg("input"),
        py::arg("weight"));
  m.def("backward", &backward, "grad_output's rows added where forward read them",
        py::arg("grad_output"), py::arg("input"), py::arg("num_embeddings"));
  python_call::def(m, "call", embedding_op());
}

}  // namespace torch_ops
