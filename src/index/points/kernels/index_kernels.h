// Gathers and writes at points on the CPU: loops over a range of the rows, on raw pointers. No
// torch.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "common/indexing/index_array.h"
#include "common/layout/copy_row.h"
#include "index/points/kernels/points_layout.h"

namespace torch_ops {

// Adds the offsets of one coordinate to those of `count` points. Returns the first for which it
// gives no row, or `count`; such a point's offset becomes negative.
template <class Index, class Stride, class Resolve>
int64_t add_resolved(const Index* entries, Stride stride, int64_t count, int64_t table_stride,
                     int64_t* offsets, Resolve resolve) {
  bool bad = false;
  for (int64_t n = 0; n < count; ++n) {
    const int64_t row = resolve(static_cast<int64_t>(entries[n * stride]));
    const bool good = row >= 0;
    offsets[n] += good ? row * table_stride : kBadOffset;
    bad |= !good;
  }
  if (!bad) return count;
  int64_t n = 0;
  while (resolve(static_cast<int64_t>(entries[n * stride])) >= 0) ++n;
  return n;
}

template <class Index>
int64_t add_coordinate(const Coordinate& coordinate, const Index* entries, int64_t stride,
                       int64_t count, int64_t* offsets) {
  const int64_t size = coordinate.rule.axis_size();
  const auto add = [&](auto resolve) {
    using One = std::integral_constant<int64_t, 1>;  // known to the compiler, so that it vectorises
    const int64_t table_stride = coordinate.table_stride;
    return stride == 1 ? add_resolved(entries, One(), count, table_stride, offsets, resolve)
                       : add_resolved(entries, stride, count, table_stride, offsets, resolve);
  };
  switch (coordinate.rule.mode()) {
    case IndexMode::kRaise:
    case IndexMode::kUnchecked:
      return add([size](int64_t entry) { return entry < size ? entry : kNoRow; });
    case IndexMode::kFromEnd:
    case IndexMode::kFill:
      return add([size](int64_t entry) {
        const int64_t row = entry < 0 ? entry + size : entry;
        return row < size ? row : kNoRow;
      });
    default:
      return add([rule = coordinate.rule](int64_t entry) { return rule.resolve(entry); });
  }
}

// Where `count` points are whose coordinates are all of type Index, read in one pass: `offsets`
// has where they would be if all of their entries were 0. False: one of them names no place, and
// offsets are undefined. `from_end`: -1 is the last row, and so on.
template <int C, class Index>
bool locate_at_once(const Coordinate* coordinates, const int64_t* positions, int last_axis,
                    int64_t count, bool from_end, int64_t* offsets) {
  const Index* entries[C];
  int64_t strides[C], sizes[C], table_strides[C];
  for (int j = 0; j < C; ++j) {
    entries[j] = static_cast<const Index*>(coordinates[j].data) + positions[j];
    strides[j] = coordinates[j].strides[last_axis];
    sizes[j] = coordinates[j].rule.axis_size();
    table_strides[j] = coordinates[j].table_stride;
  }
  const auto run = [&](auto row_of) {
    bool good = true;
    for (int64_t n = 0; n < count; ++n) {
      int64_t offset = offsets[n];
#pragma GCC unroll 4
      for (int j = 0; j < C; ++j) {
        const int64_t row = row_of(static_cast<int64_t>(entries[j][n * strides[j]]), sizes[j]);
        good &= static_cast<uint64_t>(row) < static_cast<uint64_t>(sizes[j]);
        // Unsigned: a value that is not a row may overflow.
        offset += static_cast<int64_t>(static_cast<uint64_t>(row) *
                                       static_cast<uint64_t>(table_strides[j]));
      }
      offsets[n] = offset;
    }
    return good;
  };
  return from_end
             ? run([](int64_t entry, int64_t size) { return entry < 0 ? entry + size : entry; })
             : run([](int64_t entry, int64_t) { return entry; });
}

// The same for the coordinates of a layout, if it is one of those that this supports.
inline bool locate_at_once(const PointsLayout& layout, const int64_t* positions, int64_t count,
                           int64_t* offsets) {
  const IndexMode mode = layout.coordinate[0].rule.mode();
  const int bytes = layout.coordinate[0].entry_bytes;
  const bool from_end = mode == IndexMode::kFromEnd || mode == IndexMode::kFill;
  if (bytes < 4 || !(from_end || mode == IndexMode::kRaise || mode == IndexMode::kUnchecked)) {
    return false;
  }
  for (int j = 1; j < layout.coordinates; ++j) {
    if (layout.coordinate[j].entry_bytes != bytes) return false;
  }
  const auto locate = [&](auto index, auto number) {
    return locate_at_once<decltype(number)::value, decltype(index)>(
        layout.coordinate, positions, layout.row_axes - 1, count, from_end, offsets);
  };
  const auto by_number = [&](auto index) {
    switch (layout.coordinates) {
      case 1:
        return locate(index, std::integral_constant<int, 1>());
      case 2:
        return locate(index, std::integral_constant<int, 2>());
      case 3:
        return locate(index, std::integral_constant<int, 3>());
      case 4:
        return locate(index, std::integral_constant<int, 4>());
      default:
        return false;
    }
  };
  return bytes == 4 ? by_number(int32_t()) : by_number(int64_t());
}

// Where the rows [begin, begin + count) begin, in the table and (if `in_rows` is not null) in
// the tensor of rows. Returns the smallest row with an entry that names no row of its axis, times
// kMaxCoordinates, plus the coordinate; kNoBadPoint if there is none. Such a row's offset is
// negative.
inline int64_t locate_rows(const PointsLayout& layout, int64_t begin, int64_t count,
                           int64_t* in_table, int64_t* in_rows) {
  int64_t at[kMaxPointAxes];
  int64_t rest = begin;
  for (int a = layout.row_axes; a-- > 0;) {
    at[a] = rest % layout.row_axis[a].size;
    rest /= layout.row_axis[a].size;
  }
  const int last = layout.row_axes - 1;
  const PointsAxis& axis = layout.row_axis[last];
  int64_t bad = kNoBadPoint;
  int64_t positions[kMaxCoordinates], positions_before[kMaxCoordinates];
  int64_t table_before = 0, run_before = 0;
  for (int64_t done = 0; done < count;) {  // a run of the last axis at a time
    const int64_t run = std::min(axis.size - at[last], count - done);
    int64_t table = 0, rows = 0;
    for (int a = 0; a <= last; ++a) {
      table += at[a] * layout.row_axis[a].table_stride;
      rows += at[a] * layout.row_axis[a].rows_stride;
    }
    if (in_rows != nullptr) {
      for (int64_t n = 0; n < run; ++n) in_rows[done + n] = rows + n * axis.rows_stride;
    }
    for (int j = 0; j < layout.coordinates; ++j) {
      positions[j] = 0;
      for (int a = 0; a <= last; ++a) positions[j] += at[a] * layout.coordinate[j].strides[a];
    }
    int64_t* const offsets = in_table + done;
    if (run <= run_before &&
        std::equal(positions, positions + layout.coordinates, positions_before)) {
      for (int64_t n = 0; n < run; ++n) offsets[n] = offsets[n - run_before] + table - table_before;
    } else {
      const auto begin_run = [&] {
        for (int64_t n = 0; n < run; ++n) offsets[n] = table + n * axis.table_stride;
      };
      begin_run();
      const bool located = locate_at_once(layout, positions, run, offsets);
      if (!located) begin_run();
      int64_t first_bad = run;
      for (int j = 0; !located && j < layout.coordinates; ++j) {
        const Coordinate& coordinate = layout.coordinate[j];
        const IndexArray index{coordinate.data, coordinate.entry_bytes};
        const int64_t wrong = dispatch_index(index, [&](const auto* entries) {
          return add_coordinate(coordinate, entries + positions[j], coordinate.strides[last], run,
                                offsets);
        });
        if (wrong < first_bad) {
          first_bad = wrong;
          bad = std::min(bad, (begin + done + wrong) * kMaxCoordinates + j);
        }
      }
    }
    std::copy_n(positions, layout.coordinates, positions_before);
    table_before = table;
    run_before = run;
    done += run;
    at[last] = 0;
    for (int a = last - 1; a >= 0; --a) {
      if (++at[a] < layout.row_axis[a].size) break;
      at[a] = 0;
    }
  }
  return bad;
}

// A result of locate_rows, if that is an error.
inline int64_t only_errors(int64_t bad, const PointsLayout& layout) {
  // All coordinates have one mode.
  return layout.coordinate[0].rule.raises() ? bad : kNoBadPoint;
}

// Calls use(table offset, rows offset) for each run of the innermost axis of a row.
template <class Use>
void for_each_run(const PointsLayout& layout, int64_t in_table, int64_t in_rows, Use&& use) {
  if (layout.inner_axes == 1) return use(in_table, in_rows);
  const int64_t runs = layout.inner / layout.last_axis().size;
  int64_t at[kMaxPointAxes] = {};
  for (int64_t run = 0; run < runs; ++run) {
    use(in_table, in_rows);
    for (int a = layout.inner_axes - 2; a >= 0; --a) {
      const PointsAxis& axis = layout.inner_axis[a];
      in_table += axis.table_stride;
      in_rows += axis.rows_stride;
      if (++at[a] < axis.size) break;
      at[a] = 0;
      in_table -= axis.size * axis.table_stride;
      in_rows -= axis.size * axis.rows_stride;
    }
  }
}

constexpr int64_t kPointsBlock = 2048;  // rows that are located at a time: they stay in a cache

// Reads rows from the table: the rows [begin, end) of a contiguous tensor of rows. `fill` is for
// those that a mode without an error leaves without a row. Returns what locate_rows does; if
// a row is bad, the output is undefined.
template <class Word>
int64_t gather_points(const Word* table, Word* rows, const PointsLayout& layout, Word fill,
                      int64_t begin, int64_t end) {
  int64_t in_table[kPointsBlock];
  const PointsAxis& last = layout.last_axis();
  int64_t bad = kNoBadPoint;
  for (int64_t first = begin; first < end; first += kPointsBlock) {
    const int64_t count = std::min(kPointsBlock, end - first);
    const int64_t wrong = locate_rows(layout, first, count, in_table, nullptr);
    bad = std::min(bad, wrong);
    Word* out = rows + first * layout.inner;
    if (layout.inner == 1) {
      if (wrong == kNoBadPoint) {
        for (int64_t n = 0; n < count; ++n) out[n] = table[in_table[n]];
      } else {
        for (int64_t n = 0; n < count; ++n) out[n] = in_table[n] < 0 ? fill : table[in_table[n]];
      }
      continue;
    }
    constexpr int64_t kAhead = 8;  // the CPU prefetches the lines of a row, but not the next row
    for (int64_t n = 0; n < count; ++n, out += layout.inner) {
      if (in_table[n] < 0) {
        std::fill_n(out, layout.inner, fill);
        continue;
      }
      __builtin_prefetch(table + std::max<int64_t>(in_table[std::min(n + kAhead, count - 1)], 0));
      Word* to = out;
      for_each_run(layout, in_table[n], 0, [&](int64_t from, int64_t) {
        if (last.table_stride == 1) {
          copy_row(to, table + from, last.size * static_cast<int64_t>(sizeof(Word)));
        } else {
          for (int64_t d = 0; d < last.size; ++d) to[d] = table[from + d * last.table_stride];
        }
        to += last.size;
      });
    }
  }
  return bad;
}

// Writes `count` rows from where they begin to where locate_rows has found their places, but for
// those that have none.
template <class Word>
void put_located(Word* table, const Word* rows, const PointsLayout& layout, int64_t count,
                 const int64_t* in_table, const int64_t* in_rows) {
  if (layout.inner == 1) {
    for (int64_t n = 0; n < count; ++n) {
      if (in_table[n] >= 0) table[in_table[n]] = rows[in_rows[n]];
    }
    return;
  }
  const PointsAxis& last = layout.last_axis();
  const bool adjacent = last.table_stride == 1 && last.rows_stride == 1;
  for (int64_t n = 0; n < count; ++n) {
    if (in_table[n] < 0) continue;
    for_each_run(layout, in_table[n], in_rows[n], [&](int64_t to, int64_t from) {
      if (adjacent) {
        copy_row(table + to, rows + from, last.size * static_cast<int64_t>(sizeof(Word)));
      } else {
        for (int64_t d = 0; d < last.size; ++d) {
          table[to + d * last.table_stride] = rows[from + d * last.rows_stride];
        }
      }
    });
  }
}

// Writes the rows [begin, end) to the table; entries that are errors must have been looked for.
template <class Word>
void put_points(Word* table, const Word* rows, const PointsLayout& layout, int64_t begin,
                int64_t end) {
  int64_t in_table[kPointsBlock], in_rows[kPointsBlock];
  for (int64_t first = begin; first < end; first += kPointsBlock) {
    const int64_t count = std::min(kPointsBlock, end - first);
    locate_rows(layout, first, count, in_table, in_rows);
    put_located(table, rows, layout, count, in_table, in_rows);
  }
}

constexpr int64_t kFewPoints = 4096;  // that are located once, to be checked and written

// Writes all rows of a layout of few, unless an entry is an error, which it returns in the form of
// locate_rows.
template <class Word>
int64_t put_few_points(Word* table, const Word* rows, const PointsLayout& layout) {
  int64_t in_table[kFewPoints], in_rows[kFewPoints];
  const int64_t bad = only_errors(locate_rows(layout, 0, layout.rows, in_table, in_rows), layout);
  if (bad == kNoBadPoint) put_located(table, rows, layout, layout.rows, in_table, in_rows);
  return bad;
}

// The first bad row of [begin, end), in the form of locate_rows.
inline int64_t find_bad_point(const PointsLayout& layout, int64_t begin, int64_t end) {
  int64_t in_table[kPointsBlock];
  int64_t bad = kNoBadPoint;
  for (int64_t first = begin; first < end && bad == kNoBadPoint; first += kPointsBlock) {
    bad = locate_rows(layout, first, std::min(kPointsBlock, end - first), in_table, nullptr);
  }
  return bad;
}

// Writes where each row is, or `none` for a bad one. Returns what locate_rows does.
template <class Offset>
int64_t write_offsets(Offset* offsets, const PointsLayout& layout, Offset none, int64_t begin,
                      int64_t end) {
  int64_t in_table[kPointsBlock];
  int64_t bad = kNoBadPoint;
  for (int64_t first = begin; first < end; first += kPointsBlock) {
    const int64_t count = std::min(kPointsBlock, end - first);
    bad = std::min(bad, locate_rows(layout, first, count, in_table, nullptr));
    for (int64_t n = 0; n < count; ++n) {
      offsets[first + n] = in_table[n] < 0 ? none : static_cast<Offset>(in_table[n]);
    }
  }
  return bad;
}

}  // namespace torch_ops
