// The functions of torch_ops.h with an entry for each element.
#include <type_traits>

#include "c_api/calls/rows.h"
#include "c_api/frame/dispatch.h"
#include "common/layout/element_layout.h"

namespace torch_ops {
namespace {

// Table [outer, axis_size, inner], index and rows [outer, entries, inner], all contiguous.
ElementLayout element_layout(int64_t outer, int64_t axis_size, int64_t entries, int64_t inner) {
  ElementLayout layout{};
  layout.axis = -1;
  layout.axis_size = axis_size;
  layout.axis_stride = inner;
  layout.count = outer * entries * inner;
  const auto add = [&](int64_t size, int64_t in_table, int64_t in_values, bool is_axis) {
    if (size == 1) return;
    if (is_axis) layout.axis = layout.rank;
    layout.sizes[layout.rank] = size;
    layout.table_strides[layout.rank] = in_table;
    layout.index_strides[layout.rank] = layout.value_strides[layout.rank] = in_values;
    ++layout.rank;
  };
  if (entries == 1 && axis_size == 1) {  // neighbours that one stride walks are one axis
    add(outer * inner, 1, 1, false);
  } else {
    add(outer, axis_size * inner, entries * inner, false);
    add(entries, 0, inner, true);
    add(inner, 1, 1, false);
  }
  return layout;
}

// In the fields of its RowCall `outer` is the batch, except for the index, which is as large as the
// rows.
struct ElementCall {
  RowCall rows;
  IndexRule rule;
  ElementLayout layout;

  explicit ElementCall(const RowCall& call)
      : rows(call),
        rule(call.mode, call.axis_size),
        layout(element_layout(call.batch, call.axis_size, call.entries, call.inner)) {}

  Arrays arrays() const {
    Arrays arrays = rows.arrays();
    arrays[1].bytes = layout.count * rows.index_bytes;
    return arrays;
  }
  ElementCall at(const Pointers& pointers) const {
    ElementCall call = *this;
    call.rows = rows.at(pointers);
    return call;
  }
  EntryKind entry_kind() const { return rows.entry_kind(); }
  int64_t table_count() const { return rows.batch * rows.axis_size * rows.inner; }
};

ElementCall check_elements(const char* from_name, const void* from, const void* index,
                           const char* to_name, void* to, bool table_first, int64_t outer,
                           int64_t axis_size, int64_t entries, int64_t inner, torch_ops_dtype dtype,
                           torch_ops_index_type index_type, torch_ops_mode mode,
                           torch_ops_memory memory) {
  check_size("outer", outer);
  RowCall call = check_rows(from_name, from, index, to_name, to, table_first, outer, axis_size,
                            entries, inner, dtype, index_type, memory, /*index_inner=*/inner);
  call.mode = index_mode(mode);
  return ElementCall(call);
}

template <class On, class... Errors>
void gather_elements(On on, const ElementCall& call, const Errors&... errors) {
  const RowCall& rows = call.rows;
  const int64_t count = call.layout.count;
  if (count == 0) return;
  check_axis_not_empty(count, call.entry_kind());
  if (rows.axis_size == 0) return fill_all(on, rows.to, count, rows.element_bytes, rows.fill);
  checked(
      on, rows.index_array(), call.entry_kind(),
      [&](const auto&... site) {
        return kernels::gather(on,
                               GatherCall<ElementLayout>{rows.from,
                                                         rows.element_bytes,
                                                         rows.index_array(),
                                                         call.layout,
                                                         {call.rule, rows.fill},
                                                         rows.to},
                               site...);
      },
      errors...);
}

// Sums of elements in a fixed order on a device: every entry's place in the result, and the sums of
// single values by these.
template <class Value>
void add_in_order(OnCuda on, const ElementCall& call, void* to, const IndexErrorSite& errors) {
  const int64_t count = call.layout.count, total = call.table_count();
  const Room<OnCuda, int64_t> places(count);
  kernels::find_places(on, call.rows.index_array(), call.layout, call.rule, /*nowhere=*/total,
                       places.get(), errors);
  RowCall single = call.rows;
  single.index = places.get();
  single.index_bytes = sizeof(int64_t);
  single.batch = single.inner = 1;
  single.axis_size = total;
  single.entries = count;
  single.mode = IndexMode::kFill;
  kernels::scatter_add(on, reduce_call<Value, Value>(single, to), /*repeatable=*/true,
                       IndexErrorSite{});
}

// Raises the error of the first bad entry. (If -1 is the last row, sums on the CPU leave out
// entries that name no row.)
void check_entries(OnCpu on, const ElementCall& call) {
  const RowLayout flat =
      RowLayout::contiguous(1, 1, call.rows.axis_size, call.layout.count, /*inner=*/1);
  const IndexArray index = call.rows.index_array();
  raise_if_bad(index, kernels::find_bad_entry(on, index, flat, call.rule), call.entry_kind());
}

template <class Value, class On, class... Errors>
void add_elements(On on, const ElementCall& call, bool repeatable, const Errors&... errors) {
  using Sum = SumOf<Value>;
  constexpr bool kOnCpu = std::is_same_v<On, OnCpu>;
  const RowCall& rows = call.rows;
  const int64_t total = call.table_count();
  check_axis_not_empty(call.layout.count, call.entry_kind());
  if (call.layout.count == 0 || total == 0) {
    return fill_all(on, rows.to, total, sizeof(Value), FillPattern());
  }
  const auto add = [&](void* to) {
    const AlongCall<Value> along{static_cast<const Value*>(rows.from),
                                 rows.index_array(),
                                 call.layout,
                                 call.rule,
                                 static_cast<Sum*>(to),
                                 total};
    if constexpr (kOnCpu) {
      if (call.rule.mode() == IndexMode::kFromEnd) check_entries(on, call);
      raise_if_bad(rows.index_array(), kernels::add_along(on, along), call.entry_kind());
    } else {
      kernels::add_along(on, along, errors...);
    }
  };
  const int64_t bytes = total * static_cast<int64_t>(sizeof(Value));
  if constexpr (!kOnCpu && !std::is_integral_v<Value>) {
    if (repeatable) {
      return write_aligned(on, rows.to, bytes,
                           [&](void* to) { add_in_order<Value>(on, call, to, errors...); });
    }
  }
  if constexpr (std::is_same_v<Sum, Value>) {
    write_aligned(on, rows.to, bytes, add);
  } else {
    const Room<On, Sum> sums(total);
    add(sums.get());
    for_each(on, RoundSums<Sum, Value>{sums.get(), static_cast<Value*>(rows.to)}, total);
  }
}

}  // namespace
}  // namespace torch_ops

using namespace torch_ops;

extern "C" {

torch_ops_status torch_ops_gather_elements(const void* source, const void* index, void* output,
                                           int64_t outer, int64_t axis_size, int64_t entries,
                                           int64_t inner, torch_ops_dtype dtype,
                                           torch_ops_index_type index_type, torch_ops_mode mode,
                                           const void* fill, torch_ops_memory memory,
                                           torch_ops_stream stream, float* milliseconds) {
  return guarded(__func__, [&] {
    ElementCall call =
        check_elements("source", source, index, "output", output, /*table_first=*/true, outer,
                       axis_size, entries, inner, dtype, index_type, mode, memory);
    call.rows.fill = fill_pattern(fill, call.rows.element_bytes);
    run(call.arrays(), call.entry_kind(), memory, stream, milliseconds,
        [&](auto on, const Pointers& at, const auto&... errors) {
          gather_elements(on, call.at(at), errors...);
        });
  });
}

torch_ops_status torch_ops_scatter_elements_add(const void* values, const void* index, void* result,
                                                int64_t outer, int64_t axis_size, int64_t entries,
                                                int64_t inner, torch_ops_dtype dtype,
                                                torch_ops_index_type index_type,
                                                torch_ops_mode mode, int32_t flags,
                                                torch_ops_memory memory, torch_ops_stream stream,
                                                float* milliseconds) {
  return guarded(__func__, [&] {
    const ElementCall call =
        check_elements("values", values, index, "result", result, /*table_first=*/false, outer,
                       axis_size, entries, inner, dtype, index_type, mode, memory);
    check_flags(flags, TORCH_OPS_DETERMINISTIC);
    run(call.arrays(), call.entry_kind(), memory, stream, milliseconds,
        [&](auto on, const Pointers& at, const auto&... errors) {
          dispatch_summed(dtype, [&](auto value) {
            add_elements<decltype(value)>(on, call.at(at), flags != 0, errors...);
          });
        });
  });
}

}  // extern "C"
