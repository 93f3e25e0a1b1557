#include <algorithm>
#include <type_traits>

#include "common/cuda/scratch.h"
#include "common/elementwise/elementwise_cpu.h"
#include "common/host/float16.h"
#include "common/host/parallel.h"
#include "common/layout/row_layout.h"
#include "embedding/bag_launch.h"

namespace torch_ops::kernels {
namespace {

// Some bags: the entries of bag b are rows[bounds[b]] ... rows[bounds[b + 1] - 1].
template <class Value>
struct BagPart {
  const int64_t* rows;
  const Value* factors;  // of the same entries, or null
  int64_t count;         // of rows that there are
  const int64_t* bounds;
  int64_t bags;
  Value* result;
  // Null, or of each entry: where the row after its bag's begins in the result if it is the bag's
  // first, and otherwise 0.
  const int64_t* starts;
};

// How a part is walked.
enum class By { kBag, kBagWithFactors, kEntry };

// GCC would keep an array of sums in memory, or add one value at a time.
template <class T, int64_t kBytes>
struct Vector {
  typedef T Register __attribute__((vector_size(kBytes)));
  typedef T InMemory __attribute__((vector_size(kBytes), aligned(2), may_alias));
};

// Zeros unless `start` is 0.
template <class Register>
TORCH_OPS_HOST_DEVICE void keep_unless(int64_t start, Register& values) {
  typedef int64_t Longs __attribute__((vector_size(sizeof(Register))));
  values = reinterpret_cast<Register>(reinterpret_cast<Longs>(values) & (Longs{} + start == 0));
}

// The sums of kCount columns of a bag.
template <bool kF16c, int64_t kBytes, class Value>
struct Lanes {
  using Sum = ComputeType<Value>;
  using InMemory = typename Vector<Sum, kBytes>::InMemory;
  static constexpr int64_t kCount = kBytes / sizeof(Sum), kRegisters = 1;
  using Halves = typename Vector<uint16_t, kCount * 2>::InMemory;
  typename Vector<Sum, kBytes>::Register sums;

  // The asm statements are instructions that GCC makes of no loop, and whose intrinsics cannot be
  // in what is inlined into functions for several instruction sets.
  TORCH_OPS_HOST_DEVICE void add(const Value* from, Sum factor) {
    auto values = sums;
    if constexpr (std::is_same_v<Value, Sum>) {
      values = *reinterpret_cast<const InMemory*>(from);
    } else if constexpr (kF16c) {
      asm("vcvtph2ps %1, %0" : "=v"(values) : "m"(*reinterpret_cast<const Halves*>(from)));
    } else {
      for (int64_t d = 0; d < kCount; ++d) values[d] = static_cast<Sum>(from[d]);
    }
    sums += values * factor;
  }

  TORCH_OPS_HOST_DEVICE void divide(Sum divisor) { sums /= divisor; }

  TORCH_OPS_HOST_DEVICE void keep(int64_t start) { keep_unless(start, sums); }

  TORCH_OPS_HOST_DEVICE void store(Value* to) const {
    if constexpr (std::is_same_v<Value, Sum>) {
      *reinterpret_cast<InMemory*>(to) = sums;
    } else if constexpr (kF16c) {
      asm("vcvtps2ph $0, %1, %0" : "=m"(*reinterpret_cast<Halves*>(to)) : "v"(sums));
    } else {
      for (int64_t d = 0; d < kCount; ++d) to[d] = static_cast<Value>(sums[d]);
    }
  }
};

// Two values are the halves of a word, so that a shift or a mask makes a float of each.
template <bool kF16c, int64_t kBytes>
struct Lanes<kF16c, kBytes, BFloat16> {
  using Words = Vector<uint32_t, kBytes>;
  using Floats = typename Vector<float, kBytes>::Register;
  static constexpr int64_t kCount = kBytes / 2, kRegisters = 2;
  static constexpr uint32_t kUpper = 0xffff0000;
  Floats lower, upper;

  TORCH_OPS_HOST_DEVICE void add(const BFloat16* from, float factor) {
    const auto words = *reinterpret_cast<const typename Words::InMemory*>(from);
    lower += reinterpret_cast<Floats>(words << 16) * factor;
    upper += reinterpret_cast<Floats>(words & kUpper) * factor;
  }

  TORCH_OPS_HOST_DEVICE void divide(float divisor) {
    lower /= divisor;
    upper /= divisor;
  }

  TORCH_OPS_HOST_DEVICE void keep(int64_t start) {
    keep_unless(start, lower);
    keep_unless(start, upper);
  }

  TORCH_OPS_HOST_DEVICE void store(BFloat16* to) const {
    typename Words::Register low, high;
    round(lower, low);
    round(upper, high);
    *reinterpret_cast<typename Words::InMemory*>(to) = (low >> 16) | (high & kUpper);
  }

  // In the upper half of each word, as BFloat16 rounds.
  static TORCH_OPS_HOST_DEVICE void round(const Floats& sums, typename Words::Register& to) {
    to = reinterpret_cast<typename Words::Register>(sums);
    to = sums == sums ? to + 0x7fff + ((to >> 16) & 1) : (to & 0) + 0x7fc00000;
  }
};

template <bool kF16c, class Value>
TORCH_OPS_HOST_DEVICE ComputeType<Value> widened(Value value) {
  if constexpr (kF16c && std::is_same_v<Value, Float16>) {
    const typename Vector<uint16_t, 16>::Register halves = {value.bits};
    typename Vector<float, 16>::Register floats;
    asm("vcvtph2ps %1, %0" : "=v"(floats) : "v"(halves));
    return floats[0];
  }
  return static_cast<ComputeType<Value>>(value);
}

// The columns [first, first + columns) of the bags, for which kSome lanes are just enough. The last
// ones may take up columns that others have. Returns the position of an entry that is no row.
template <bool kF16c, bool kFactors, class Some, int64_t kSome, class Value>
TORCH_OPS_HOST_DEVICE int64_t sum_columns(const BagCall<Value>& call, const BagPart<Value>& part,
                                          int64_t first, int64_t columns) {
  using Sum = ComputeType<Value>;
  constexpr int64_t kAhead = 16, kLine = 64 / sizeof(Value);
  const int64_t table_rows = call.rows, width = call.width, last = columns - Some::kCount;
  const int64_t last_row = part.count - 1;
  const Value* const weight = call.weight + first;
  for (int64_t bag = 0; bag < part.bags; ++bag) {
    const int64_t begin = part.bounds[bag], end = part.bounds[bag + 1];
    Some sums[kSome] = {};
    for (int64_t n = begin; n < end; ++n) {
      if (!in_range(part.rows[n], table_rows)) return n;
      const Value* const row = weight + part.rows[n] * width;
      // Has not been checked yet, so that it may be no address of the table.
      const uint64_t next = reinterpret_cast<uint64_t>(weight) +
                            static_cast<uint64_t>(part.rows[std::min(n + kAhead, last_row)]) *
                                (width * sizeof(Value));
      const Sum factor = kFactors ? widened<kF16c>(part.factors[n]) : Sum(1);
#pragma GCC unroll 16
      for (int64_t i = 0; i < kSome; ++i) {
        const int64_t at = i + 1 < kSome ? i * Some::kCount : last;
        if (i * Some::kCount % kLine == 0) {
          __builtin_prefetch(reinterpret_cast<const void*>(next + at * sizeof(Value)));
        }
        sums[i].add(row + at, factor);
      }
    }
    const bool divides = call.mean && end > begin;
    Value* const result = part.result + bag * width + first;
#pragma GCC unroll 16
    for (int64_t i = 0; i < kSome; ++i) {
      if (divides) sums[i].divide(static_cast<Sum>(end - begin));
      sums[i].store(result + (i + 1 < kSome ? i * Some::kCount : last));
    }
  }
  return kNoBadEntry;
}

// The same, entry by entry, of bags in order. Each stores its bag's sum so far, so that no branch
// asks where bags end: one that is not predicted takes longer than to add several rows.
template <bool kF16c, class Some, int64_t kSome, class Value>
TORCH_OPS_HOST_DEVICE int64_t sum_entries(const BagCall<Value>& call, const BagPart<Value>& part,
                                          int64_t first, int64_t columns) {
  using Sum = ComputeType<Value>;
  constexpr int64_t kAhead = 16;
  const int64_t table_rows = call.rows, width = call.width, last = columns - Some::kCount;
  const int64_t end = part.bounds[part.bags], last_row = part.count - 1;
  const Value* const weight = call.weight + first;
  Value* const result = part.result + first - width;
  Some sums[kSome] = {};
  int64_t place = 0;
  for (int64_t n = 0; n < end; ++n) {
    if (!in_range(part.rows[n], table_rows)) return n;
    const Value* const row = weight + part.rows[n] * width;
    const uint64_t next =
        reinterpret_cast<uint64_t>(weight) +
        static_cast<uint64_t>(part.rows[std::min(n + kAhead, last_row)]) * (width * sizeof(Value));
    const int64_t start = part.starts[n];
    place = std::max(place, start);
#pragma GCC unroll 4
    for (int64_t i = 0; i < kSome; ++i) {
      const int64_t at = i + 1 < kSome ? i * Some::kCount : last;
      __builtin_prefetch(reinterpret_cast<const void*>(next + at * sizeof(Value)));
      sums[i].keep(start);
      sums[i].add(row + at, Sum(1));
      sums[i].store(result + place + at);
    }
  }
  return kNoBadEntry;
}

// A row of kWidth values, fewer than the shortest lanes have.
template <bool kF16c, int64_t kWidth, class Value>
struct ShortRow {
  using Sum = ComputeType<Value>;
  static constexpr int64_t kCount = kWidth;
  static constexpr bool kConverts = kF16c && std::is_same_v<Value, Float16>;
  using Halves = typename Vector<uint16_t, 16>::Register;
  using Sums = typename Vector<Sum, 4 * sizeof(Sum)>::Register;
  Sums sums;

  TORCH_OPS_HOST_DEVICE void add(const Value* from, Sum factor) {
    Sums values = {};
    if constexpr (kConverts) {
      Halves halves = {};
      for (int64_t d = 0; d < kWidth; ++d) halves[d] = from[d].bits;
      asm("vcvtph2ps %1, %0" : "=v"(values) : "v"(halves));
    } else {
      for (int64_t d = 0; d < kWidth; ++d) values[d] = static_cast<Sum>(from[d]);
    }
    sums += values * factor;
  }

  TORCH_OPS_HOST_DEVICE void divide(Sum divisor) { sums /= divisor; }

  TORCH_OPS_HOST_DEVICE void keep(int64_t start) { keep_unless(start, sums); }

  TORCH_OPS_HOST_DEVICE void store(Value* to) const {
    if constexpr (kConverts) {
      Halves halves;
      asm("vcvtps2ph $0, %1, %0" : "=v"(halves) : "v"(sums));
      for (int64_t d = 0; d < kWidth; ++d) to[d].bits = halves[d];
    } else if constexpr (std::is_same_v<Value, BFloat16>) {
      typename Vector<uint32_t, 16>::Register words;
      Lanes<kF16c, 16, BFloat16>::round(sums, words);
      for (int64_t d = 0; d < kWidth; ++d) to[d].bits = words[d] >> 16;
    } else {
      for (int64_t d = 0; d < kWidth; ++d) to[d] = static_cast<Value>(sums[d]);
    }
  }
};

// With as few lanes as `columns` need, of at most kSome.
template <Simd kSimd, By kBy, class Some, int64_t kSome, class Value>
int64_t sum_by(const BagCall<Value>& call, const BagPart<Value>& part, int64_t first,
               int64_t columns) {
  if constexpr (kSome > 1) {
    if (columns <= (kSome - 1) * Some::kCount) {
      return sum_by<kSimd, kBy, Some, kSome - 1>(call, part, first, columns);
    }
  }
  // The lanes of one instruction set are no code of another.
  const auto loop = [](auto, const auto&... all) TORCH_OPS_INLINE_LAMBDA {
    constexpr bool kF16c = kSimd != Simd::kBaseline;
    if constexpr (kBy == By::kEntry) return sum_entries<kF16c, Some, kSome>(all...);
    return sum_columns<kF16c, kBy == By::kBagWithFactors, Some, kSome>(all...);
  };
  return CompiledFor<kSimd>::run(loop, call, part, first, columns);
}

template <Simd kSimd, By kBy, int64_t kBytes, class Value>
int64_t sum_rows(const BagCall<Value>& call, const BagPart<Value>& part) {
  constexpr bool kF16c = kSimd != Simd::kBaseline;
  using Some = Lanes<kF16c, kBytes, Value>;
  constexpr int64_t kShortest = std::is_same_v<Value, BFloat16> ? 8 : 16;
  const int64_t width = call.width;
  if (width < Some::kCount) {
    if constexpr (kBytes > kShortest) return sum_rows<kSimd, kBy, kBytes / 2>(call, part);
    if (width == 3) return sum_by<kSimd, kBy, ShortRow<kF16c, 3, Value>, 1>(call, part, 0, 3);
    if (width == 2) return sum_by<kSimd, kBy, ShortRow<kF16c, 2, Value>, 1>(call, part, 0, 2);
    return sum_by<kSimd, kBy, ShortRow<kF16c, 1, Value>, 1>(call, part, 0, 1);
  }
  constexpr int64_t kMost = (kBy == By::kEntry        ? 4
                             : kSimd == Simd::kAvx512 ? 16
                                                      : 8) /
                            Some::kRegisters;
  int64_t bad = kNoBadEntry;
  for (int64_t first = 0; first < width && bad == kNoBadEntry; first += kMost * Some::kCount) {
    const int64_t columns = std::clamp(width - first, Some::kCount, kMost * Some::kCount);
    bad = sum_by<kSimd, kBy, Some, kMost>(call, part, std::min(first, width - columns), columns);
  }
  return bad;
}

template <Simd kSimd, int64_t kBytes, class Value>
int64_t sum_part(const BagCall<Value>& call, const BagPart<Value>& part) {
  if (part.starts != nullptr) return sum_rows<kSimd, By::kEntry, kBytes>(call, part);
  return part.factors == nullptr ? sum_rows<kSimd, By::kBag, kBytes>(call, part)
                                 : sum_rows<kSimd, By::kBagWithFactors, kBytes>(call, part);
}

// Is a part faster entry by entry? Only as long as a row's sums are a few registers, bags have
// about 4 entries, or 2 of bfloat16, whose rounding takes longer, and where they end is hard to
// predict.
template <class Value>
bool goes_by_entry(const BagCall<Value>& call, const BagPart<Value>& part) {
  constexpr int64_t kEntries = std::is_same_v<Value, BFloat16> ? 3 : 5;
  constexpr int64_t kColumns = 128 / sizeof(ComputeType<Value>);
  const int64_t* const bounds = part.bounds;
  if (call.offsets == nullptr || call.mean || part.factors != nullptr || call.width > kColumns ||
      bounds[part.bags] >= kEntries * part.bags) {
    return false;
  }
  int64_t uneven = 0, falling = 0;
  for (int64_t bag = 0; bag < part.bags; ++bag) {
    uneven += bounds[bag + 1] - bounds[bag] != bounds[1] - bounds[0];
    falling += bounds[bag + 1] < bounds[bag];
  }
  return falling == 0 && 8 * uneven > part.bags;
}

template <class Value>
int64_t sum_part(const BagCall<Value>& call, BagPart<Value> part) {
  if (call.width == 0) {  // nothing to sum, but entries to check
    const int64_t begin = part.bounds[0], end = part.bounds[part.bags];
    const int64_t* const bad = std::find_if(part.rows + begin, part.rows + end,
                                            [&](int64_t row) { return !in_range(row, call.rows); });
    return bad == part.rows + end ? kNoBadEntry : bad - part.rows;
  }
  const bool by_entry = goes_by_entry(call, part);
  const Scratch<int64_t> starts(by_entry ? part.bounds[part.bags] + 1 : 0);
  if (by_entry) {
    std::fill_n(starts.get(), part.bounds[part.bags] + 1, 0);
    for (int64_t bag = 0; bag < part.bags; ++bag) {  // the last one that begins there has entries
      starts.get()[part.bounds[bag]] = (bag + 1) * call.width;
    }
    std::fill_n(part.result, part.bags * call.width, Value());
    part.starts = starts.get();
  }
#ifdef __x86_64__
  if (cpu_simd() == Simd::kAvx512) return sum_part<Simd::kAvx512, 64>(call, part);
  if (cpu_simd() == Simd::kAvx2) return sum_part<Simd::kAvx2, 32>(call, part);
#endif
  return sum_part<Simd::kBaseline, 16>(call, part);
}

// The bags [first, last). A call by value: what is written might otherwise be part of it.
template <class Value, class Index>
int64_t sum_some(const BagCall<Value> call, const Index* entries, int64_t first, int64_t last) {
  const int64_t bags = last - first;
  const Scratch<int64_t> bounds(bags + 1);
  int64_t begin = call.count, end = 0;  // of their entries
  for (int64_t n = 0; n <= bags; ++n) {
    const int64_t at = call.begin(first + n);
    bounds.get()[n] = at;
    begin = std::min(begin, at);
    end = std::max(end, at);
  }
  for (int64_t n = 0; n <= bags; ++n) bounds.get()[n] -= begin;
  Scratch<int64_t> rows(std::is_same_v<Index, int64_t> ? 0 : end - begin);
  BagPart<Value> part{rows.get(),  call.factors == nullptr ? nullptr : call.factors + begin,
                      end - begin, bounds.get(),
                      bags,        call.result + first * call.width,
                      nullptr};
  if constexpr (std::is_same_v<Index, int64_t>) {
    part.rows = entries + begin;
    part.count = call.count - begin;
  } else {
    std::copy(entries + begin, entries + end, rows.get());
  }
  const auto at = [=](int64_t bad) { return bad == kNoBadEntry ? bad : begin + bad; };
  if (call.padding < 0) return at(sum_part(call, part));
  // Only those that count. Where offsets do not rise, bags may share entries.
  int64_t size = 0;
  for (int64_t bag = 0; bag < bags; ++bag) {
    size += std::max<int64_t>(part.bounds[bag + 1] - part.bounds[bag], 0);
  }
  const Scratch<int64_t> kept_bounds(bags + 1), kept_rows(size);
  const Scratch<Value> kept_factors(call.factors == nullptr ? 0 : size);
  int64_t kept = 0;
  for (int64_t bag = 0; bag < bags; ++bag) {
    kept_bounds.get()[bag] = kept;
    for (int64_t n = part.bounds[bag]; n < part.bounds[bag + 1]; ++n) {
      if (!in_range(part.rows[n], call.rows)) return at(n);
      kept_rows.get()[kept] = part.rows[n];
      if (call.factors != nullptr) kept_factors.get()[kept] = part.factors[n];
      kept += part.rows[n] != call.padding;
    }
  }
  kept_bounds.get()[bags] = kept;
  part.rows = kept_rows.get();
  part.bounds = kept_bounds.get();
  part.count = kept;
  if (call.factors != nullptr) part.factors = kept_factors.get();
  sum_part(call, part);
  return kNoBadEntry;
}

}  // namespace

template <class Value>
int64_t reduce_bags(OnCpu on, const BagCall<Value>& call) {
  const HostScope scope(on.program);
  return dispatch_index(call.entries, [&](const auto* entries) {
    const int64_t work = (call.count + call.bags) * std::max<int64_t>(call.width, 1);
    const int64_t part = 4 * kElementsPerTask / (work / std::max<int64_t>(call.bags, 1) + 1) + 1;
    const int64_t grain = num_threads() > 1 ? part : std::max<int64_t>(call.bags, 1);
    return parallel_min_shared(call.bags, grain, work, [&](auto&& deal) {
      int64_t bad = kNoBadEntry, first, last;
      while (deal(first, last)) bad = std::min(bad, sum_some(call, entries, first, last));
      return bad;
    });
  });
}

#define INSTANTIATE(Value) template int64_t reduce_bags(OnCpu, const BagCall<Value>&);
TORCH_OPS_FOR_EACH_FLOAT(INSTANTIATE)

}  // namespace torch_ops::kernels
