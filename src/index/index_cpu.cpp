#include "common/indexing.h"
#include "common/parallel.h"
#include "index/index.h"
#include "index/index_kernels.h"

namespace torch_ops {
namespace {

struct Bytes16 {
  uint64_t halves[2];
};

// Calls `use` with a value of a type of `bytes`: what an element is does not matter to a copy.
template <class Use>
void dispatch_size(int64_t bytes, Use&& use) {
  switch (bytes) {
    case 1:
      return use(uint8_t());
    case 2:
      return use(uint16_t());
    case 4:
      return use(uint32_t());
    case 8:
      return use(uint64_t());
    case 16:
      return use(Bytes16());
  }
  TORCH_INTERNAL_ASSERT(false, "no element has ", bytes, " bytes");
}

int64_t rows_per_task(const PointsLayout& layout) {
  return kElementsPerTask / std::max<int64_t>(layout.inner + layout.coordinates, 1);
}

int64_t read_entry(const Coordinate& coordinate, const PointsLayout& layout, int64_t row) {
  int64_t position = 0;
  for (int a = layout.row_axes; a-- > 0;) {
    position += row % layout.row_axis[a].size * coordinate.strides[a];
    row /= layout.row_axis[a].size;
  }
  switch (coordinate.entry_bytes) {
    case 1:
      return static_cast<const uint8_t*>(coordinate.data)[position];
    case 2:
      return static_cast<const int16_t*>(coordinate.data)[position];
    case 4:
      return static_cast<const int32_t*>(coordinate.data)[position];
    default:
      return static_cast<const int64_t*>(coordinate.data)[position];
  }
}

// Raises the error that `bad` stands for, a result of locate_rows.
void check_bad(int64_t bad, const PointsLayout& layout, const PointsSite& site) {
  if (bad == kNoBadPoint) return;
  const int64_t row = bad / kMaxCoordinates, number = bad % kMaxCoordinates;
  const Coordinate& coordinate = layout.coordinate[number];
  if (!coordinate.rule.raises()) return;
  const bool from_end = coordinate.rule.mode() == IndexMode::kFromEnd;
  const int64_t position = row / site.entries / site.outer * site.entries + row % site.entries;
  TORCH_CHECK_INDEX(
      false, indexing::out_of_range_text(
                 site.op,
                 indexing::name_coordinate(site.sizes, position, number, coordinate.axis, from_end),
                 read_entry(coordinate, layout, row), coordinate.rule.axis_size(), from_end));
}

// The first bad row, as locate_rows tells it. The entries that the rows of an axis share are read
// for the first of them.
int64_t find_bad(const PointsLayout& layout) {
  PointsLayout once = layout;
  for (int a = 0; a < layout.row_axes; ++a) {
    bool shared = true;
    for (int j = 0; j < layout.coordinates; ++j) {
      shared = shared && layout.coordinate[j].strides[a] == 0;
    }
    if (!shared) continue;
    once.rows /= layout.row_axis[a].size;
    once.row_axis[a].size = 1;
  }
  const int64_t bad =
      parallel_min(once.rows, rows_per_task(layout),
                   [&](int64_t begin, int64_t end) { return find_bad_point(once, begin, end); });
  if (bad == kNoBadPoint) return bad;
  int64_t rest = bad / kMaxCoordinates, row = 0, rows = 1;  // numbered in `once`, in `layout`
  for (int a = layout.row_axes; a-- > 0;) {
    row += rest % once.row_axis[a].size * rows;
    rest /= once.row_axis[a].size;
    rows *= layout.row_axis[a].size;
  }
  return row * kMaxCoordinates + bad % kMaxCoordinates;
}

}  // namespace

void gather_points_cpu(const at::Tensor& table, const PointsLayout& layout, const FillPattern& fill,
                       const PointsSite& site, const at::Tensor& rows) {
  if (layout.rows == 0) return;
  if (layout.inner == 0) {  // nothing to copy; the index must be right all the same
    return check_bad(find_bad(layout), layout, site);
  }
  dispatch_size(table.element_size(), [&](auto word) {
    using Word = decltype(word);
    const auto* from = static_cast<const Word*>(table.const_data_ptr());
    auto* to = static_cast<Word*>(rows.mutable_data_ptr());
    const int64_t bad =
        parallel_min(layout.rows, rows_per_task(layout), [&](int64_t begin, int64_t end) {
          return gather_points(from, to, layout, fill.word<Word>(), begin, end);
        });
    check_bad(bad, layout, site);
  });
}

void put_points_cpu(const at::Tensor& table, const PointsLayout& layout, const PointsSite& site,
                    const at::Tensor& rows) {
  if (layout.rows == 0) return;
  const bool few = layout.inner > 0 && layout.rows <= kFewPoints &&
                   layout.rows * layout.inner <= kElementsPerTask;
  if (!few) check_bad(find_bad(layout), layout, site);
  if (layout.inner == 0) return;
  dispatch_size(table.element_size(), [&](auto word) {
    using Word = decltype(word);
    auto* to = static_cast<Word*>(table.mutable_data_ptr());
    const auto* from = static_cast<const Word*>(rows.const_data_ptr());
    if (few) return check_bad(put_few_points(to, from, layout), layout, site);
    at::parallel_for(0, layout.rows, std::max<int64_t>(rows_per_task(layout), 1),
                     [&](int64_t begin, int64_t end) { put_points(to, from, layout, begin, end); });
  });
}

void write_offsets_cpu(const PointsLayout& layout, int64_t none, const PointsSite& site,
                       const at::Tensor& offsets) {
  const auto write = [&](auto* to) {
    using Offset = std::remove_pointer_t<decltype(to)>;
    const int64_t bad =
        parallel_min(layout.rows, kElementsPerTask, [&](int64_t begin, int64_t end) {
          return write_offsets(to, layout, static_cast<Offset>(none), begin, end);
        });
    check_bad(bad, layout, site);
  };
  if (offsets.scalar_type() == at::kInt) {
    write(offsets.mutable_data_ptr<int32_t>());
  } else {
    write(offsets.mutable_data_ptr<int64_t>());
  }
}

}  // namespace torch_ops
