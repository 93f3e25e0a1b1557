// The functions of torch_ops.h at points, which are given by a coordinate for each axis.
#include <algorithm>
#include <string>
#include <type_traits>

#include "c_api/calls/rows.h"
#include "index/points/kernels/index_launch.h"

namespace torch_ops {
namespace {

constexpr int64_t kMostPlaces = int64_t{1} << 50;  // whose numbers the kernels can tell from errors

struct PointCall {
  Arrays arrays;  // the coordinates, then others
  PointsLayout layout{};
  int64_t entries = 0;  // of each coordinate
  int64_t places = 1;   // of a batch: the product of the sizes
  IndexMode mode{};
  int64_t empty_axis = -1;  // the first of size 0; negative: there is none

  bool has_empty_axis() const { return empty_axis >= 0; }
  EntryKind entry_kind() const { return {0, mode, /*is_point=*/true}; }

  // Checks an array that follows the coordinates.
  template <class... Sizes>
  void add(const char* name, const void* pointer, Array::Access access, int64_t element_bytes,
           Sizes... sizes) {
    const int64_t bytes = checked_bytes(name, element_bytes, sizes...);
    check_pointer(name, pointer, bytes, element_bytes);
    arrays.push_back({name, pointer, bytes, access});
  }

  PointsLayout at(const Pointers& pointers) const {
    PointsLayout there = layout;
    for (int j = 0; j < layout.coordinates; ++j) there.coordinate[j].data = pointers[j];
    return there;
  }
};

// Checks the arguments of all functions; strides count rows of `inner` elements.
PointCall check_points(const void* const* coordinates, const int64_t* sizes, int32_t count,
                       int64_t batch, int64_t points, int64_t inner,
                       torch_ops_index_type index_type, torch_ops_mode mode,
                       torch_ops_memory memory) {
  check_memory(memory);
  if (count < 1 || count > kMaxCoordinates) {
    fail(TORCH_OPS_INVALID_ARGUMENT, "count must be between 1 and ", kMaxCoordinates,
         ", but it is ", count);
  }
  if (coordinates == nullptr) fail(TORCH_OPS_NULL_POINTER, "coordinates is NULL");
  if (sizes == nullptr) fail(TORCH_OPS_NULL_POINTER, "sizes is NULL");
  check_size("batch", batch);
  check_size("points", points);
  check_size("inner", inner);
  const int64_t entry_bytes = index_bytes(index_type);
  PointCall call;
  call.mode = index_mode(mode);
  const int64_t bytes = checked_bytes("a coordinate", entry_bytes, batch, points);
  call.entries = bytes / entry_bytes;
  PointsLayout& layout = call.layout;
  layout.coordinates = count;
  for (int32_t j = 0; j < count; ++j) {
    const std::string number = "[" + std::to_string(j) + "]";
    check_size(("sizes" + number).c_str(), sizes[j]);
    check_pointer(("coordinates" + number).c_str(), coordinates[j], bytes, entry_bytes);
    call.arrays.push_back({"coordinates", coordinates[j], bytes, Array::kRead});
    if (sizes[j] == 0 && !call.has_empty_axis()) call.empty_axis = j;
  }
  // The kernels count the rows in int64 even if they have no elements.
  checked_bytes("the array of all points", 1, batch, points, inner);
  int64_t elements = inner;
  for (int32_t j = count; j-- > 0;) {
    Coordinate& coordinate = layout.coordinate[j];
    coordinate.entry_bytes = static_cast<int32_t>(entry_bytes);
    coordinate.axis = j;
    coordinate.rule = IndexRule(call.mode, sizes[j]);
    coordinate.table_stride = elements;
    const int64_t size = call.has_empty_axis() ? 1 : sizes[j];
    if (__builtin_mul_overflow(call.places, size, &call.places) ||
        __builtin_mul_overflow(elements, size, &elements) ||
        std::max(call.places, elements) >= kMostPlaces) {
      std::ostringstream given;
      for (int32_t k = 0; k < count; ++k) given << (k > 0 ? ", " : "[") << sizes[k];
      given << "]";
      if (inner > 1) given << " and inner is " << inner;
      fail(TORCH_OPS_SIZE_OVERFLOW, "the product of sizes", inner > 1 ? " and inner" : "",
           " must be below 2^50, but sizes are ", given.str());
    }
  }
  if (call.has_empty_axis()) call.places = 0;
  layout.rows = call.entries;
  layout.inner = inner;
  const auto add_axis = [&](int64_t size, int64_t in_table, int64_t in_rows, int64_t in_index) {
    layout.row_axis[layout.row_axes] = {size, in_table, in_rows};
    for (int32_t j = 0; j < count; ++j) layout.coordinate[j].strides[layout.row_axes] = in_index;
    ++layout.row_axes;
  };
  if (batch > 1) add_axis(batch, call.places * inner, points * inner, points);
  add_axis(points, 0, inner, 1);
  layout.inner_axes = 1;
  layout.inner_axis[0] = {inner, 1, 1};
  return call;
}

// Runs a call by launch(on, layout, pointers, errors...), on the CPU without errors.
template <class Launch>
void run_points(const PointCall& call, torch_ops_memory memory, torch_ops_stream stream,
                float* milliseconds, Launch&& launch) {
  run(call.arrays, call.entry_kind(), memory, stream, milliseconds,
      [&](auto on, const Pointers& at, const auto&... errors) {
        if (call.entries == 0) return;
        if (call.has_empty_axis()) {
          check_axis_not_empty(call.entries, call.entry_kind(), call.empty_axis);
        }
        const PointsLayout layout = call.at(at);
        if constexpr (std::is_same_v<decltype(on), OnCpu>) {
          const int64_t bad = launch(on, layout, at);
          if (bad == kNoBadPoint) return;
          const int64_t row = bad / kMaxCoordinates, number = bad % kMaxCoordinates;
          const Coordinate& coordinate = layout.coordinate[number];
          const int64_t value = dispatch_index(
              {coordinate.data, coordinate.entry_bytes},
              [&](const auto* entries) { return static_cast<int64_t>(entries[row]); });
          fail_at_entry(
              {row, value, coordinate.rule.axis_size(), call.mode == IndexMode::kFromEnd, number});
        } else {
          launch(on, layout, at, errors...);
        }
      });
}

}  // namespace
}  // namespace torch_ops

using namespace torch_ops;

extern "C" {

torch_ops_status torch_ops_gather_points(const void* source, const void* const* coordinates,
                                         const int64_t* sizes, int32_t count, void* output,
                                         int64_t batch, int64_t points, int64_t inner,
                                         torch_ops_dtype dtype, torch_ops_index_type index_type,
                                         torch_ops_mode mode, const void* fill,
                                         torch_ops_memory memory, torch_ops_stream stream,
                                         float* milliseconds) {
  return guarded(__func__, [&] {
    PointCall call =
        check_points(coordinates, sizes, count, batch, points, inner, index_type, mode, memory);
    const int64_t element = element_bytes(dtype);
    const FillPattern filled = fill_pattern(fill, element);
    call.add("source", source, Array::kRead, element, batch, call.places, inner);
    call.add("output", output, Array::kWritten, element, batch, points, inner);
    run_points(call, memory, stream, milliseconds,
               [&](auto on, const PointsLayout& layout, const Pointers& at, const auto&... errors) {
                 // A kernel reads some row even for a point that names none: if source has no row,
                 // one of the output.
                 const void* rows = call.has_empty_axis() ? at[count + 1] : at[count];
                 return kernels::gather_points(on, rows, element, layout, filled, at[count + 1],
                                               errors...);
               });
  });
}

torch_ops_status torch_ops_put_points(void* table, const void* const* coordinates,
                                      const int64_t* sizes, int32_t count, const void* values,
                                      int64_t batch, int64_t points, int64_t inner,
                                      torch_ops_dtype dtype, torch_ops_index_type index_type,
                                      torch_ops_mode mode, torch_ops_memory memory,
                                      torch_ops_stream stream, float* milliseconds) {
  return guarded(__func__, [&] {
    PointCall call =
        check_points(coordinates, sizes, count, batch, points, inner, index_type, mode, memory);
    const int64_t element = element_bytes(dtype);
    call.add("table", table, Array::kReadAndWritten, element, batch, call.places, inner);
    call.add("values", values, Array::kRead, element, batch, points, inner);
    run_points(call, memory, stream, milliseconds,
               [&](auto on, const PointsLayout& layout, const Pointers& at, const auto&... errors) {
                 return kernels::put_points(on, at[count], element, layout, at[count + 1],
                                            errors...);
               });
  });
}

torch_ops_status torch_ops_ravel_points(const void* const* coordinates, const int64_t* sizes,
                                        int32_t count, int64_t* places, int64_t points,
                                        torch_ops_index_type index_type, torch_ops_mode mode,
                                        torch_ops_memory memory, torch_ops_stream stream,
                                        float* milliseconds) {
  return guarded(__func__, [&] {
    PointCall call = check_points(coordinates, sizes, count, /*batch=*/1, points, /*inner=*/1,
                                  index_type, mode, memory);
    call.add("places", places, Array::kWritten, sizeof(int64_t), points);
    run_points(call, memory, stream, milliseconds,
               [&](auto on, const PointsLayout& layout, const Pointers& at, const auto&... errors) {
                 return kernels::write_offsets(on, layout, /*none=*/call.places,
                                               static_cast<int64_t*>(at[count]), errors...);
               });
  });
}

}  // extern "C"
