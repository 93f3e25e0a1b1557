// Calls at points, cut by src/index/points_parts.h as if 32-bit arithmetic ended at a few elements.
#include "index/points/kernels/points_parts.h"

#include <cstdio>
#include <map>
#include <tuple>
#include <vector>

using namespace torch_ops;

namespace {

int failures = 0;

void expect(bool holds, const char* what) {
  if (!holds) std::printf("not so: %s\n", what);
  failures += !holds;
}

// Where element `number` of some axes is, by one of their strides.
template <class Axis, class Stride>
int64_t locate(int64_t number, const Axis* axes, int count, Stride stride) {
  int64_t at = 0;
  for (int a = count; a-- > 0; number /= axes[a].size) at += number % axes[a].size * stride(a);
  return at;
}

// For each element of the rows, what a call moves: the row, the place in the table, both
// coordinates' entries. Elements are keyed by their place in the rows.
using Moves = std::map<int64_t, std::tuple<int64_t, int64_t, int64_t, int64_t>>;

void add_moves(const PointsLayout& layout, const PointsOffsets& at, const uint8_t* entries,
               Moves& moves) {
  for (int64_t row = 0; row < layout.rows; ++row) {
    const auto of_row = [&](auto stride) {
      return locate(row, layout.row_axis, layout.row_axes, stride);
    };
    int64_t entry[2];
    for (int j = 0; j < 2; ++j) {
      const Coordinate& coordinate = layout.coordinate[j];
      entry[j] = static_cast<const uint8_t*>(coordinate.data) +
                 of_row([&](int a) { return coordinate.strides[a] * coordinate.entry_bytes; }) -
                 entries;
    }
    for (int64_t column = 0; column < layout.inner; ++column) {
      const auto of_column = [&](auto stride) {
        return locate(column, layout.inner_axis, layout.inner_axes, stride);
      };
      const int64_t table = of_row([&](int a) { return layout.row_axis[a].table_stride; }) +
                            of_column([&](int a) { return layout.inner_axis[a].table_stride; });
      const int64_t rows = of_row([&](int a) { return layout.row_axis[a].rows_stride; }) +
                           of_column([&](int a) { return layout.inner_axis[a].rows_stride; });
      const bool is_new =
          moves
              .emplace(at.rows + rows,
                       std::tuple(at.first_row + row, at.table + table, entry[0], entry[1]))
              .second;
      expect(is_new, "no element is moved twice");
    }
  }
}

PointsLayout make_layout(const std::vector<int64_t>& rows, const std::vector<int64_t>& inner,
                         const uint8_t* entries) {
  PointsLayout layout{};
  layout.rows = layout.inner = 1;
  layout.coordinates = 2;
  int64_t stride = 1;
  for (size_t a = inner.size(); a-- > 0; stride *= inner[a]) {
    layout.inner_axis[a] = {inner[a], 1000 + 7 * static_cast<int64_t>(a), stride};
    layout.inner *= inner[a];
  }
  for (size_t a = rows.size(); a-- > 0; stride *= rows[a]) {
    layout.row_axis[a] = {rows[a], 10000 + 11 * static_cast<int64_t>(a), stride};
    layout.rows *= rows[a];
    for (int j = 0; j < 2; ++j) {
      layout.coordinate[j].strides[a] = 3 * static_cast<int64_t>(a) + 5 * j + 1;
    }
  }
  layout.row_axes = static_cast<int32_t>(rows.size());
  layout.inner_axes = static_cast<int32_t>(inner.size());
  for (int j = 0; j < 2; ++j) {
    layout.coordinate[j].data = entries + 64 * j;
    layout.coordinate[j].entry_bytes = 2;
  }
  return layout;
}

// Returns the number of parts.
int check(const std::vector<int64_t>& rows, const std::vector<int64_t>& inner, int64_t most) {
  static const uint8_t entries[4096] = {};
  const PointsLayout whole = make_layout(rows, inner, entries);
  Moves expected, moves;
  add_moves(whole, {}, entries, expected);
  int parts = 0;
  for_each_part(whole, most, [&](const PointsLayout& part, const PointsOffsets& at) {
    ++parts;
    expect(part.row_axes >= 1 && part.inner_axes >= 1, "there is an axis of each kind");
    expect(part.row_axes == 1 || part.rows <= most, "rows are counted in 32 bits");
    expect(part.inner_axes == 1 || part.inner <= most, "so are the elements of a row");
    expect(part.inner == whole.inner || part.rows == 1, "a row that is cut is alone");
    add_moves(part, at, entries, moves);
  });
  expect(moves == expected, "all elements are moved, as by the whole call");
  return parts;
}

}  // namespace

int main() {
  expect(check({4, 3}, {5, 2}, 12) == 1, "what fits is not cut");
  expect(check({40}, {50}, 12) == 1, "nor is one axis of each kind");
  expect(check({4, 3}, {5, 2}, 10) == 2, "rows are cut: three slices of four, and one");
  expect(check({2}, {7, 4}, 12) == 2 * 3, "so is each row, into 3, 3 and 1 of seven slices");
  for (const int64_t most : {1, 2, 5, 12, 30}) {
    check({1}, {5, 7}, most);
    check({3}, {2, 3, 7}, most);
    check({2, 3}, {4, 2, 3}, most);
    check({5, 2, 3}, {3, 5}, most);
    check({2, 2, 2}, {31}, most);
    check({1}, {3, 1, 40}, most);
  }
  return failures;
}
