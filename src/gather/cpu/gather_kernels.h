// gather on the CPU: loops over a range of the work, on raw pointers. No torch.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>

#include "common/elementwise/elementwise.h"
#include "common/indexing/index_mode.h"
#include "common/layout/copy_row.h"
#include "common/layout/row_layout.h"

namespace torch_ops {

// Like gather_entries, for elements. Strides that the compiler knows cost nothing.
template <class Word, class Index, class IndexStride, class TableStride>
int64_t gather_elements(const Word* table, const Index* index, int64_t entries, Word* out,
                        int64_t axis_size, IndexStride index_stride, TableStride table_stride) {
  // Otherwise the loop takes as long as its work.
#pragma GCC unroll 8
  for (int64_t n = 0; n < entries; ++n) {
    const Index entry = index[n * index_stride];
    if (!in_range(entry, axis_size)) return n;
    out[n] = table[static_cast<int64_t>(entry) * table_stride];
  }
  return kNoBadEntry;
}

// Rows of bytes in a table: how long they are, and how far apart they begin.
struct RowBytes {
  const char* table;
  int64_t length;
  int64_t stride;
  // Are they worth prefetching? In a table of some 30 MiB the CPU itself reads far enough ahead,
  // and the instructions cost up to 9 %. In one of 128 MiB they save 12 to 30 %.
  bool far_apart;
};
constexpr int64_t kFarApart = int64_t{64} << 20;  // bytes of a table

// Copies the rows that the index names, all of them in range.
template <class Index>
void copy_rows(Simd simd, const RowBytes& rows, const Index* index, int64_t stride, int64_t entries,
               char* out) {
  // The arguments are copies: what is read through a reference the stores might change.
  const auto loop = [](auto set, RowBytes rows, const Index* index, int64_t stride, int64_t entries,
                       char* out) TORCH_OPS_INLINE_LAMBDA {
    constexpr int kVector = set() == Simd::kAvx512 ? 64 : set() == Simd::kAvx2 ? 32 : 16;
    const auto row_of = [&](int64_t n) {
      return rows.table + static_cast<int64_t>(index[n * stride]) * rows.stride;
    };
    // A loop for each size: choosing for each row takes longer than copying a short one.
    with_copy_size<kVector>(rows.length, [&](auto size) TORCH_OPS_INLINE_LAMBDA {
      constexpr int64_t kAhead = 32, kLine = 64;
      for (int64_t n = 0; n < entries; ++n, out += rows.length) {
        if (rows.far_apart) {
          const char* ahead = row_of(std::min(n + kAhead, entries - 1));
          __builtin_prefetch(ahead);
          __builtin_prefetch(ahead + std::min(kLine, rows.length - 1));
        }
        copy_sized<size(), kVector>(out, row_of(n), rows.length);
      }
    });
  };
  with_simd(simd, loop, rows, index, stride, entries, out);
}

// Writes the rows that the index names, all of them in range.
template <class Word, class Index>
void copy_rows(Simd simd, const Word* table, const Index* index, int64_t stride, int64_t entries,
               Word* out, const RowLayout& layout) {
  const int64_t inner = layout.inner;
  if (layout.table_inner_stride != 1) {
    for (int64_t n = 0; n < entries; ++n, out += inner) {
      const Word* row = table + static_cast<int64_t>(index[n * stride]) * layout.table_axis_stride;
      for (int64_t d = 0; d < inner; ++d) out[d] = row[d * layout.table_inner_stride];
    }
    return;
  }
  constexpr auto kBytes = static_cast<int64_t>(sizeof(Word));
  const int64_t row_stride = layout.table_axis_stride * kBytes;
  const RowBytes rows{reinterpret_cast<const char*>(table), inner * kBytes, row_stride,
                      layout.axis_size * std::abs(row_stride) >= kFarApart};
  copy_rows(simd, rows, index, stride, entries, reinterpret_cast<char*>(out));
}

constexpr int64_t kGatherRun =
    1024;  // entries that are read twice: the second time from the first-level cache

// Writes the rows that `entries` entries of a slab's index pick, all of them in range. Returns the
// first that is not, or kNoBadEntry; if there is one, the written rows are undefined.
template <class Word, class Index>
int64_t gather_plain(Simd simd, const Word* table, const Index* index, int64_t entries, Word* out,
                     const RowLayout& layout) {
  const int64_t stride = layout.index_entry_stride;
  if (layout.inner == 1) {
    using One = std::integral_constant<int64_t, 1>;
    const int64_t axis_stride = layout.table_axis_stride;
    return stride == 1 && axis_stride == 1
               ? gather_elements(table, index, entries, out, layout.axis_size, One(), One())
               : gather_elements(table, index, entries, out, layout.axis_size, stride, axis_stride);
  }
  for (int64_t first = 0; first < entries; first += kGatherRun) {
    const int64_t n = std::min(kGatherRun, entries - first);
    const Index* at = index + first * stride;
    const int64_t bad = find_bad(at, stride, n, layout.axis_size);
    if (bad != kNoBadEntry) return first + bad;
    copy_rows(simd, table, at, stride, n, out + first * layout.inner, layout);
  }
  return kNoBadEntry;
}

// The same by a rule that rewrites entries. One that names no row is filled, unless it is an error.
template <class Word, class Index>
int64_t gather_by_rule(Simd simd, const Word* table, const Index* index, int64_t entries, Word* out,
                       const RowLayout& layout, const GatherPolicy& policy) {
  const Word fill = policy.fill.word<Word>();
  for (int64_t n = 0; n < entries; ++n, out += layout.inner) {
    const int64_t row = policy.rule.resolve(index[n * layout.index_entry_stride]);
    if (in_range(row, layout.axis_size)) {
      copy_rows(simd, table, &row, 1, 1, out, layout);
    } else if (policy.rule.raises()) {
      return n;
    } else {
      std::fill_n(out, layout.inner, fill);
    }
  }
  return kNoBadEntry;
}

// Either of the two. If the rule rewrites entries, most runs have none to rewrite.
template <class Word, class Index>
int64_t gather_entries(Simd simd, const Word* table, const Index* index, int64_t entries, Word* out,
                       const RowLayout& layout, const GatherPolicy& policy) {
  if (!policy.rule.rewrites()) return gather_plain(simd, table, index, entries, out, layout);
  for (int64_t first = 0; first < entries; first += kGatherRun) {
    const int64_t n = std::min(kGatherRun, entries - first);
    const Index* at = index + first * layout.index_entry_stride;
    Word* to = out + first * layout.inner;
    if (gather_plain(simd, table, at, n, to, layout) != kNoBadEntry) {
      const int64_t bad = gather_by_rule(simd, table, at, n, to, layout, policy);
      if (bad != kNoBadEntry) return first + bad;
    }
  }
  return kNoBadEntry;
}

constexpr int64_t kFewEntries = 16;

// Writes the rows [begin, end) of [batch, outer, entries]. Returns the smallest position, in
// [batch, entries], of an entry that is out of range if that is an error, or kNoBadEntry; if
// there is one, the output is undefined. Word is any type of an element's size.
template <class Word, class Index>
int64_t gather_rows(Simd simd, const Word* source, const Index* index, Word* output,
                    const RowLayout& layout, const GatherPolicy& policy, int64_t begin,
                    int64_t end) {
  int64_t bad = kNoBadEntry;
  if (begin >= end) return bad;
  const int64_t inner = layout.inner, stride = layout.index_entry_stride;
  // For short slabs a division or a call takes as long as everything else.
  const bool few = inner == 1 && layout.entries <= kFewEntries && !policy.rule.rewrites();
  int64_t first = begin % layout.entries;
  int64_t b = begin / layout.entries / layout.outer, o = begin / layout.entries % layout.outer;
  for (int64_t row = begin; row < end;) {
    const int64_t count = std::min(layout.entries - first, end - row);
    const Word* table = source + b * layout.table_batch_stride + o * layout.table_outer_stride;
    const Index* entries = index + b * layout.index_batch_stride + first * stride;
    Word* const out = output + row * inner;
    int64_t wrong = kNoBadEntry;
    if (few) {
      for (int64_t n = 0; n < count; ++n) {
        const Index entry = entries[n * stride];
        if (!in_range(entry, layout.axis_size)) {
          wrong = n;
          break;
        }
        out[n] = table[static_cast<int64_t>(entry) * layout.table_axis_stride];
      }
    } else {
      wrong = gather_entries(simd, table, entries, count, out, layout, policy);
    }
    if (wrong != kNoBadEntry) bad = std::min(bad, b * layout.entries + first + wrong);
    row += count;
    first = 0;
    if (++o == layout.outer) {
      o = 0;
      ++b;
    }
  }
  return bad;
}

}  // namespace torch_ops
