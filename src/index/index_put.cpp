// The contract of index_put and index_add: compositions of put_points and scatter_add, so they need
// no derivative of their own.
#include <ATen/autocast_mode.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/functorch/DynamicLayer.h>
#include <ATen/functorch/PlumbingHelper.h>
#include <ATen/ops/_unsafe_view.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>

#include "common/gather_family/gather_ops.h"
#include "common/gather_family/summable.h"
#include "common/torch/registration/register.h"
#include "index/arrays.h"
#include "index/points/points.h"

namespace torch_ops {
namespace {

using at::Tensor;

constexpr std::string_view kMode = "from_end";  // of the ops that are called

// A call that writes.
struct Write {
  const char* op;  // the name in errors, its own and those of the ops that it calls
  bool in_place;
  const Indices& indices;
  const Tensor& values;
  bool front;
  ops::Axes axes;
  std::optional<bool> deterministic;  // of sums
};

// Whether values can be broadcast to these sizes, and whether they have them. As in NumPy and
// torch, they may have more axes, of length 1, in front.
struct Fit {
  bool fits = true, same;
  int64_t surplus;  // axes that the sizes lack

  Fit(const Tensor& values, c10::SymIntArrayRef sizes) {
    const auto rank = static_cast<int64_t>(sizes.size());
    same = values.dim() == rank;
    surplus = std::max<int64_t>(values.dim() - rank, 0);
    for (int64_t axis = 1; fits && axis <= values.dim(); ++axis) {
      const c10::SymInt size = values.sym_size(-axis);
      const bool one = TORCH_GUARD_OR_FALSE(size.sym_eq(1));
      fits =
          one || (axis <= rank && size.sym_eq(sizes[rank - axis]).expect_true(__FILE__, __LINE__));
      same = same && !one;
    }
  }
};

// The values as long as what is written.
Tensor expand_values(const char* op, const Tensor& values, c10::SymIntArrayRef sizes) {
  const Fit fit(values, sizes);
  TORCH_CHECK_VALUE(fit.fits, op, ": values with shape ", values.sym_sizes(),
                    " cannot be broadcast to what is written, which has shape ", sizes, ".");
  if (fit.same) return values;
  const Tensor rows =
      fit.surplus > 0 ? values.view_symint(values.sym_sizes().slice(fit.surplus)) : values;
  return rows.expand_symint(sizes);
}

// Can rows be written where a mask is true without the cost of counting them? On the CPU, unless
// the call is traced or mapped over samples.
bool is_counted_for_free(const Tensor& source, const Tensor& mask, const Write& call) {
  const auto keys = source.key_set() | mask.key_set() | call.values.key_set();
  return source.is_cpu() && mask.is_cpu() &&
         !keys.has_any(c10::DispatchKeySet(
             {c10::DispatchKey::Python, c10::DispatchKey::Functionalize,
              c10::DispatchKey::FuncTorchBatched, c10::DispatchKey::Batched})) &&
         !at::functorch::maybeCurrentDynamicLayer().has_value() &&
         !c10::impl::dispatch_mode_enabled() && !at::tracer::impl::is_dispatch_enabled();
}

// A mask as a condition over all of the source, if it is the only index and no value belongs to
// one of its entries: then the number of true ones need not be known.
std::optional<Tensor> as_condition(const Tensor& source, const Write& call) {
  int64_t axis = 0, whole = 0;  // axes before the mask, and those that are used whole
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
  const auto last = source.sym_sizes().slice(source.dim() - own);
  TORCH_CHECK_VALUE(Fit(call.values, last).fits, call.op, ": values with shape ",
                    call.values.sym_sizes(), " cannot be broadcast to what is written where the ",
                    "mask is true, the last axes of which have sizes ", last, ".");
  // A row, a column or the like: the others need not be read.
  if (own > 0 && call.in_place && !call.deterministic.value_or(false) &&
      is_counted_for_free(source, *mask, call)) {
    return std::nullopt;
  }
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

Tensor& add_all(Tensor& source, const Tensor& rows) {
  as_bits(source).add_(as_bits(rows));
  return source;
}

Tensor where_sums(const Tensor& condition, const Tensor& values) {
  const Tensor bits = as_bits(values);
  return from_bits(at::where(condition, bits, at::zeros({}, bits.options())), values.scalar_type());
}

// Is an axis of the source the one along which one scatter_add has its sums?
bool is_one_axis(const Arrays& arrays) {
  return arrays.is_one() && !(arrays.front && arrays.dims[0] > 0);
}

// The summands for the source, of the same length.
Tensor sums_of(const Tensor& source, const Write& call, const Arrays& arrays, const Tensor& rows) {
  if (is_one_axis(arrays)) {
    return ops::scatter_add().call(rows, arrays.coordinates[0], source.sym_size(arrays.dims[0]),
                                   arrays.dims[0], /*batch_dims=*/0, call.deterministic, kMode,
                                   call.op);
  }
  return points::sum_at(rows, arrays.coordinates, arrays.dims, indexed_sizes(source, arrays),
                        /*batch_dims=*/0, arrays.front, kMode, /*all_named=*/true,
                        call.deterministic, arrays.axes, call.op);
}

// May rows be added in place to the elements of `out`, or of a copy of it? Not under a
// transform, where `out` may be shared by many samples; nor in a fixed order.
bool adds_in_place(const Tensor& out, bool contiguous, const Write& call, const Arrays& arrays) {
  return !call.deterministic.value_or(false) &&
         (is_one_axis(arrays) || (arrays.are_side_by_side() && contiguous)) &&
         !at::functorch::maybeCurrentDynamicLayer().has_value() &&
         !out.key_set().has(c10::DispatchKey::Batched) &&
         !call.values.key_set().has(c10::DispatchKey::Batched);
}

// Adds rows to `out`, contiguous, at the points of several adjacent arrays. Returns it with the
// axes of these joined, as `view(out, sizes)` shows it.
template <class View>
Tensor add_at_points(const Tensor& out, const Write& call, const Arrays& arrays, const Tensor& rows,
                     View&& view) {
  const std::vector<c10::SymInt> indexed = indexed_sizes(out, arrays);
  const Tensor places =
      points::number_points(arrays.coordinates, indexed, kMode, ops::Axes(arrays.axes), call.op);
  const auto from = out.sym_sizes();
  c10::SymDimVector sizes(from.begin(), from.begin() + arrays.dims[0]);
  sizes.push_back(c10::multiply_integers(indexed));
  sizes.append(from.begin() + arrays.dims.back() + 1, from.end());
  Tensor flat = view(out, sizes);
  ops::scatter_add_().call(flat, rows, places, arrays.dims[0], /*batch_dims=*/0, "unchecked",
                           call.op);
  return flat;
}

void add_to(Tensor& out, const Write& call, const Arrays& arrays, const Tensor& rows) {
  if (!adds_in_place(out, out.is_contiguous(), call, arrays)) {
    add_all(out, sums_of(out, call, arrays, rows));
  } else if (is_one_axis(arrays)) {
    ops::scatter_add_().call(out, rows, arrays.coordinates[0], arrays.dims[0], /*batch_dims=*/0,
                             kMode, call.op);
  } else {
    add_at_points(out, call, arrays, rows,
                  [](const Tensor& all, const auto& sizes) { return all.view_symint(sizes); });
  }
}

// May a plain copy of `source` not hold the result, which is of a subclass that values or arrays
// are of?
bool is_of_another_class(const Tensor& source, const Write& call, const Arrays& arrays) {
  const auto is_subclass = [](const Tensor& tensor) {
    return tensor.key_set().has(c10::DispatchKey::Python);
  };
  return !is_subclass(source) &&
         (is_subclass(call.values) ||
          std::any_of(arrays.coordinates.begin(), arrays.coordinates.end(), is_subclass));
}

// The same, to a copy of the source.
Tensor added_to(const Tensor& source, const Write& call, const Arrays& arrays, const Tensor& rows) {
  if (!adds_in_place(source, /*contiguous=*/true, call, arrays) ||
      is_of_another_class(source, call, arrays)) {
    return sum_of(source, sums_of(source, call, arrays, rows));
  }
  Tensor result = source.clone(at::MemoryFormat::Contiguous);
  if (is_one_axis(arrays) || !(source.requires_grad() || rows.requires_grad())) {
    add_to(result, call, arrays, rows);
    return result;
  }
  // Autograd need not know that these are views, of a copy that is not used elsewhere: the gradient
  // of a write to a view needs copies as large as the source.
  const auto view = [](const Tensor& all, const auto& sizes) {
    return at::_unsafe_view_symint(all, sizes);
  };
  return view(add_at_points(result, call, arrays, rows, view), source.sym_sizes());
}

Tensor put_many(const Tensor& source, const Write& call, const Arrays& arrays, const Tensor& rows) {
  const Folded folded(source, arrays, kMode, call.op);
  return folded.table_back(ops::put_points().call(
      folded.table, folded.few.coordinates, folded.few.dims, folded.rows_to_front(rows),
      /*batch_dims=*/0, /*front=*/false, folded.few.axes, call.op));
}

struct IndexPut {
  static constexpr const char* kSchema =
      "index_put(Tensor source, Tensor?[] indices, Tensor values, bool accumulate=False, *, "
      "bool front=False, bool? deterministic=None, int[]? axes=None, str? name=None) -> Tensor";

  static Tensor compose(const Tensor& source, const Indices& indices, const Tensor& values,
                        bool accumulate, bool front, std::optional<bool> deterministic,
                        ops::Axes axes, ops::Name name) {
    const char* const op = indexing::name_of("index_put", name);
    const Write call{op, /*in_place=*/false, indices, values, front, axes, deterministic};
    points::check_values(op, source, values);
    if (accumulate) check_summable(op, values);
    if (const auto condition = as_condition(source, call)) {
      if (accumulate) return sum_of(source, where_sums(*condition, values));
      return from_bits(at::where(*condition, as_bits(values), as_bits(source)),
                       source.scalar_type());
    }
    const Arrays arrays = find_arrays(op, source, indices, front, axes);
    if (arrays.coordinates.empty()) {
      const Tensor rows = expand_values(op, values, source.sym_sizes());
      if (accumulate) return sum_of(source, rows);
      if (!source.requires_grad()) return rows.clone(at::MemoryFormat::Contiguous);
      // All is overwritten, but the result is still of `source`, whose gradient is zeros.
      const Tensor all = at::ones({}, source.options().dtype(at::kBool));
      return from_bits(at::where(all, as_bits(rows), as_bits(source)), source.scalar_type())
          .contiguous();
    }
    const Tensor rows = expand_values(op, values, picked_sizes(op, source, arrays));
    if (accumulate) return added_to(source, call, arrays, rows);
    if (arrays.are_many()) return put_many(source, call, arrays, rows);
    return ops::put_points().call(source, arrays.coordinates, arrays.dims, rows, /*batch_dims=*/0,
                                  front, arrays.axes, name);
  }

  // On CUDA torch promotes the two tensors of its index_put, one of which may be the result of a
  // matrix product in 16 bits. On the CPU it does not.
  template <class... Rest>
  static Tensor autocast(const Tensor& source, const Indices& indices, const Tensor& values,
                         const Rest&... rest) {
    const c10::impl::ExcludeDispatchKeyGuard guard(c10::DispatchKey::AutocastCUDA);
    const auto call = [&](const Tensor& to, const Tensor& from) {
      return compose(to, indices, from, rest...);
    };
    if (source.scalar_type() == values.scalar_type()) return call(source, values);
    const at::ScalarType wide =
        at::autocast::promote_type(at::autocast::get_lower_precision_fp_from_device_type(at::kCUDA),
                                   at::kCUDA, source, values);
    return call(at::autocast::cached_cast(wide, source, at::kCUDA),
                at::autocast::cached_cast(wide, values, at::kCUDA));
  }
};

struct IndexPutInplace {
  static constexpr const char* kSchema =
      "index_put_(Tensor(a!) source, Tensor?[] indices, Tensor values, bool accumulate=False, *, "
      "bool front=False, bool? deterministic=None, int[]? axes=None, str? name=None) -> Tensor(a!)";

  static Tensor& compose(Tensor& source, const Indices& indices, const Tensor& values,
                         bool accumulate, bool front, std::optional<bool> deterministic,
                         ops::Axes axes, ops::Name name) {
    const char* const op = indexing::name_of("index_put_", name);
    const Write call{op, /*in_place=*/true, indices, values, front, axes, deterministic};
    points::check_values(op, source, values);
    if (accumulate) check_summable(op, values);
    check_no_overlap(op, "source", source);
    if (const auto condition = as_condition(source, call)) {
      if (accumulate) return add_all(source, where_sums(*condition, values));
      Tensor bits = as_bits(source);
      // float8 has no masked_fill, and masked_fill with a tensor has no batching rule.
      if (values.dim() == 0 && !at::isFloat8Type(values.scalar_type()) &&
          !at::functorch::maybeCurrentDynamicLayer().has_value()) {
        bits.masked_fill_(*condition, as_bits(values));
      } else {
        bits.copy_(at::where(*condition, as_bits(values), bits));
      }
      return source;
    }
    const Arrays arrays = find_arrays(op, source, indices, front, axes);
    if (arrays.coordinates.empty()) {
      const Tensor rows = expand_values(op, values, source.sym_sizes());
      return accumulate ? add_all(source, rows) : source.copy_(rows);
    }
    const Tensor rows = expand_values(op, values, picked_sizes(op, source, arrays));
    if (accumulate) {
      add_to(source, call, arrays, rows);
      return source;
    }
    if (arrays.are_many()) return source.copy_(put_many(source, call, arrays, rows));
    return ops::put_points_().call(source, arrays.coordinates, arrays.dims, rows, /*batch_dims=*/0,
                                   front, arrays.axes, name);
  }

  static Tensor& batch(Tensor& source, const Indices& indices, const Tensor& values,
                       bool accumulate, bool front, std::optional<bool> deterministic,
                       ops::Axes axes, ops::Name name) {
    const auto layer = at::functorch::maybeCurrentDynamicLayer();
    const auto differs = [&](const Tensor& tensor) {
      return layer && at::functorch::isBatchedAtLevel(tensor, layer->layerId());
    };
    bool any = differs(values);
    for (size_t i = 0; i < indices.size(); ++i) {
      const std::optional<Tensor> given = indices.get(i);
      any = any || (given.has_value() && given->defined() && differs(*given));
    }
    TORCH_CHECK(!any || differs(source), indexing::name_of("index_put_", name),
                ": torch.vmap cannot write what differs between samples into a source that they "
                "share. Use index_put, which returns a source for each.");
    return compose(source, indices, values, accumulate, front, deterministic, axes, name);
  }
};

struct IndexAdd {
  static constexpr const char* kSchema =
      "index_add(Tensor source, Tensor?[] indices, Tensor values, *, bool front=False, "
      "bool? deterministic=None, int[]? axes=None) -> Tensor";

  static Tensor compose(const Tensor& source, const Indices& indices, const Tensor& values,
                        bool front, std::optional<bool> deterministic, ops::Axes axes) {
    return IndexPut::compose(source, indices, values, /*accumulate=*/true, front, deterministic,
                             axes, "index_add");
  }

  static Tensor autocast(const Tensor& source, const Indices& indices, const Tensor& values,
                         bool front, std::optional<bool> deterministic, ops::Axes axes) {
    return IndexPut::autocast(source, indices, values, /*accumulate=*/true, front, deterministic,
                              axes, "index_add");
  }
};

}  // namespace

TORCH_LIBRARY_FRAGMENT(torch_ops, m) {
  register_op<IndexPut>(m);
  register_op<IndexPutInplace>(m);
  register_op<IndexAdd>(m);
}

}  // namespace torch_ops
