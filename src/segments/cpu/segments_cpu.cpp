#include "segments/segments_launch.h"

#include <algorithm>

#include "common/cuda/scratch.h"
#include "common/elementwise/elementwise_cpu.h"
#include "common/elementwise/joins.h"
#include "common/host/parallel.h"
#include "common/indexing/first_bad_entry.h"
#include "common/layout/copy_row.h"
#include "scatter/cpu/reduce_loops.h"

namespace torch_ops::kernels {
namespace {

// Columns whose results a loop keeps in registers.
constexpr int64_t kColumns = 16;
template <class Sum>
constexpr int64_t kMostColumns = sizeof(Sum) > 4 ? 32 : 64;

// What joins the values of a column.
template <SegmentRule kRule, class Value, class Result>
struct Joined {
  static constexpr bool kSums = kRule == SegmentRule::kSum || kRule == SegmentRule::kMean;
  using Op = std::conditional_t<kSums, Plus,
                                std::conditional_t<kRule == SegmentRule::kProd, Times,
                                                   Better<kRule == SegmentRule::kLargest>>>;
  using Sum = ScatterSum<Value>;

  // Is the loop over a row's columns kept as it is? GCC would unroll one of a constant width into
  // single values, which it then vectorises only where they are added or multiplied.
  template <class Width>
  static constexpr bool stays_loop() {
    if constexpr (std::is_same_v<Width, int64_t>) return true;  // the rest of a row is short
    return !kSums && kRule != SegmentRule::kProd && Width() == kColumns;
  }

  // `Width` columns of the entries [0, count), `stride` values apart. A constant width keeps them
  // in registers.
  template <class Width>
  static TORCH_OPS_HOST_DEVICE void join_into(const Value* values, int64_t stride, int64_t count,
                                              Width width, Sum* sums) {
    const int64_t columns = width;
    for (int64_t n = 0; n < count; ++n) {
      const auto join = [&](int64_t d) TORCH_OPS_INLINE_LAMBDA {
        sums[d] = Op::join(sums[d], static_cast<Sum>(values[n * stride + d]));
      };
      if constexpr (stays_loop<Width>()) {
#pragma GCC unroll 1
        for (int64_t d = 0; d < columns; ++d) join(d);
      } else {
        for (int64_t d = 0; d < columns; ++d) join(d);
      }
    }
  }

  static TORCH_OPS_HOST_DEVICE void reduce(const Value* values, int64_t /*first*/, int64_t count,
                                           int64_t inner, Result* to) {
    constexpr int64_t kMost = kMostColumns<Sum>;
    using Some = std::integral_constant<int64_t, kColumns>;
    using Most = std::integral_constant<int64_t, kMost>;
    Sum sums[kMost];
    const auto begin = [&] { std::fill_n(sums, kMost, Op::template identity<Sum>()); };
    const auto finish = [&](Sum sum) {
      if constexpr (kRule == SegmentRule::kMean) sum /= static_cast<Sum>(count);
      return static_cast<Result>(sum);
    };
    if (inner == 1 && count < kColumns) {
      Sum sum = Op::template identity<Sum>();
      for (int64_t n = 0; n < count; ++n) sum = Op::join(sum, static_cast<Sum>(values[n]));
      *to = finish(sum);
      return;
    }
    begin();
    if (inner == 1) {  // entries side by side as if they were columns, which are joined at the end
      const int64_t rows = count / kColumns;
      join_into(values, kColumns, rows, Some(), sums);
      join_into(values + rows * kColumns, 0, 1, count % kColumns, sums);
      for (int64_t half = kColumns / 2; half > 0; half /= 2) {
        for (int64_t d = 0; d < half; ++d) sums[d] = Op::join(sums[d], sums[d + half]);
      }
      *to = finish(sums[0]);
      return;
    }
    for (int64_t column = 0, width; column < inner; column += width) {
      width = inner - column;
      if (width >= kMost) {
        join_into(values + column, inner, count, Most(), sums);
        width = kMost;
      } else if (width >= kColumns) {
        join_into(values + column, inner, count, Some(), sums);
        width = kColumns;
      } else {
        join_into(values + column, inner, count, width, sums);
      }
      for (int64_t d = 0; d < width; ++d) to[column + d] = finish(sums[d]);
      begin();
    }
  }
};

// Where the first of the best values is.
template <bool kLargest, class Value>
struct Where {
  static TORCH_OPS_HOST_DEVICE void reduce(const Value* values, int64_t first, int64_t count,
                                           int64_t inner, int64_t* to) {
    using Number = ComputeType<Value>;
    for (int64_t column = 0; column < inner; column += kColumns) {
      const int64_t width = std::min(kColumns, inner - column);
      Number best[kColumns];
      int64_t places[kColumns];
      for (int64_t d = 0; d < width; ++d) {
        best[d] = static_cast<Number>(values[column + d]);
        places[d] = first;
      }
      for (int64_t n = 1; n < count; ++n) {
        keep_better<kLargest>(values + n * inner + column, width, first + n, best, places);
      }
      std::copy_n(places, width, to + column);
    }
  }
};

template <SegmentRule kRule, class Value, class Result>
using Reducer =
    std::conditional_t<kRule == SegmentRule::kWhereLargest, Where<true, Value>,
                       std::conditional_t<kRule == SegmentRule::kWhereSmallest, Where<false, Value>,
                                          Joined<kRule, Value, Result>>>;

// The segments [first, last) of a slab. As short loops of long rows as there are wait for memory,
// so that wider vectors than those of AVX2 gain nothing.
template <class Reducer, class Value, class Result>
TORCH_OPS_HOST_DEVICE void reduce_loop(const RowLayout& layout, const int64_t* offsets,
                                       const Value* values, int64_t first, int64_t last,
                                       Result none, Result* to) {
  constexpr int64_t kLine = 64 / sizeof(Value), kFetched = 16384 / sizeof(Value);
  const int64_t inner = layout.inner;
  for (int64_t s = first; s < last; ++s) {
    const int64_t begin = offsets[s], end = offsets[s + 1];
    if (inner > kMostColumns<Result>) {  // read in strips, which the CPU does not foresee
      const int64_t next = s + 2 <= layout.axis_size ? offsets[s + 2] : end;
      const int64_t lines = std::min((next - end) * inner, kFetched) / kLine;
      for (int64_t n = 0; n < lines; ++n) __builtin_prefetch(values + end * inner + n * kLine);
    }
    if (end > begin) {
      Reducer::reduce(values + begin * inner, begin, end - begin, inner, to + s * inner);
    } else {
      std::fill_n(to + s * inner, inner, none);
    }
  }
}

// The first of `count` numbers, `stride` apart, that is `number` or more.
template <class Index>
int64_t lower_bound(const Index* from, int64_t stride, int64_t count, int64_t number) {
  int64_t low = 0;
  while (count > 0) {
    const int64_t half = count / 2;
    const bool below = static_cast<int64_t>(from[(low + half) * stride]) < number;
    low = below ? low + half + 1 : low;
    count = below ? count - half - 1 : half;
  }
  return low;
}

template <class Index>
int64_t find_bad(const Index* entries, const RowLayout& layout) {
  return first_bad_entry(entries, layout, IndexRule(IndexMode::kRaise, layout.axis_size));
}

}  // namespace

template <SegmentRule kRule, class Value, class Result>
int64_t reduce_segments(OnCpu on, const SegmentCall<Value, Result>& call) {
  const HostScope scope(on.program);
  const RowLayout& layout = call.layout;
  const int64_t segments = layout.axis_size;
  const Scratch<int64_t> copy(layout.batch * (segments + 1));
  const int64_t bad = dispatch_index(call.offsets, [&](const auto* offsets) {
    for (int64_t b = 0; b < layout.batch; ++b) {
      for (int64_t s = 0; s <= segments; ++s) {
        copy.get()[b * (segments + 1) + s] = static_cast<int64_t>(
            offsets[b * layout.index_batch_stride + s * layout.index_entry_stride]);
      }
    }
    return find_bad(offsets, offsets_layout(layout));
  });
  if (bad != kNoBadEntry || call.result_count() == 0) return bad;
  // A slab is cut into ranges of segments with about as many entries and segments each.
  const int64_t work = layout.entries + segments;
  const int64_t ranges = std::min({segments, 4 * num_threads() / layout.slabs() + 1,
                                   work * layout.inner / kElementsPerTask + 1});
  const int64_t grain = kElementsPerTask / (work * layout.inner / ranges + 1) + 1;
  parallel_for(layout.slabs() * ranges, grain, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t slab = task / ranges, range = task % ranges;
      const int64_t* own = copy.get() + slab / layout.outer * (segments + 1);
      const auto cut = [&](int64_t n) {  // the segment before which n of the ranges are
        if (n == ranges) return segments;
        int64_t low = 0, high = segments;
        while (low < high) {
          const int64_t middle = (low + high) / 2;
          own[middle] + middle < work* n / ranges ? low = middle + 1 : high = middle;
        }
        return low;
      };
      // By value: what is written might otherwise be one of the arguments.
      const auto loop = [](auto, auto... all) TORCH_OPS_INLINE_LAMBDA {
        reduce_loop<Reducer<kRule, Value, Result>>(all...);
      };
      with_simd<Simd::kAvx2>(cpu_simd(), loop, layout, own,
                             call.values + slab * layout.entries * layout.inner, cut(range),
                             cut(range + 1), nothing_there<kRule, Result>(layout),
                             call.result + slab * segments * layout.inner);
    }
  });
  return bad;
}

namespace {

// Like with_copy_size, but the number of bytes is a constant too where rows may be elements.
template <int kVector, class Use>
TORCH_OPS_HOST_DEVICE void with_row_size(int64_t bytes, Use use) {
  if (bytes == 1) return use(std::integral_constant<int, 1>(), std::integral_constant<int, 1>());
  if (bytes == 2) return use(std::integral_constant<int, 2>(), std::integral_constant<int, 2>());
  if (bytes == 4) return use(std::integral_constant<int, 4>(), std::integral_constant<int, 4>());
  if (bytes == 8) return use(std::integral_constant<int, 8>(), std::integral_constant<int, 8>());
  with_copy_size<kVector>(bytes, [&](auto size) TORCH_OPS_INLINE_LAMBDA { use(size, bytes); });
}

// The entries [begin, end) of all slabs: each the row of its segment, or zeros if it is in none.
// Vectors wider than those of AVX2 gain only on rows of 64 bytes.
template <int kVector, class Index>
TORCH_OPS_HOST_DEVICE void repeat_loop(const Index* all_offsets, const RowLayout& layout,
                                       const char* all_rows, char* result, int64_t begin,
                                       int64_t end) {
  const int64_t stride = layout.index_entry_stride, segments = layout.axis_size;
  const int64_t entries = layout.entries;
  with_row_size<kVector>(layout.inner, [&](auto size, auto bytes) TORCH_OPS_INLINE_LAMBDA {
    // Of a short row four copies are made even if its segment has fewer entries, and the next row
    // overwrites the rest: a branch that is not predicted takes longer.
    constexpr int64_t kAtOnce = 4;
    constexpr bool kShort = size() > 0 && size() < kVector;
    int64_t slab = begin / entries, outer = slab % layout.outer;
    const Index* offsets = all_offsets + slab / layout.outer * layout.index_batch_stride;
    for (int64_t n = begin; n < end; ++slab) {
      const int64_t start = slab * entries, stop = std::min(start + entries, end);
      const int64_t sure = kShort ? stop - kAtOnce : -1;
      const char* const rows = all_rows + slab * segments * bytes;
      const auto zero_to = [&](int64_t last) {
        if (n < last) std::fill_n(result + n * bytes, (last - n) * bytes, char{0});
        n = std::max(n, last);
      };
      int64_t s = n == start ? 0 : lower_bound(offsets, stride, segments + 1, n - start + 1);
      if (s == 0) zero_to(std::min<int64_t>(start + offsets[s++], stop));
      for (; s <= segments && n < stop; ++s) {
        const auto copy_to = [&](int64_t at) TORCH_OPS_INLINE_LAMBDA {
          copy_sized<size(), kVector>(result + at * bytes, rows + (s - 1) * bytes, bytes);
        };
        const int64_t last = std::min<int64_t>(start + offsets[s * stride], stop);
        int64_t to = n;
        if (to <= sure) {
          do {
            for (int64_t i = 0; i < kAtOnce; ++i) copy_to(to + i);
            to += kAtOnce;
          } while (to < last && to <= sure);
        }
        for (; to < last; ++to) copy_to(to);
        n = std::max(n, last);
      }
      zero_to(stop);
      if (++outer == layout.outer) {
        outer = 0;
        offsets += layout.index_batch_stride;
      }
    }
  });
}

}  // namespace

int64_t repeat_rows(OnCpu on, const IndexArray& offsets, const RowLayout& layout, const char* rows,
                    char* result) {
  const HostScope scope(on.program);
  return dispatch_index(offsets, [&](const auto* all) {
    const int64_t bad = find_bad(all, offsets_layout(layout));
    if (bad != kNoBadEntry || layout.inner == 0) return bad;
    const auto loop = [](auto set, const auto&... args) TORCH_OPS_INLINE_LAMBDA {
      repeat_loop<set() == Simd::kBaseline ? 16 : 32>(args...);
    };
    parallel_for(layout.slabs() * layout.entries, kElementsPerTask / (layout.inner / 8 + 1) + 1,
                 [&](int64_t begin, int64_t end) {
                   with_simd<Simd::kAvx2>(cpu_simd(), loop, all, layout, rows, result, begin, end);
                 });
    return bad;
  });
}

template <class Id>
int64_t find_segments(OnCpu on, const IndexArray& offsets, const RowLayout& layout, Id* ids) {
  const HostScope scope(on.program);
  return dispatch_index(offsets, [&](const auto* all) {
    const int64_t bad = find_bad(all, offsets_layout(layout));
    if (bad != kNoBadEntry) return bad;
    for (int64_t b = 0; b < layout.batch; ++b) {
      const auto* own = all + b * layout.index_batch_stride;
      const int64_t stride = layout.index_entry_stride, segments = layout.axis_size;
      parallel_for(layout.entries, kElementsPerTask, [&](int64_t begin, int64_t end) {
        int64_t s = lower_bound(own, stride, segments + 1, begin + 1);  // the next one
        for (int64_t n = begin; n < end; ++n) {
          while (s <= segments && static_cast<int64_t>(own[s * stride]) <= n) ++s;
          ids[b * layout.entries + n] = static_cast<Id>(s > 0 ? s - 1 : segments);
        }
      });
    }
    return bad;
  });
}

template <class Id>
int64_t find_offsets(OnCpu on, const IndexArray& index, const RowLayout& layout, Id* offsets) {
  const HostScope scope(on.program);
  return dispatch_index(index, [&](const auto* entries) {
    const int64_t rows = layout.axis_size + 1;
    const int64_t bad = find_bad(entries, layout);
    if (bad == kNoBadEntry) {
      parallel_for(layout.batch * rows, kElementsPerTask / 16, [&](int64_t begin, int64_t end) {
        for (int64_t n = begin; n < end; ++n) {
          offsets[n] =
              static_cast<Id>(lower_bound(entries + n / rows * layout.index_batch_stride,
                                          layout.index_entry_stride, layout.entries, n % rows));
        }
      });
    }
    return bad;
  });
}

#define TORCH_OPS_SEGMENTS(RULE, T, RESULT) \
  template int64_t reduce_segments<SegmentRule::RULE>(OnCpu, const SegmentCall<T, RESULT>&);
TORCH_OPS_FOR_EACH_SEGMENTS(TORCH_OPS_FOR_EACH_ORDERED)

#define INSTANTIATE(Id)                                                            \
  template int64_t find_segments(OnCpu, const IndexArray&, const RowLayout&, Id*); \
  template int64_t find_offsets(OnCpu, const IndexArray&, const RowLayout&, Id*);
INSTANTIATE(int32_t)
INSTANTIATE(int64_t)

}  // namespace torch_ops::kernels
