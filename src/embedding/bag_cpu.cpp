#include <algorithm>
#include <type_traits>

#include "common/cuda/scratch.h"
#include "common/elementwise/elementwise_cpu.h"
#include "common/host/float16.h"
#include "common/host/parallel.h"
#include "common/indexing/row_layout.h"
#include "embedding/bag_launch.h"

namespace torch_ops::kernels {
namespace {

// Some bags: the entries of bag b are rows[spans[b].begin] ... rows[spans[b].end - 1].
template <class Value>
struct BagPart {
  struct Span {
    int64_t begin, end;
  };

  const int64_t* rows;
  const Value* factors;  // of the same entries, or null
  int64_t count;         // of rows
  const Span* spans;
  int64_t bags;
  Value* result;

  // Fetches values of a row that is soon to be added; `column` is where these are in the first row.
  TORCH_OPS_HOST_DEVICE void fetch(const Value* column, int64_t width, int64_t n,
                                   int64_t values) const {
    constexpr int64_t kAhead = 16, kLine = 64 / sizeof(Value);
    const auto row = static_cast<uint64_t>(rows[std::min(n + kAhead, count - 1)]);
    // It has not been checked yet, so that this may be no address of the table.
    const uint64_t from = reinterpret_cast<uint64_t>(column) + row * width * sizeof(Value);
    for (int64_t d = 0; d < values; d += kLine) {
      __builtin_prefetch(reinterpret_cast<const void*>(from + d * sizeof(Value)));
    }
  }
};

// A vector register. GCC would keep an array of sums in memory, or add one value at a time.
template <bool kF16c, int64_t kBytes, class Sum>
struct Lanes {
  static constexpr int64_t kCount = kBytes / sizeof(Sum);
  typedef Sum Register __attribute__((vector_size(kBytes)));
  typedef Sum InMemory __attribute__((vector_size(kBytes), aligned(alignof(Sum)), may_alias));
  typedef uint16_t Halves __attribute__((vector_size(kCount * 2), aligned(2), may_alias));
  Register values;

  // Instructions that GCC makes of no loop, and whose intrinsics cannot be in what is inlined into
  // functions for several instruction sets.
  template <class Value>
  TORCH_OPS_HOST_DEVICE void load(const Value* from) {
    if constexpr (std::is_same_v<Value, Sum>) {
      values = *reinterpret_cast<const InMemory*>(from);
    } else if constexpr (kF16c && std::is_same_v<Value, BFloat16>) {
      asm("vpmovzxwd %1, %0\n\tvpslld $16, %0, %0"
          : "=v"(values)
          : "m"(*reinterpret_cast<const Halves*>(from)));
    } else if constexpr (kF16c) {
      asm("vcvtph2ps %1, %0" : "=v"(values) : "m"(*reinterpret_cast<const Halves*>(from)));
    } else {
      for (int64_t d = 0; d < kCount; ++d) values[d] = static_cast<Sum>(from[d]);
    }
  }

  template <class Value>
  TORCH_OPS_HOST_DEVICE void store(Value* to) const {
    if constexpr (std::is_same_v<Value, Sum>) {
      *reinterpret_cast<InMemory*>(to) = values;
    } else if constexpr (kF16c && std::is_same_v<Value, Float16>) {
      asm("vcvtps2ph $0, %1, %0" : "=m"(*reinterpret_cast<Halves*>(to)) : "v"(values));
    } else {
      Sum sums[kCount];
      *reinterpret_cast<InMemory*>(sums) = values;
#pragma GCC unroll 1  // else GCC rounds one value at a time
      for (int64_t d = 0; d < kCount; ++d) to[d] = static_cast<Value>(sums[d]);
    }
  }
};

// Columns of a bag: weight and result begin at the first of them. Returns the position of an entry
// that is no row.
template <bool kFactors, class Some, int64_t kSome, class Value>
TORCH_OPS_HOST_DEVICE int64_t sum_lanes(const BagCall<Value>& call, const BagPart<Value>& part,
                                        int64_t begin, int64_t end, const Value* weight,
                                        Value* result) {
  const int64_t width = call.width;
  Some sums[kSome];
#pragma GCC unroll 8
  for (int64_t i = 0; i < kSome; ++i) sums[i].values = typename Some::Register{};
  for (int64_t n = begin; n < end; ++n) {
    if (!in_range(part.rows[n], call.rows)) return n;
    part.fetch(weight, width, n, kSome * Some::kCount);
    const Value* const row = weight + part.rows[n] * width;
#pragma GCC unroll 8
    for (int64_t i = 0; i < kSome; ++i) {
      Some added;
      added.load(row + i * Some::kCount);
      if constexpr (kFactors) added.values *= static_cast<ComputeType<Value>>(part.factors[n]);
      sums[i].values += added.values;
    }
  }
  const bool divides = call.mean && end > begin;
#pragma GCC unroll 8
  for (int64_t i = 0; i < kSome; ++i) {
    if (divides) sums[i].values /= static_cast<ComputeType<Value>>(end - begin);
    sums[i].store(result + i * Some::kCount);
  }
  return kNoBadEntry;
}

// The columns from `column` on, in blocks of kSome or fewer. The last block may take up columns
// that another had.
template <bool kFactors, class Some, int64_t kSome, class Value>
TORCH_OPS_HOST_DEVICE int64_t sum_columns(const BagCall<Value>& call, const BagPart<Value>& part,
                                          int64_t begin, int64_t end, int64_t column,
                                          Value* result) {
  constexpr int64_t kBlock = kSome * Some::kCount;
  while (column < call.width) {
    if (column + kBlock > call.width) {
      if constexpr (kSome > 1) {
        return sum_columns<kFactors, Some, kSome / 2>(call, part, begin, end, column, result);
      }
      column = call.width - kBlock;
    }
    const int64_t bad = sum_lanes<kFactors, Some, kSome>(call, part, begin, end,
                                                         call.weight + column, result + column);
    if (bad != kNoBadEntry) return bad;
    column += kBlock;
  }
  return kNoBadEntry;
}

// Rows of kWidth values, fewer than 16 bytes of sums.
template <bool kFactors, int64_t kWidth, class Value>
TORCH_OPS_HOST_DEVICE int64_t sum_short_rows(const BagCall<Value>& call, const BagPart<Value>& part,
                                             int64_t begin, int64_t end, Value* result) {
  using Sum = ComputeType<Value>;
  Sum sums[kWidth] = {};
  for (int64_t n = begin; n < end; ++n) {
    if (!in_range(part.rows[n], call.rows)) return n;
    part.fetch(call.weight, kWidth, n, kWidth);
    const Value* const row = call.weight + part.rows[n] * kWidth;
    for (int64_t d = 0; d < kWidth; ++d) {
      const Sum factor = kFactors ? static_cast<Sum>(part.factors[n]) : Sum(1);
      sums[d] += factor * static_cast<Sum>(row[d]);
    }
  }
  const Sum divisor = call.mean && end > begin ? static_cast<Sum>(end - begin) : Sum(1);
  for (int64_t d = 0; d < kWidth; ++d) result[d] = static_cast<Value>(sums[d] / divisor);
  return kNoBadEntry;
}

template <bool kF16c, bool kFactors, int64_t kBytes, class Value>
TORCH_OPS_HOST_DEVICE int64_t sum_loop(const BagCall<Value>& call, const BagPart<Value>& part) {
  using Some = Lanes<kF16c, kBytes, ComputeType<Value>>;
  if (call.width < Some::kCount) {
    if constexpr (kBytes > 16) return sum_loop<kF16c, kFactors, kBytes / 2>(call, part);
  }
  for (int64_t bag = 0; bag < part.bags; ++bag) {
    const int64_t begin = part.spans[bag].begin, end = part.spans[bag].end;
    Value* const result = part.result + bag * call.width;
    const int64_t bad =
        call.width >= Some::kCount
            ? sum_columns<kFactors, Some, 8>(call, part, begin, end, 0, result)
        : call.width == 3 ? sum_short_rows<kFactors, 3>(call, part, begin, end, result)
        : call.width == 2 ? sum_short_rows<kFactors, 2>(call, part, begin, end, result)
        : call.width == 1 ? sum_short_rows<kFactors, 1>(call, part, begin, end, result)
                          : kNoBadEntry;
    if (bad != kNoBadEntry) return bad;
  }
  return kNoBadEntry;
}

template <class Value>
int64_t sum_baseline(const BagCall<Value>& call, const BagPart<Value>& part) {
  return part.factors == nullptr ? sum_loop<false, false, 16>(call, part)
                                 : sum_loop<false, true, 16>(call, part);
}
#ifdef __x86_64__
template <class Value>
TORCH_OPS_AVX2 int64_t sum_avx2(const BagCall<Value>& call, const BagPart<Value>& part) {
  return part.factors == nullptr ? sum_loop<true, false, 32>(call, part)
                                 : sum_loop<true, true, 32>(call, part);
}
template <class Value>
TORCH_OPS_AVX512 int64_t sum_avx512(const BagCall<Value>& call, const BagPart<Value>& part) {
  return part.factors == nullptr ? sum_loop<true, false, 64>(call, part)
                                 : sum_loop<true, true, 64>(call, part);
}
#endif

template <class Value>
int64_t sum_part(const BagCall<Value>& call, const BagPart<Value>& part) {
  if (call.width == 0) {  // nothing to sum, but entries to check
    const int64_t* const bad = std::find_if(part.rows, part.rows + part.count,
                                            [&](int64_t row) { return !in_range(row, call.rows); });
    return bad == part.rows + part.count ? kNoBadEntry : bad - part.rows;
  }
#ifdef __x86_64__
  if (cpu_simd() == Simd::kAvx512) return sum_avx512(call, part);
  if (cpu_simd() == Simd::kAvx2) return sum_avx2(call, part);
#endif
  return sum_baseline(call, part);
}

// The bags [first, last).
template <class Value, class Index>
int64_t sum_some(const BagCall<Value>& call, const Index* entries, int64_t first, int64_t last) {
  using Span = typename BagPart<Value>::Span;
  const Scratch<Span> spans(last - first);
  int64_t begin = call.count, end = 0, size = 0;  // of their entries
  for (int64_t bag = first; bag < last; ++bag) {
    Span& span = spans.get()[bag - first];
    span = {call.begin(bag), std::max(call.begin(bag), call.begin(bag + 1))};
    begin = std::min(begin, span.begin);
    end = std::max(end, span.end);
    size += span.end - span.begin;
  }
  Scratch<int64_t> rows(std::is_same_v<Index, int64_t> ? 0 : end - begin);
  BagPart<Value> part{rows.get(),   call.factors == nullptr ? nullptr : call.factors + begin,
                      end - begin,  spans.get(),
                      last - first, call.result + first * call.width};
  if constexpr (std::is_same_v<Index, int64_t>) {
    part.rows = entries + begin;
  } else {
    std::copy(entries + begin, entries + end, rows.get());
  }
  for (int64_t bag = 0; bag < part.bags; ++bag) {
    spans.get()[bag].begin -= begin;
    spans.get()[bag].end -= begin;
  }
  const auto at = [=](int64_t bad) { return bad == kNoBadEntry ? bad : begin + bad; };
  if (call.padding < 0) return at(sum_part(call, part));
  // Only those that count.
  const Scratch<int64_t> kept_rows(size);
  const Scratch<Value> kept_factors(call.factors == nullptr ? 0 : size);
  int64_t kept = 0;
  for (int64_t bag = 0; bag < part.bags; ++bag) {
    Span& span = spans.get()[bag];
    const int64_t from = kept;
    for (int64_t n = span.begin; n < span.end; ++n) {
      if (!in_range(part.rows[n], call.rows)) return at(n);
      kept_rows.get()[kept] = part.rows[n];
      if (call.factors != nullptr) kept_factors.get()[kept] = part.factors[n];
      kept += part.rows[n] != call.padding;
    }
    span = {from, kept};
  }
  part.rows = kept_rows.get();
  part.count = kept;
  if (call.factors != nullptr) part.factors = kept_factors.get();
  sum_part(call, part);
  return kNoBadEntry;
}

}  // namespace

template <class Value>
int64_t sum_bags(OnCpu on, const BagCall<Value>& call) {
  const HostScope scope(on.program);
  return dispatch_index(call.entries, [&](const auto* entries) {
    const int64_t work = (call.count + call.bags) * std::max<int64_t>(call.width, 1);
    const int64_t grain = 4 * kElementsPerTask / (work / std::max<int64_t>(call.bags, 1) + 1) + 1;
    return parallel_min_shared(call.bags, grain, work, [&](auto&& deal) {
      int64_t bad = kNoBadEntry, first, last;
      while (deal(first, last)) bad = std::min(bad, sum_some(call, entries, first, last));
      return bad;
    });
  });
}

#define INSTANTIATE(Value) template int64_t sum_bags(OnCpu, const BagCall<Value>&);
TORCH_OPS_FOR_EACH_FLOAT(INSTANTIATE)

}  // namespace torch_ops::kernels
