// The contract of gather_nd and index: compositions of gather and gather_points, so they need no
// derivative of their own. And the binding.

#include <torch/csrc/utils/pybind.h>

#include "common/gather_family/gather_ops.h"
#include "common/torch/registration/autograd.h"
#include "common/torch/registration/register.h"
#include "common/torch/registration/sharding.h"
#include "index/arrays.h"
#include "index/points/points.h"
#include "index/python_index.h"

namespace torch_ops {
namespace {

using at::Tensor;
using at::TensorList;
using ops::Fill;

struct GatherNd {
  static constexpr const char* kSchema =
      "gather_nd(Tensor source, Tensor index, *, int batch_dims=0, str mode='raise', "
      "Scalar? fill_value=None) -> Tensor";
  static constexpr const char* kOp = "gather_nd";

  static Tensor compose(const Tensor& source, const Tensor& index, int64_t batch_dims,
                        std::string_view mode, const Fill& fill_value) {
    indexing::check_index_dtype(kOp, index);
    TORCH_CHECK_VALUE(index.dim() > 0,
                      "gather_nd: index must have at least one axis, the last of which holds ",
                      "coordinates, but it is 0-dimensional.");
    const int64_t most = std::min(index.dim() - 1, source.dim());
    TORCH_CHECK_VALUE(batch_dims >= 0 && batch_dims <= most,
                      "gather_nd: batch_dims must be between ", "0 and ", most,
                      " for source with shape ", source.sym_sizes(), " and index with shape ",
                      index.sym_sizes(), ", but it is ", batch_dims, ".");
    indexing::check_axes_match(kOp, "source", source.sym_sizes(), 0, "index", index.sym_sizes(), 0,
                               batch_dims, "source and index must have the same batch axes");
    for (const int64_t axis : shards_of(index)) {
      TORCH_CHECK_VALUE(axis != index.dim() - 1, "gather_nd: the last axis of index holds the ",
                        "coordinates of a point and cannot be sharded, but index, with shape ",
                        index.sym_sizes(), ", is sharded along it. Redistribute index first.");
    }
    const int64_t count = index.sym_size(-1).guard_int(__FILE__, __LINE__);
    TORCH_CHECK_VALUE(count <= source.dim() - batch_dims, "gather_nd: a point of index with shape ",
                      index.sym_sizes(), " has more coordinates (", count,
                      ") than source with shape ", source.sym_sizes(), " has axes",
                      batch_dims > 0 ? " after the batch axes" : "", " (",
                      source.dim() - batch_dims, ").");
    if (count == 1) {
      return ops::gather().call(source, index.select(-1, 0), batch_dims, batch_dims, mode,
                                fill_value, kOp);
    }
    if (count > 1) {
      const std::vector<int64_t> axes = span(batch_dims, count);
      Arrays arrays{index.unbind(-1), axes, axes, /*front=*/false};
      const Tensor table = fold(source, arrays, mode, kOp);
      return ops::gather_points().call(table, arrays.coordinates, arrays.dims, batch_dims,
                                       /*front=*/false, mode, fill_value, arrays.axes, kOp);
    }
    // A point without coordinates is all of the source.
    indexing::check_fill_value(kOp, indexing::parse_mode(kOp, mode), fill_value,
                               source.scalar_type());
    const auto picks = index.sym_sizes(), own = source.sym_sizes().slice(batch_dims);
    c10::SymDimVector sizes(picks.begin(), picks.end() - 1);
    Tensor rows = source;
    for (size_t axis = batch_dims; axis < sizes.size(); ++axis) rows = rows.unsqueeze(batch_dims);
    sizes.append(own.begin(), own.end());
    return rows.expand_symint(sizes).clone(at::MemoryFormat::Contiguous);
  }
};

struct Index {
  static constexpr const char* kSchema =
      "index(Tensor source, Tensor?[] indices, *, bool front=False, int[]? axes=None) -> Tensor";
  static constexpr const char* kOp = "index";

  static Tensor compose(const Tensor& source, const Indices& indices, bool front, ops::Axes axes) {
    Arrays arrays = find_arrays(kOp, source, indices, front, axes);
    if (arrays.coordinates.empty()) return source.clone();
    if (arrays.are_many()) {
      const Folded folded(source, arrays, "from_end", kOp);
      return folded.rows_back(ops::gather_points().call(
          folded.table, folded.few.coordinates, folded.few.dims, /*batch_dims=*/0, /*front=*/false,
          "from_end", std::nullopt, folded.few.axes, kOp));
    }
    if (!arrays.is_one()) {
      return ops::gather_points().call(source, arrays.coordinates, arrays.dims, /*batch_dims=*/0,
                                       front, "from_end", std::nullopt, arrays.axes, kOp);
    }
    const int64_t dim = arrays.dims[0], picked = arrays.coordinates[0].dim();
    const Tensor rows = ops::gather().call(source, arrays.coordinates[0], dim, /*batch_dims=*/0,
                                           "from_end", std::nullopt, kOp);
    if (!front || dim == 0 || picked == 0) return rows;
    return rows.movedim(span(dim, picked), span(0, picked));
  }
};

// ---- The direct pair: outside autograd, on contiguous CUDA tensors ------------------------------

// gather_nd with coordinates; both tensors contiguous.
Tensor forward(const Tensor& source, const Tensor& index, int64_t batch_dims) {
  CHECK_INPUT(source);
  CHECK_INPUT(index);
  at::AutoDispatchBelowADInplaceOrView guard;
  return GatherNd::compose(source, index, batch_dims, "raise", std::nullopt);
}

Tensor backward(const Tensor& grad_output, const Tensor& index, std::vector<int64_t> sizes,
                int64_t batch_dims) {
  CHECK_INPUT(grad_output);
  CHECK_INPUT(index);
  at::AutoDispatchBelowADInplaceOrView guard;
  std::vector<int64_t> dims;
  std::vector<c10::SymInt> indexed;
  for (int64_t j = 0; j < index.size(-1); ++j) {
    dims.push_back(batch_dims + j);
    indexed.emplace_back(sizes.at(batch_dims + j));
  }
  return points::sum_at(grad_output, index.unbind(-1), dims, indexed, batch_dims,
                        /*front=*/false, "fill",
                        /*all_named=*/false, /*deterministic=*/std::nullopt);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(torch_ops, m) {
  register_op<GatherNd>(m);
  register_op<Index>(m);
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.doc() = "The direct kernels of gather_nd, on contiguous CUDA tensors and outside autograd.";
  autograd::name_nodes_in_python();
  m.def("forward", &forward, "The slices of source at the points in index", py::arg("source"),
        py::arg("index"), py::arg("batch_dims") = 0);
  m.def("backward", &backward, "grad_output's slices added where forward read them",
        py::arg("grad_output"), py::arg("index"), py::arg("sizes"), py::arg("batch_dims") = 0);
  python_call::def_function(m, "call_index", "torch_ops::index", python_index::index);
  using python_index::Writes;
  python_call::def_function(m, "call_index_put", "torch_ops::index_put",
                            python_index::put<Writes::kPut>);
  python_call::def_function(m, "call_index_put_", "torch_ops::index_put_",
                            python_index::put<Writes::kPutInPlace>);
  python_call::def_function(m, "call_index_add", "torch_ops::index_add",
                            python_index::put<Writes::kAdd>);
  python_call::def(m, "call_gather_nd", op_of<GatherNd>());
  python_call::def(m, "call_masked_scatter",
                   find_op<Tensor(const Tensor&, const Tensor&, const std::optional<Tensor>&)>(
                       "masked_scatter"));
  python_call::def(
      m, "call_masked_gather",
      find_op<Tensor(const Tensor&, const Tensor&, std::optional<c10::SymInt>, const at::Scalar&)>(
          "masked_gather"));
}

}  // namespace torch_ops
