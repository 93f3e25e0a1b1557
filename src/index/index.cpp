// The contract of gather_nd, index, index_put and index_add: compositions of gather, gather_points,
// put_points and scatter_add, so they need no derivative of their own. And the binding.
#include "index/index.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/List.h>
#include <ATen/ops/_unsafe_view.h>
#include <ATen/ops/nonzero.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/library.h>

#include "common/batching.h"
#include "common/gather_ops.h"
#include "index/arrays.h"
#include "index/points.h"
#include "index/python_index.h"

namespace torch_ops {
namespace {

using at::Tensor;
using at::TensorList;
using Fill = std::optional<at::Scalar>;
using Indices = c10::List<std::optional<Tensor>>;

const auto& scatter_add_inplace() {
  static const auto op =
      find_op<Tensor&(Tensor&, const Tensor&, const Tensor&, ops::Dim, int64_t, std::string_view)>(
          "scatter_add_");
  return op;
}

// ---- gather_nd ----------------------------------------------------------------------------------

Tensor gather_nd(const Tensor& source, const Tensor& index, int64_t batch_dims,
                 std::string_view mode, const Fill& fill_value) {
  indexing::check_index_dtype("gather_nd", index);
  TORCH_CHECK_VALUE(index.dim() > 0,
                    "gather_nd: index must have at least one axis, the last of which holds ",
                    "coordinates, but it is 0-dimensional.");
  const int64_t most = std::min(index.dim() - 1, source.dim());
  TORCH_CHECK_VALUE(batch_dims >= 0 && batch_dims <= most, "gather_nd: batch_dims must be between ",
                    "0 and ", most, " for source with shape ", source.sym_sizes(),
                    " and index with shape ", index.sym_sizes(), ", but it is ", batch_dims, ".");
  indexing::check_axes_match("gather_nd", "source", source.sym_sizes(), 0, "index",
                             index.sym_sizes(), 0, batch_dims,
                             "source and index must have the same batch axes");
  const int64_t count = index.sym_size(-1).guard_int(__FILE__, __LINE__);
  TORCH_CHECK_VALUE(count <= source.dim() - batch_dims, "gather_nd: a point of index with shape ",
                    index.sym_sizes(), " has ", count, " coordinates, but source with shape ",
                    source.sym_sizes(), " has ", source.dim() - batch_dims, " axes",
                    batch_dims > 0 ? " behind the batch axes." : ".");
  if (count == 1) {
    static const indexing::ModesOf modes("gather_nd");
    return ops::gather().call(source, index.select(-1, 0), batch_dims, batch_dims, modes(mode),
                              fill_value);
  }
  if (count > 1) {
    Arrays arrays{index.unbind(-1), {}, {}, /*front=*/false};
    for (int64_t axis = batch_dims; axis < batch_dims + count; ++axis) arrays.dims.push_back(axis);
    arrays.axes = arrays.dims;
    const Tensor table = fold(source, arrays, mode);
    return ops::gather_points().call(table, arrays.coordinates, arrays.dims, batch_dims,
                                     /*front=*/false, mode, fill_value, arrays.axes);
  }
  // A point without coordinates is all of the source.
  const char* op = "gather_nd";
  indexing::check_fill_value(op, indexing::parse_mode(op, mode), fill_value, source.scalar_type());
  const auto from = source.sym_sizes();
  const auto picks = index.sym_sizes();
  c10::SymDimVector sizes(picks.begin(), picks.end() - 1);
  c10::SymDimVector view(from.begin(), from.begin() + batch_dims);
  view.resize(sizes.size(), c10::SymInt(1));
  sizes.append(from.begin() + batch_dims, from.end());
  view.append(from.begin() + batch_dims, from.end());
  return source.reshape_symint(view).expand_symint(sizes).clone(at::MemoryFormat::Contiguous);
}

// ---- index: the leading axes, each with an index array, a mask or neither -----------------------

// The number that the user knows an axis of `source` by: that is a view of the user's tensor.
int64_t axis_name(const ops::Axes& axes, int64_t axis) {
  return axes && axis < static_cast<int64_t>(axes->size()) ? (*axes)[axis] : axis;
}

// `axes`: that the indices are for.
void check_axes(const char* op, const Tensor& source, int64_t axes) {
  TORCH_CHECK_INDEX(axes <= source.dim(), op, ": indices are for ", axes,
                    " axes, but source with shape ", source.sym_sizes(), " has ", source.dim(),
                    ".");
}

void check_mask(const char* op, const Tensor& source, const Tensor& mask, int64_t axis,
                const ops::Axes& axes) {
  TORCH_CHECK_VALUE(mask.dim() > 0, op, ": a mask must have an axis, but it is 0-dimensional.");
  TORCH_CHECK(mask.device() == source.device(), op,
              ": source and mask must be on one device, but source is on ", source.device(),
              " and mask is on ", mask.device(), ".");
  check_axes(op, source, axis);
  TORCH_CHECK_INDEX(axis + mask.dim() <= source.dim(), op, ": a mask with shape ", mask.sym_sizes(),
                    " is for as many axes of source from axis ", axis_name(axes, axis),
                    " on, but source has ", source.dim() - axis, " from there on.");
  for (int64_t k = 0; k < mask.dim(); ++k) {
    TORCH_CHECK_INDEX(
        mask.sym_size(k).sym_eq(source.sym_size(axis + k)).expect_true(__FILE__, __LINE__), op,
        ": a mask must have the shape of the axes that it is for, but axis ", k, " of mask with ",
        "shape ", mask.sym_sizes(), " is not as long as axis ", axis_name(axes, axis + k),
        " of source, which has size ", source.sym_size(axis + k), ".");
  }
}

bool is_mask(const Tensor& index) { return index.scalar_type() == at::kBool; }

// The entries of a mask that are true, as one array of the mask's coordinates each. Their number
// must be known on the host.
Arrays find_arrays(const char* op, const Tensor& source, const Indices& indices, bool front,
                   const ops::Axes& axes) {
  Arrays arrays{{}, {}, {}, front};
  int64_t axis = 0;
  const auto add = [&](Tensor coordinate) {
    arrays.coordinates.push_back(std::move(coordinate));
    arrays.axes.push_back(axis_name(axes, axis));
    arrays.dims.push_back(axis++);
  };
  for (size_t i = 0; i < indices.size(); ++i) {
    const std::optional<Tensor> given = indices.get(i);
    if (!given.has_value() || !given->defined()) {
      ++axis;
      continue;
    }
    if (is_mask(*given)) {
      check_mask(op, source, *given, axis, axes);
      for (Tensor& coordinate : at::nonzero(*given).unbind(1)) add(std::move(coordinate));
    } else {
      indexing::check_index_dtype(op, *given);
      add(*given);
    }
  }
  check_axes(op, source, axis);
  return arrays;
}

Tensor index(const Tensor& source, const Indices& indices, bool front, ops::Axes axes) {
  Arrays arrays = find_arrays("index", source, indices, front, axes);
  if (arrays.coordinates.empty()) return source.clone();
  if (arrays.are_many()) {
    const Arranged arranged(source, arrays);
    Tensor table = arranged.table;
    Arrays few{std::move(arrays.coordinates), arranged.dims, std::move(arrays.axes), false};
    table = fold(table, few, "from_end");
    return arranged.rows_back(ops::gather_points().call(table, few.coordinates, few.dims,
                                                        /*batch_dims=*/0, /*front=*/false,
                                                        "from_end", std::nullopt, few.axes));
  }
  if (!arrays.is_one()) {
    return ops::gather_points().call(source, arrays.coordinates, arrays.dims, /*batch_dims=*/0,
                                     front, "from_end", std::nullopt, arrays.axes);
  }
  const int64_t dim = arrays.dims[0], picked = arrays.coordinates[0].dim();
  const Tensor rows = ops::gather().call(source, arrays.coordinates[0], dim, /*batch_dims=*/0,
                                         "from_end", std::nullopt);
  if (!front || dim == 0 || picked == 0) return rows;
  std::vector<int64_t> from, to;
  for (int64_t axis = 0; axis < picked; ++axis) {
    from.push_back(dim + axis);
    to.push_back(axis);
  }
  return rows.movedim(from, to);
}

// ---- index_put, index_add -----------------------------------------------------------------------

// A call that writes.
struct Write {
  const char* op;  // in whose name errors are raised
  const Indices& indices;
  const Tensor& values;
  bool front;
  ops::Axes axes;
  std::optional<bool> deterministic;  // of sums

  std::string_view mode() const {
    static const indexing::ModesOf modes("index_add");
    return modes("from_end");
  }
};

// A mask as a condition over all of the source, where it is the only index and no value belongs to
// one of its entries: then nobody has to know how many are true.
std::optional<Tensor> as_condition(const Tensor& source, const Write& call) {
  int64_t axis = 0, whole = 0;  // axes before the mask, and those that are taken whole
  std::optional<Tensor> mask;
  for (size_t i = 0; i < call.indices.size(); ++i) {
    const std::optional<Tensor> given = call.indices.get(i);
    if (given.has_value() && given->defined()) {
      if (mask || !is_mask(*given)) return std::nullopt;
      mask = given;
      axis = whole;
    } else {
      ++whole;
    }
  }
  if (!mask) return std::nullopt;
  check_mask(call.op, source, *mask, axis, call.axes);
  check_axes(call.op, source, whole + mask->dim());
  const int64_t behind = source.dim() - axis - mask->dim();
  const int64_t own = call.values.dim();
  if (own > behind || (call.front && axis > 0 && own > 0)) return std::nullopt;
  c10::SymDimVector sizes(axis, c10::SymInt(1));
  sizes.append(mask->sym_sizes().begin(), mask->sym_sizes().end());
  sizes.resize(source.dim(), c10::SymInt(1));
  return mask->reshape_symint(sizes);
}

c10::SymDimVector picked_sizes(const char* op, const Tensor& source, const Arrays& arrays) {
  const points::Points points = points::check_points(op, source, arrays.coordinates, arrays.dims,
                                                     /*batch_dims=*/0, arrays.front);
  return points::rows_sizes(source.sym_sizes(), points);
}

// The values as long as what is written.
Tensor expand_values(const char* op, const Tensor& values, c10::SymIntArrayRef sizes) {
  const auto rank = static_cast<int64_t>(sizes.size());
  bool fits = values.dim() <= rank, same = values.dim() == rank;
  for (int64_t axis = 1; fits && axis <= values.dim(); ++axis) {
    const c10::SymInt size = values.sym_size(-axis);
    const bool one = TORCH_GUARD_OR_FALSE(size.sym_eq(1));
    fits = one || size.sym_eq(sizes[rank - axis]).expect_true(__FILE__, __LINE__);
    same = same && !one;
  }
  TORCH_CHECK_VALUE(fits, op, ": values with shape ", values.sym_sizes(),
                    " cannot be broadcast to what is written, which has shape ", sizes, ".");
  return same ? values : values.expand_symint(sizes);
}

void check_values(const char* op, const Tensor& source, const Tensor& values) {
  TORCH_CHECK_TYPE(source.scalar_type() == values.scalar_type(), op,
                   ": source and values must have one dtype, but source is ", source.scalar_type(),
                   " and values is ", values.scalar_type(), ".");
  TORCH_CHECK(source.device() == values.device(), op,
              ": source and values must be on one device, but source is on ", source.device(),
              " and values is on ", values.device(), ".");
}

Tensor where_sums(const Tensor& condition, const Tensor& values) {
  return at::where(condition, values, at::zeros({}, values.options()));
}

// Is an axis of the source what one scatter_add has its sums along?
bool is_one_axis(const Arrays& arrays) {
  return arrays.is_one() && !(arrays.front && arrays.dims[0] > 0);
}

std::vector<c10::SymInt> indexed_sizes(const Tensor& source, const Arrays& arrays) {
  std::vector<c10::SymInt> sizes;
  for (const int64_t dim : arrays.dims) sizes.push_back(source.sym_size(dim));
  return sizes;
}

// What is to be added to the source, as long as it.
Tensor sums_of(const Tensor& source, const Write& call, const Arrays& arrays, const Tensor& rows) {
  if (is_one_axis(arrays)) {
    return ops::scatter_add().call(rows, arrays.coordinates[0], source.sym_size(arrays.dims[0]),
                                   arrays.dims[0], /*batch_dims=*/0, call.deterministic,
                                   call.mode());
  }
  return points::sum_at(rows, arrays.coordinates, arrays.dims, indexed_sizes(source, arrays),
                        source.dim(),
                        /*batch_dims=*/0, arrays.front, call.mode(), /*all_named=*/true,
                        call.deterministic, arrays.axes);
}

// May rows be added to the elements of `out`, or of a copy of it, where they lie? Not under a
// transform, where `out` may be one for many samples; nor in a given order.
bool adds_in_place(const Tensor& out, bool contiguous, const Write& call, const Arrays& arrays) {
  return !call.deterministic.value_or(false) &&
         (is_one_axis(arrays) || (arrays.are_side_by_side() && contiguous)) &&
         !at::functorch::maybeCurrentDynamicLayer().has_value() &&
         !out.key_set().has(c10::DispatchKey::Batched) &&
         !call.values.key_set().has(c10::DispatchKey::Batched);
}

// Adds rows to `out`, contiguous, at the points of several arrays side by side. Returns it with the
// axes of these joined, as `view(out, sizes)` shows it.
template <class View>
Tensor add_at_points(const Tensor& out, const Write& call, const Arrays& arrays, const Tensor& rows,
                     View&& view) {
  const std::vector<c10::SymInt> indexed = indexed_sizes(out, arrays);
  const Tensor places =
      points::number_points(arrays.coordinates, indexed, call.mode(), ops::Axes(arrays.axes));
  const auto from = out.sym_sizes();
  c10::SymDimVector sizes(from.begin(), from.begin() + arrays.dims[0]);
  sizes.push_back(c10::multiply_integers(indexed));
  sizes.append(from.begin() + arrays.dims.back() + 1, from.end());
  Tensor flat = view(out, sizes);
  scatter_add_inplace().call(flat, rows, places, arrays.dims[0], /*batch_dims=*/0, "unchecked");
  return flat;
}

void add_to(Tensor& out, const Write& call, const Arrays& arrays, const Tensor& rows) {
  if (!adds_in_place(out, out.is_contiguous(), call, arrays)) {
    out.add_(sums_of(out, call, arrays, rows));
  } else if (is_one_axis(arrays)) {
    scatter_add_inplace().call(out, rows, arrays.coordinates[0], arrays.dims[0], /*batch_dims=*/0,
                               call.mode());
  } else {
    add_at_points(out, call, arrays, rows,
                  [](const Tensor& all, const auto& sizes) { return all.view_symint(sizes); });
  }
}

// The same, to a copy of the source.
Tensor added_to(const Tensor& source, const Write& call, const Arrays& arrays, const Tensor& rows) {
  if (!adds_in_place(source, /*contiguous=*/true, call, arrays)) {
    return source.add(sums_of(source, call, arrays, rows));
  }
  Tensor result = source.clone(at::MemoryFormat::Contiguous);
  if (is_one_axis(arrays)) {
    add_to(result, call, arrays, rows);
    return result;
  }
  // Autograd need not know that they are views of a copy that nobody else has: a write to a view
  // costs copies of its gradient.
  const auto view = [](const Tensor& all, const auto& sizes) {
    return at::_unsafe_view_symint(all, sizes);
  };
  return view(add_at_points(result, call, arrays, rows, view), source.sym_sizes());
}

Tensor put_many(const Tensor& source, const Arrays& arrays, const Tensor& rows) {
  const Arranged arranged(source, arrays);
  Arrays few{arrays.coordinates, arranged.dims, arrays.axes, false};
  static const indexing::ModesOf modes("index_put");
  const Tensor table = fold(arranged.table, few, modes("from_end"));
  return arranged.table_back(ops::put_points().call(table, few.coordinates, few.dims,
                                                    arranged.rows_to_front(rows), /*batch_dims=*/0,
                                                    /*front=*/false, few.axes));
}

Tensor index_put(const Tensor& source, const Indices& indices, const Tensor& values,
                 bool accumulate, bool front, std::optional<bool> deterministic, ops::Axes axes) {
  const Write call{
      accumulate ? "index_add" : "index_put", indices, values, front, axes, deterministic};
  check_values(call.op, source, values);
  if (const auto condition = as_condition(source, call)) {
    if (accumulate) return source.add(where_sums(*condition, values));
    return at::where(*condition, values, source);
  }
  const Arrays arrays = find_arrays(call.op, source, indices, front, axes);
  if (arrays.coordinates.empty()) {
    const Tensor rows = expand_values(call.op, values, source.sym_sizes());
    return accumulate ? source.add(rows) : rows.clone(at::MemoryFormat::Contiguous);
  }
  const Tensor rows = expand_values(call.op, values, picked_sizes(call.op, source, arrays));
  if (accumulate) return added_to(source, call, arrays, rows);
  if (arrays.are_many()) return put_many(source, arrays, rows);
  return ops::put_points().call(source, arrays.coordinates, arrays.dims, rows, /*batch_dims=*/0,
                                front, arrays.axes);
}

Tensor& index_put_(Tensor& source, const Indices& indices, const Tensor& values, bool accumulate,
                   bool front, std::optional<bool> deterministic, ops::Axes axes) {
  const Write call{
      accumulate ? "index_add" : "index_put", indices, values, front, axes, deterministic};
  check_values(call.op, source, values);
  if (const auto condition = as_condition(source, call)) {
    if (accumulate) return source.add_(where_sums(*condition, values));
    if (values.dim() == 0) return source.masked_fill_(*condition, values);
    return source.copy_(at::where(*condition, values, source));
  }
  const Arrays arrays = find_arrays(call.op, source, indices, front, axes);
  if (arrays.coordinates.empty()) {
    const Tensor rows = expand_values(call.op, values, source.sym_sizes());
    return accumulate ? source.add_(rows) : source.copy_(rows);
  }
  const Tensor rows = expand_values(call.op, values, picked_sizes(call.op, source, arrays));
  if (accumulate) {
    add_to(source, call, arrays, rows);
    return source;
  }
  if (arrays.are_many()) return source.copy_(put_many(source, arrays, rows));
  return ops::put_points_().call(source, arrays.coordinates, arrays.dims, rows, /*batch_dims=*/0,
                                 front, arrays.axes);
}

Tensor index_add(const Tensor& source, const Indices& indices, const Tensor& values, bool front,
                 std::optional<bool> deterministic, ops::Axes axes) {
  return index_put(source, indices, values, /*accumulate=*/true, front, deterministic, axes);
}

// ---- torch.autocast -----------------------------------------------------------------------------

// On CUDA torch promotes the two tensors of its index_put, of which one may have come out of a
// matrix product in 16 bits. On the CPU it does not.
Tensor index_put_autocast(const Tensor& source, const Indices& indices, const Tensor& values,
                          bool accumulate, bool front, std::optional<bool> deterministic,
                          ops::Axes axes) {
  const c10::impl::ExcludeDispatchKeyGuard guard(c10::DispatchKey::AutocastCUDA);
  const auto call = [&](const Tensor& to, const Tensor& from) {
    return index_put(to, indices, from, accumulate, front, deterministic, axes);
  };
  if (source.scalar_type() == values.scalar_type()) return call(source, values);
  const at::ScalarType wide = at::autocast::promote_type(
      at::autocast::get_lower_precision_fp_from_device_type(at::kCUDA), at::kCUDA, source, values);
  return call(at::autocast::cached_cast(wide, source, at::kCUDA),
              at::autocast::cached_cast(wide, values, at::kCUDA));
}

Tensor index_add_autocast(const Tensor& source, const Indices& indices, const Tensor& values,
                          bool front, std::optional<bool> deterministic, ops::Axes axes) {
  return index_put_autocast(source, indices, values, /*accumulate=*/true, front, deterministic,
                            axes);
}

// ---- The direct pair: outside autograd, on contiguous CUDA tensors ------------------------------

// gather_nd with coordinates; both tensors contiguous.
Tensor forward(const Tensor& source, const Tensor& index, int64_t batch_dims) {
  CHECK_INPUT(source);
  CHECK_INPUT(index);
  at::AutoDispatchBelowADInplaceOrView guard;
  return gather_nd(source, index, batch_dims, "raise", std::nullopt);
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
  return points::sum_at(grad_output, index.unbind(-1), dims, indexed,
                        static_cast<int64_t>(sizes.size()), batch_dims, /*front=*/false, "fill",
                        /*all_named=*/false, /*deterministic=*/std::nullopt);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(torch_ops, m) {
  m.def(
      "gather_nd(Tensor source, Tensor index, *, int batch_dims=0, str mode='raise', "
      "Scalar? fill_value=None) -> Tensor",
      {at::Tag::pt2_compliant_tag});
  m.def("index(Tensor source, Tensor?[] indices, *, bool front=False, int[]? axes=None) -> Tensor",
        {at::Tag::pt2_compliant_tag});
  m.def(
      "index_put(Tensor source, Tensor?[] indices, Tensor values, bool accumulate=False, *, "
      "bool front=False, bool? deterministic=None, int[]? axes=None) -> Tensor",
      {at::Tag::pt2_compliant_tag});
  m.def(
      "index_put_(Tensor(a!) source, Tensor?[] indices, Tensor values, bool accumulate=False, *, "
      "bool front=False, bool? deterministic=None, int[]? axes=None) -> Tensor(a!)",
      {at::Tag::pt2_compliant_tag});
  m.def(
      "index_add(Tensor source, Tensor?[] indices, Tensor values, *, bool front=False, "
      "bool? deterministic=None, int[]? axes=None) -> Tensor",
      {at::Tag::pt2_compliant_tag});
}

TORCH_LIBRARY_IMPL(torch_ops, CompositeImplicitAutograd, m) {
  m.impl("gather_nd", gather_nd);
  m.impl("index", index);
  m.impl("index_put", index_put);
  m.impl("index_put_", index_put_);
  m.impl("index_add", index_add);
}

// torch.vmap does not take a composition for a rule by itself: it would loop over the samples.
TORCH_LIBRARY_IMPL(torch_ops, FuncTorchBatched, m) {
  m.impl("gather_nd", gather_nd);
  m.impl("index", index);
  m.impl("index_put", index_put);
  m.impl("index_put_", index_put_);
  m.impl("index_add", index_add);
}

// Nor does torch.func.functionalize, of one that works in place.
TORCH_LIBRARY_IMPL(torch_ops, Functionalize, m) { m.impl("index_put_", index_put_); }

TORCH_LIBRARY_IMPL(torch_ops, AutocastCUDA, m) {
  m.impl("index_put", index_put_autocast);
  m.impl("index_add", index_add_autocast);
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.doc() = "The direct kernels of gather_nd, on contiguous CUDA tensors and outside autograd.";
  m.def("forward", &forward, "The slices of source at the points in index", py::arg("source"),
        py::arg("index"), py::arg("batch_dims") = 0);
  m.def("backward", &backward, "grad_output's slices added where forward read them",
        py::arg("grad_output"), py::arg("index"), py::arg("sizes"), py::arg("batch_dims") = 0);
  python_call::def_function(m, "call_index", "torch_ops::index", python_index::index);
  python_call::def_function(m, "call_index_put", "torch_ops::index_put", python_index::put<false>);
  python_call::def_function(m, "call_index_put_", "torch_ops::index_put_", python_index::put<true>);
  python_call::def(
      m, "call_gather_nd",
      find_op<Tensor(const Tensor&, const Tensor&, int64_t, std::string_view, const Fill&)>(
          "gather_nd"));
  python_call::def(
      m, "call_masked_gather",
      find_op<Tensor(const Tensor&, const Tensor&, std::optional<c10::SymInt>, const at::Scalar&)>(
          "masked_gather"));
}

}  // namespace torch_ops
