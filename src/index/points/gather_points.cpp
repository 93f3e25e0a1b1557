// The contract of gather_points and ravel_multi_index: schemas, checks, allocation, derivative.
#include <ATen/Dispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include "common/gather_family/gather_ops.h"
#include "common/torch/calls/new_output.h"
#include "common/torch/registration/derive.h"
#include "common/torch/registration/older_vmap.h"
#include "common/torch/registration/sharding.h"
#include "index/points/points.h"
#include "index/points/points_batching.h"

namespace torch_ops {
namespace {

using at::Tensor;
using at::TensorList;
using ops::Fill;
using ops::Name;

struct GatherPoints {
  static constexpr const char* kSchema =
      "gather_points(Tensor source, Tensor[] coordinates, int[] dims, *, int batch_dims=0, "
      "bool front=False, str mode='raise', Scalar? fill_value=None, int[]? axes=None, "
      "str? name=None) -> Tensor";
  static constexpr const char* kNode = "GatherPointsBackward";

  template <class On>
  static Tensor kernel(const Tensor& source, TensorList coordinates, at::IntArrayRef dims,
                       int64_t batch_dims, bool front, std::string_view mode,
                       const Fill& fill_value, ops::Axes axes, Name name) {
    const char* const op = indexing::name_of("gather_nd", name);
    const IndexMode parsed = indexing::parse_mode(op, mode);
    points::check_axes(op, axes, coordinates.size());
    indexing::check_fill_value(op, parsed, fill_value, source.scalar_type());
    const points::Points points =
        points::check_points(op, source, coordinates, dims, batch_dims, front);
    const auto sizes = points::rows_sizes(source.sym_sizes(), points);
    if constexpr (std::is_same_v<On, OnMeta>) {
      return at::empty_symint(sizes, source.options());
    } else {
      points::check_entries(op, source, coordinates, points, parsed, axes);
      Tensor output = new_output(C10_AS_INTARRAYREF_SLOW(sizes), source.options());
      const FillPattern fill = indexing::make_fill(parsed, fill_value, source.scalar_type());
      if (source.numel() == 0 && output.numel() > 0) {  // no kernel has a row that it could read
        output.fill_(at::from_blob(const_cast<unsigned char*>(fill.bytes), {},
                                   at::TensorOptions(source.scalar_type())));
        return output;
      }
      Tensor table = aligned(source);
      std::vector<Tensor> entries = coordinates.vec();
      const PointsLayout layout = points::lay_out(table, entries, output, points, parsed, axes);
      const auto point_sizes = C10_AS_INTARRAYREF_SLOW(points.sizes);
      const points::PointsSite site = points::make_site(op, points, point_sizes, source);
      points::call_at_points<On>(layout, site, output, [&](auto on, const auto&... errors) {
        return kernels::gather_points(on, table.const_data_ptr(), table.element_size(), layout,
                                      fill, output.mutable_data_ptr(), errors...);
      });
      return output;
    }
  }

  // The index arrays and the sizes of the indexed axes; the source itself is not kept.
  static auto keep(const Tensor& source, TensorList coordinates, at::IntArrayRef dims,
                   int64_t batch_dims, bool front, std::string_view mode, const Fill&,
                   const ops::Axes&, Name) {
    std::vector<c10::SymInt> sizes;
    for (const int64_t dim : dims) sizes.push_back(source.sym_size(dim));
    return std::tuple(coordinates.vec(), dims.vec(), batch_dims, front, std::move(sizes),
                      static_cast<int64_t>(indexing::parse_mode("gather_nd", mode)),
                      shards_of(source));
  }

  // A separate kernel converts the points to numbers, for scatter_add.
  static Tensor backward(const Tensor& grad_output, const std::vector<Tensor>& coordinates,
                         const std::vector<int64_t>& dims, int64_t batch_dims, bool front,
                         const std::vector<c10::SymInt>& sizes, int64_t mode,
                         const std::vector<int64_t>& shards) {
    return points::sum_at(grad_output, coordinates, dims, sizes, batch_dims, front,
                          points::quiet(mode),
                          /*all_named=*/static_cast<IndexMode>(mode) != IndexMode::kFill,
                          /*deterministic=*/std::nullopt, /*axes=*/std::nullopt,
                          /*name=*/std::nullopt, shards);
  }

  static Tensor tangent(const Tensor& tangent, const Tensor&, TensorList coordinates,
                        at::IntArrayRef dims, int64_t batch_dims, bool front, std::string_view mode,
                        const Fill&, const ops::Axes& axes, Name name) {
    return ops::gather_points().call(tangent, coordinates, dims, batch_dims, front, mode,
                                     ops::nothing(mode), axes, name);
  }

  // A hidden axis of both is one more batch axis, in front. An axis of the source alone is one more
  // that is not indexed, one of index arrays alone another axis of the points: neither needs a
  // copy.
  static Tensor batch(const Tensor& source, TensorList coordinates, at::IntArrayRef dims,
                      int64_t batch_dims, bool front, std::string_view mode, const Fill& fill_value,
                      const ops::Axes& axes, Name name) {
    using batching::Batched;
    return batching::apply(
        [&](const Batched& from, const std::vector<Batched>& picks) -> Batched {
          const bool hidden = points::any_batched(picks);
          const int64_t index_rank = points::rank_of(picks);
          const std::vector<int64_t> indexed = from.axis ? points::shifted(dims) : dims.vec();
          const auto call = [&](const Tensor& table, const std::vector<Tensor>& entries,
                                int64_t batch) {
            return ops::gather_points().call(table, entries, indexed, batch, front, mode,
                                             fill_value, axes ? axes : ops::Axes(dims), name);
          };
          if (from.axis && hidden) {
            return {call(from.at(0), points::with_axis(picks, index_rank, 0), batch_dims + 1), 0};
          }
          const bool side_by_side = are_side_by_side(dims, front);
          if (from.axis) {  // the first of the axes that are not indexed
            return {call(from.at(batch_dims), points::values_of(picks), batch_dims),
                    side_by_side ? batch_dims : index_rank};
          }
          if (hidden) {  // the first of the points' axes
            return {call(from.value, points::with_axis(picks, index_rank, batch_dims), batch_dims),
                    side_by_side ? dims[0] : batch_dims};
          }
          return {call(from.value, points::values_of(picks), batch_dims), std::nullopt};
        },
        source, coordinates);
  }
};

// One number for the coordinates of each point: its place in a contiguous array of `sizes`, or the
// number of places for a point outside of it. int32 if that can hold them.
struct RavelMultiIndex {
  static constexpr const char* kSchema =
      "ravel_multi_index(Tensor[] coordinates, SymInt[] sizes, *, str mode='raise', "
      "int[]? axes=None, str? name=None) -> Tensor";

  template <class On>
  static Tensor kernel(TensorList coordinates, c10::SymIntArrayRef sizes, std::string_view mode,
                       ops::Axes axes, Name name) {
    points::check_coordinates("ravel_multi_index", coordinates);
    TORCH_CHECK_VALUE(sizes.size() == coordinates.size(),
                      "ravel_multi_index: there must be one size for each index array, but there ",
                      "are ", sizes.size(), " for ", coordinates.size(), ".");
    const c10::SymInt places = c10::multiply_integers(sizes);
    const auto options = coordinates[0].options().dtype(indexing::number_type(places));
    const Tensor output = new_output(options, [&](const auto& chosen) {
      return at::empty_symint(points::broadcast_sizes("ravel_multi_index", coordinates), chosen);
    });
    const char* const op = indexing::name_of("ravel_multi_index", name);
    const IndexMode parsed = indexing::parse_mode(op, mode);
    points::check_axes(op, axes, coordinates.size());
    if constexpr (!std::is_same_v<On, OnMeta>) {
      if (output.numel() == 0) points::check_unread(coordinates, sizes, parsed, axes, name);
      if (places == 0) {  // no place for any entry, nor a modulus
        TORCH_CHECK_INDEX(output.numel() == 0 || parsed == IndexMode::kFill, op,
                          ": index has entries, but the sizes of the indexed axes are ", sizes,
                          ": no entry is allowed.");
        return output.zero_();
      }
      std::vector<Tensor> entries = coordinates.vec();
      const PointsLayout layout =
          points::lay_out_places(entries, C10_AS_INTARRAYREF_SLOW(sizes), output, parsed, axes);
      // Records of rows that count from the end hold them resolved, which those of points do not.
      const bool of_rows = coordinates.size() == 1 && !axes && parsed != IndexMode::kFromEnd;
      const points::PointsSite site{op, output.sizes(), 1, output.numel(), of_rows};
      points::call_at_points<On>(layout, site, output, [&](auto on, const auto&... errors) {
        return AT_DISPATCH_INDEX_TYPES(output.scalar_type(), "ravel_multi_index", [&] {
          return kernels::write_offsets(on, layout, static_cast<index_t>(places.expect_int()),
                                        output.mutable_data_ptr<index_t>(), errors...);
        });
      });
    }
    return output;
  }

  template <class... Rest>
  static Tensor batch(TensorList coordinates, const Rest&... rest) {
    using batching::Batched;
    return batching::apply(
        [&](const std::vector<Batched>& picks) -> Batched {
          const auto call = [&](const std::vector<Tensor>& arrays) {
            return ops::ravel_multi_index().call(arrays, rest...);
          };
          if (!points::any_batched(picks)) return {call(points::values_of(picks)), std::nullopt};
          return {call(points::with_axis(picks, points::rank_of(picks), 0)), 0};
        },
        coordinates);
  }
};

}  // namespace

namespace points {

// The first ones are combined until there are few enough.
Tensor number_points(TensorList coordinates, c10::SymIntArrayRef sizes, std::string_view mode,
                     const ops::Axes& axes, ops::Name name) {
  constexpr size_t kMost = kMaxCoordinates;
  if (coordinates.size() <= kMost) {
    return ops::ravel_multi_index().call(coordinates, sizes, mode, axes, name);
  }
  const auto first = [](const auto& list) { return list.slice(0, kMost); };
  std::vector<Tensor> rest = coordinates.slice(kMost).vec();
  std::vector<c10::SymInt> rest_sizes = sizes.slice(kMost).vec();
  rest.insert(rest.begin(), number_points(first(coordinates), first(sizes), mode,
                                          axes ? ops::Axes(first(*axes)) : std::nullopt, name));
  rest_sizes.insert(rest_sizes.begin(), c10::multiply_integers(first(sizes)));
  // The joined one, which is not out of range, has the axis from which messages count coordinates.
  std::vector<int64_t> names(rest.size(), axes ? axes->front() : 0);
  for (size_t j = 1; axes && j < rest.size(); ++j) names[j] = (*axes)[kMost + j - 1];
  return number_points(rest, rest_sizes, mode, names, name);
}

Tensor sum_at(const Tensor& rows, TensorList coordinates, at::IntArrayRef dims,
              c10::SymIntArrayRef sizes, int64_t batch_dims, bool front, std::string_view mode,
              bool all_named, std::optional<bool> deterministic, ops::Axes axes, ops::Name name,
              std::vector<int64_t> shards) {
  Tensor places = number_points(coordinates, sizes, mode, axes, name);
  const auto count = static_cast<int64_t>(dims.size());
  const bool side_by_side = are_side_by_side(dims, front);
  const int64_t place = side_by_side ? dims[0] : batch_dims;
  if (batch_dims > 0) {  // an index that all batches share has axes of size 1 there
    c10::SymDimVector whole(rows.sym_sizes().begin(), rows.sym_sizes().begin() + batch_dims);
    const auto own = places.sym_sizes();
    whole.append(own.begin() + batch_dims, own.end());
    places = places.expand_symint(whole);
  }
  for (int64_t& axis : shards) {  // of the joined axes none, of the others the axis of `flat`
    if (axis < batch_dims) continue;
    const auto before = [&](int64_t dim) { return dim < axis; };
    const int64_t joined = std::count_if(dims.begin(), dims.end(), before);
    if (std::find(dims.begin(), dims.end(), axis) != dims.end()) {
      axis = -1;
    } else if (!side_by_side) {
      axis += 1 - joined;
    } else if (joined > 0) {
      axis += 1 - count;
    }
  }
  const Tensor flat = ops::add_rows(rows, places, c10::multiply_integers(sizes), place, batch_dims,
                                    all_named ? "unchecked" : "fill",
                                    /*name=*/std::nullopt, shards, deterministic);
  const auto from = flat.sym_sizes();
  c10::SymDimVector unflattened(from.begin(), from.begin() + place);
  unflattened.append(sizes.begin(), sizes.end());
  unflattened.append(from.begin() + place + 1, from.end());
  const Tensor sums = flat.view_symint(unflattened);
  if (side_by_side) return sums;
  return sums.movedim(span(batch_dims, count), dims);  // from behind the batch
}

}  // namespace points

TORCH_LIBRARY_FRAGMENT(torch_ops, m) {
  register_op<GatherPoints>(m);
  register_op<RavelMultiIndex>(m);
}

TORCH_LIBRARY_IMPL(torch_ops, Batched, m) {
  for (const char* op : {"gather_points", "ravel_multi_index", "put_points", "put_points_"}) {
    m.impl(op, older_vmap::rule());
  }
}

}  // namespace torch_ops
