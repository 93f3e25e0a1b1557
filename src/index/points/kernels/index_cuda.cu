#include <algorithm>

#include "common/cuda/launch.cuh"
#include "common/cuda/vectorized.cuh"
#include "index/points/kernels/index_elements.cuh"
#include "index/points/kernels/index_kernels.cuh"
#include "index/points/kernels/index_launch.h"
#include "index/points/kernels/points_parts.h"

namespace torch_ops::kernels {
namespace {

// Calls visit(number) with every stride by which a row is found, or its parts.
template <class Visit>
void for_each_stride(PointsLayout& layout, Visit&& visit) {
  const auto of_axis = [&](PointsAxis& axis) {
    visit(axis.table_stride);
    visit(axis.rows_stride);
  };
  for (int a = 0; a < layout.row_axes; ++a) of_axis(layout.row_axis[a]);
  for (int a = 0; a + 1 < layout.inner_axes; ++a) of_axis(layout.inner_axis[a]);
  for (int j = 0; j < layout.coordinates; ++j) visit(layout.coordinate[j].table_stride);
}

// The widest word, up to 16 bytes, that divides the innermost axis, each stride and both pointers.
int64_t word_bytes(PointsLayout& layout, int64_t element, const void* table, const void* rows) {
  const PointsAxis& last = layout.last_axis();
  if (last.table_stride != 1 || last.rows_stride != 1) return element;
  int64_t sizes = last.size;
  for_each_stride(layout, [&](int64_t stride) { sizes |= stride; });
  return widest_word(static_cast<uint64_t>(sizes * element) | reinterpret_cast<uintptr_t>(table) |
                     reinterpret_cast<uintptr_t>(rows));
}

// The same layout in words of several elements.
void count_in_words(PointsLayout& layout, int64_t elements) {
  if (elements == 1) return;
  for_each_stride(layout, [&](int64_t& stride) { stride /= elements; });
  layout.inner /= elements;
  layout.inner_axis[layout.inner_axes - 1].size /= elements;
}

// PointsCall::packed of a layout.
int32_t count_packed(const PointsLayout& layout) {
  const int32_t count = layout.coordinates;
  if (layout.row_axes != 1 || count < 2 || count > 4) return 0;
  const auto* first = static_cast<const char*>(layout.coordinate[0].data);
  constexpr int32_t kBytes = sizeof(int64_t);
  if (count % 2 == 0 && !is_aligned(first, 2 * kBytes)) return 0;
  for (int32_t j = 0; j < count; ++j) {
    const Coordinate& coordinate = layout.coordinate[j];
    if (coordinate.entry_bytes != kBytes || coordinate.strides[0] != count ||
        coordinate.data != first + j * kBytes) {
      return 0;
    }
  }
  return count;
}

PointsCall make_call(const PointsLayout& layout, const FillPattern& fill,
                     const IndexErrorSite& errors, int64_t first_row) {
  PointsCall call{};
  call.layout = layout;
  for (int a = 1; a < layout.row_axes; ++a) {
    call.by_row_axis[a] = FastDivisor(static_cast<uint32_t>(layout.row_axis[a].size));
  }
  for (int a = 1; a < layout.inner_axes; ++a) {
    call.by_inner_axis[a] = FastDivisor(static_cast<uint32_t>(layout.inner_axis[a].size));
  }
  const int tile = cut_tile(layout, current_device_limits().multiprocessors);
  call.tile_words = static_cast<int32_t>(std::min<int64_t>(layout.inner, tile));
  call.tile_rows = std::max(tile / std::max(call.tile_words, 1), 1);
  call.by_words = FastDivisor(static_cast<uint32_t>(std::max(call.tile_words, 1)));
  call.packed = count_packed(layout);
  call.first_row = first_row;
  call.fill = fill;
  call.errors = errors;
  return call;
}

template <bool kPut, class Word>
void launch_path(PointsPath path, Word* table, Word* rows, const PointsCall& call) {
  const PointsLayout& layout = call.layout;
  const unsigned blocks = grid_x(layout.rows, kPointThreads * kPointUnroll);
  switch (path) {
    case PointsPath::kPicks:
      if constexpr (!kPut) {
        TORCH_OPS_LAUNCH(point_picks_kernel<Word>, blocks, kPointThreads, 0, table, rows,
                         PointPicks{call});
        return;
      }
      fail_without_kernel("PointsPath::kPicks");
    case PointsPath::kElements:
      TORCH_OPS_LAUNCH((point_elements_kernel<kPut, Word>), blocks, kPointThreads, 0, table, rows,
                       call);
      return;
    case PointsPath::kRows: {
      const dim3 grid(grid_x(layout.rows, call.tile_rows),
                      grid_y(ceil_div(layout.inner, call.tile_words)));
      TORCH_OPS_LAUNCH((point_rows_kernel<kPut, Word>), grid, kPointThreads, 0, table, rows, call);
    }
  }
}

template <bool kPut>
void move_points(void* table, void* rows, int64_t element, PointsLayout layout,
                 const FillPattern& fill, const IndexErrorSite& errors) {
  if (layout.rows == 0 || layout.inner == 0) return;
  const int64_t bytes = word_bytes(layout, element, table, rows);
  count_in_words(layout, bytes / element);
  dispatch_size<uint2, uint4>(bytes, [&](auto word) {
    using Word = decltype(word);
    for_each_part(layout, kMaxPoints, [&](const PointsLayout& part, const PointsOffsets& at) {
      launch_path<kPut>(choose_points_path(part, kPut), static_cast<Word*>(table) + at.table,
                        static_cast<Word*>(rows) + at.rows,
                        make_call(part, fill, errors, at.first_row));
    });
  });
}

}  // namespace

void gather_points(OnCuda on, const void* table, int64_t element_bytes, const PointsLayout& layout,
                   const FillPattern& fill, void* rows, const IndexErrorSite& errors) {
  const HostScope scope(on.program);
  move_points</*kPut=*/false>(const_cast<void*>(table), rows, element_bytes, layout, fill, errors);
}

void put_points(OnCuda on, void* table, int64_t element_bytes, const PointsLayout& layout,
                const void* rows, const IndexErrorSite& errors) {
  const HostScope scope(on.program);
  move_points</*kPut=*/true>(table, const_cast<void*>(rows), element_bytes, layout, FillPattern(),
                             errors);
}

template <class Offset>
void write_offsets(OnCuda on, const PointsLayout& layout, Offset none, Offset* offsets,
                   const IndexErrorSite& errors) {
  const HostScope scope(on.program);
  if (layout.rows == 0) return;
  for_each_part(layout, kMaxPoints, [&](const PointsLayout& part, const PointsOffsets& at) {
    const PointsCall call = make_call(part, FillPattern(), errors, at.first_row);
    TORCH_OPS_LAUNCH((point_offsets_kernel<Offset>),
                     grid_x(part.rows, kPointThreads * kPointUnroll), kPointThreads, 0,
                     offsets + at.rows, none, call);
  });
}
template void write_offsets(OnCuda, const PointsLayout&, int32_t, int32_t*, const IndexErrorSite&);
template void write_offsets(OnCuda, const PointsLayout&, int64_t, int64_t*, const IndexErrorSite&);

}  // namespace torch_ops::kernels
