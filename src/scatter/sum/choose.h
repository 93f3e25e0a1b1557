// Which way a sum takes on CUDA, and why: a table in order of preference, of which choose() takes
// the first row that applies. From sizes, dtypes, alignment and the GPU's limits alone. The numbers
// are in tuning.h. No torch.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>

#include "common/cuda/device_limits.h"
#include "scatter/sum/atomic_cut.h"
#include "scatter/sum/fixed_cut.h"
#include "scatter/sum/privatized_cut.h"
#include "scatter/sum/problem.h"
#include "scatter/sum/small_cut.h"
#include "scatter/sum/tuning.h"

namespace torch_ops {

enum class SumWay {
  kFixedPoint,  // in integers, by atomics in shared memory
  kSmall,       // one kernel for few entries per slab
  kSparse,      // the same if most rows have no entry
  kFew,         // a table for only the rows with entries
  kPrivatized,  // few rows: each thread has its own sums of all
  kSorted,      // entries in the order of their rows
  // By atomics:
  kStaged,    // single values that go to a small table: summed in shared memory
  kEntries,   // rows of one value, and of two or four floats: a lane per entry
  kValues,    // other short ones of small calls: a lane per value
  kTiles,     // rows of whole vectors of floats, grouped by place in each warp
  kStreamed,  // other rows: an atomic for each value, or grouped where entries meet
};

// What a way can do, in addition to sums of floats in any order that are written, rounded.
struct SumAbility {
  const char* name;
  bool repeatable;  // the same bits on every run
  bool integers;
  bool unrounded;  // sums of 16-bit floats that stay floats
  bool in_place;   // additions to the values in the result

  bool can(const SumProblem& problem, bool asks_repeatable) const {
    return (repeatable || !asks_repeatable) && (integers || problem.floats) &&
           (unrounded || !problem.unrounded()) && (in_place || !problem.in_place);
  }
};

inline const SumAbility& ability(SumWay way) {
  static constexpr SumAbility kAbilities[] = {
      {"fixed point", true, false, false, false}, {"small", true, true, false, false},
      {"sparse", true, false, false, false},      {"few", false, false, false, false},
      {"privatized", true, true, true, true},     {"sorted", true, false, true, false},
      {"staged", false, true, true, true},        {"entries", false, true, true, true},
      {"values", false, true, true, true},        {"tiles", false, true, true, true},
      {"streamed", false, true, true, true},
  };
  return kAbilities[static_cast<int>(way)];
}

// A call, and how the ways that look at more than its sizes would cut it: each cut is made once,
// when a row first asks for it.
class SumCandidate {
 public:
  SumCandidate(const SumProblem& problem, const DeviceLimits& device)
      : problem(problem), layout(problem.layout), device(device), tuned(tuning(device)) {}

  const FixedCut& fixed() { return once(fixed_, cut_fixed); }
  const PrivatizedCut& privatized() { return once(privatized_, cut_privatized); }
  const SmallCut& small() { return once(small_, cut_small); }
  const SmallCut& sparse() { return once(sparse_, cut_sparse); }

  const SumProblem& problem;
  const RowLayout& layout;
  const DeviceLimits& device;
  const SumTuning& tuned;

 private:
  template <class Cut>
  const Cut& once(std::optional<Cut>& cut, Cut (*make)(const SumProblem&, const DeviceLimits&)) {
    if (!cut) cut = make(problem, device);
    return *cut;
  }

  std::optional<FixedCut> fixed_;
  std::optional<PrivatizedCut> privatized_;
  std::optional<SmallCut> small_;
  std::optional<SmallCut> sparse_;
};

// ---- Conditions of several rows -----------------------------------------------------------------

// In one table, which contains whole slabs.
inline bool is_one_table(SumCandidate& c) { return c.fixed().fits && c.fixed().bins == 0; }

// Otherwise sums of 16 bits have to be rounded in all rows of a large result, which is the more
// work the larger it is. But blocks should run at once, each reads its slab's whole index, and if
// all entries name one row they are the work of one block per strip.
inline bool pays_sparse(SumCandidate& c) {
  const SparseTuning& t = c.tuned.sparse;
  const int64_t values = c.problem.result_values();
  if (c.problem.result_bytes != 2 || t.rows_per_entry * c.layout.entries > c.layout.axis_size ||
      values < t.least_values || !c.sparse().fits) {
    return false;
  }
  const SmallCut& cut = c.sparse();
  const bool small_blocks = cut.threads == SmallCut::kThreads;
  const int64_t most_blocks = (small_blocks ? t.most_small_blocks : t.most_blocks) + (values >> 22);
  const int64_t most_entries = cut.fills ? t.most_entries_filled : t.most_entries;
  const int64_t most_values =
      cut.fills ? t.most_values_filled
                : std::clamp(values / 64, t.least_most_values, t.most_most_values);
  return cut.blocks_per_multiprocessor <= most_blocks && c.layout.entries <= most_entries &&
         c.layout.entries * cut.columns <= most_values;
}

// Other ways need one more launch, for zeros, and two more for 16 bits, whose sums have to be
// rounded; and atomics are slow on rows of a few values. The rest is as above.
inline bool pays_small(SumCandidate& c) {
  const SmallTuning& t = c.tuned.small;
  const bool rounded = c.problem.result_bytes < 4;
  const SmallCut& cut = c.small();
  return cut.fits && cut.blocks_per_multiprocessor <= t.most_blocks &&
         cut.columns * std::max<int64_t>(c.problem.result_bytes, 2) <= t.strip_bytes &&
         cut.entries <= (rounded ? t.most_entries_rounded : t.most_entries) &&
         int64_t{cut.entries} * cut.columns <= (rounded ? t.most_values_rounded : t.most_values);
}

// Are there so few rows, at which atomics would wait for each other, that a block's own sums of all
// of them pay for a slab's values? There must be entries enough to fill the GPU, too.
inline bool pays_privatized(SumCandidate& c) {
  const PrivatizedTuning& t = c.tuned.privatized;
  const int64_t rows = c.layout.axis_size, values = c.layout.entries * c.layout.inner;
  if (c.problem.values() < t.least_values || c.problem.entries() < t.entries_per_row * rows) {
    return false;
  }
  const bool fixed =
      ability(SumWay::kFixedPoint).can(c.problem, c.problem.repeatable) && c.fixed().fits;
  if (fixed && rows > t.most_rows_fixed) return false;
  if (c.layout.inner >= t.wide_row && rows > t.most_wide_rows) return false;
  return values >= std::max(t.least_slab_values, t.values_per_row * rows) && c.privatized().fits;
}

// Are there so few rows that a block's own sums of all of them pay, if the alternative is to sort?
inline bool pays_privatized_repeatable(SumCandidate& c) {
  const PrivatizedTuning& t = c.tuned.privatized;
  const int64_t rows = c.layout.axis_size;
  if (c.layout.entries <= t.most_entries_of_small ||
      c.layout.entries < t.entries_per_row_repeatable * rows) {
    return false;
  }
  const bool fixed = ability(SumWay::kFixedPoint).can(c.problem, true) && c.fixed().fits;
  return (fixed ? rows <= t.most_rows_fixed : rows * rows <= t.most_squares / c.layout.inner) &&
         c.privatized().fits;
}

// Have most rows of a slab no entry?
inline bool is_sparse(SumCandidate& c) {
  return c.layout.axis_size > c.tuned.sparse.rows_per_entry_repeatable * c.layout.entries;
}

// Is a slab's index so short that each block of small or sparse can read it? They give the same
// bits, so the choice between them may depend on the whole call, but this one may not: neither does
// whether they fit.
inline bool pays_small_repeatable(SumCandidate& c) {
  if (!(is_sparse(c) ? c.sparse() : c.small()).fits) return false;
  const SmallTuning& t = c.tuned.small;
  const int64_t entries = c.layout.entries;
  const int64_t blocks = std::min(ceil_div(entries, c.tuned.sparse.share),
                                  ceil_div(c.layout.axis_size, int64_t{SmallCut::kMostRows}));
  return entries <= t.most_entries_repeatable ||
         c.sparse().strips * blocks * entries <= t.most_read;
}

// Of the way few: a row of sums for each entry, of pairs for single values; what is known of it.
inline int64_t few_scratch(const RowLayout& layout) {
  const int64_t width = std::max<int64_t>(layout.inner, 2);
  return 4 * (layout.batch * layout.entries * (width + 2) + 1);
}

// In rows that are no whole vectors of 16 bytes, the sorted way has one column per lane, and takes
// two to four times as long as atomics, unless most rows have no entry.
inline bool is_long_to_sort(SumCandidate& c) {
  return c.problem.result_bytes <= 4 && c.layout.inner * c.problem.result_bytes % 16 != 0 &&
         c.tuned.sorted.rows_per_odd_entry * c.layout.entries >= c.layout.axis_size;
}

// Of the table of floats to which atomics add 16-bit floats: for parts of the call in turn, where
// sorting takes longer than these do.
inline int64_t table_bytes(SumCandidate& c) {
  return is_long_to_sort(c) ? table_bytes(c.problem, summed_at_once(c.problem, c.device))
                            : c.problem.table_bytes();
}

inline bool fits_staged(SumCandidate& c) {
  return c.layout.inner == 1 && c.layout.entries >= c.tuned.atomic.least_staged_entries &&
         c.layout.axis_size * c.problem.sum_bytes <= c.device.shared_bytes;
}

// ---- The table ----------------------------------------------------------------------------------

// Text with numbers; powers of two beyond 2^16 as such.
template <class... Parts>
std::string words(const Parts&... parts) {
  std::string text;
  const auto add = [&](const auto& part) {
    if constexpr (std::is_convertible_v<decltype(part), int64_t>) {
      int power = 0;
      while (int64_t{1} << power < part) ++power;
      const bool exact = power > 16 && int64_t{1} << power == part;
      text += exact ? "2^" + std::to_string(power) : std::to_string(part);
    } else {
      text += part;
    }
  };
  (add(parts), ...);
  return text;
}

struct SumRow {
  SumWay way;
  bool (*applies)(SumCandidate& c);            // it fits, and it pays
  std::string (*why)(const SumTuning& tuned);  // the same in words
};

inline std::string few_entries(const SumTuning& t) {
  return words("up to ", t.small.most_entries_repeatable, " entries per slab, or up to ",
               SmallCut::kMostEntries, " (", 2 * SmallCut::kMostEntries,
               " if most rows have none) if blocks of ", SmallCut::kMostRows, " rows or ",
               t.sparse.share, " entries would read ", t.small.most_read, " or less in all");
}

// If the bits of floats must be the same on every run. Which row applies depends only on one
// slab, so that its bits do not depend on what else is in the call.
inline constexpr SumRow kRepeatableSums[] = {
    {SumWay::kPrivatized, [](SumCandidate& c) { return pays_privatized_repeatable(c); },
     [](const SumTuning& t) {
       const PrivatizedTuning& p = t.privatized;
       return words("more than ", p.most_entries_of_small, " entries per slab, ",
                    p.entries_per_row_repeatable, " or more per row, to few rows, whose sums all ",
                    "fit shared memory: the square of their number times the values of one is at ",
                    "most ", p.most_squares, "; at most ", p.most_rows_fixed,
                    " rows where fixed point is possible");
     }},
    {SumWay::kFixedPoint, [](SumCandidate& c) { return c.fixed().fits; },
     [](const SumTuning& t) {
       return words("rows of 1, 2 or 4 values of up to 4 bytes, an entry or more for every ",
                    t.fixed_point.entries_per_row,
                    " rows, and enough scratch and shared memory for the tables of sums");
     }},
    {SumWay::kSparse,
     [](SumCandidate& c) {
       return pays_small_repeatable(c) && is_sparse(c) &&
              (!c.small().fits ||
               c.small().blocks_per_multiprocessor > c.tuned.sparse.most_blocks_of_small);
     },
     [](const SumTuning& t) {
       return few_entries(t) + words("; more than ", t.sparse.rows_per_entry_repeatable,
                                     " rows per entry, and small would have more than ",
                                     t.sparse.most_blocks_of_small, " blocks per multiprocessor");
     }},
    {SumWay::kSmall, [](SumCandidate& c) { return pays_small_repeatable(c); },
     [](const SumTuning& t) { return few_entries(t); }},
    {SumWay::kSorted, [](SumCandidate&) { return true; },
     [](const SumTuning&) { return words("everything else"); }},
};

// If they need not be, and for integers.
inline constexpr SumRow kSums[] = {
    {SumWay::kFixedPoint,
     [](SumCandidate& c) {
       const FixedPointTuning& t = c.tuned.fixed_point;
       const int64_t slab = std::max(c.layout.entries, c.layout.axis_size) * c.layout.inner;
       return slab <= (c.problem.result_bytes == 2 ? t.most_slab_halves : t.most_slab_values) &&
              (c.layout.inner == 1 || c.layout.slabs() * slab <= t.most_at_once) && is_one_table(c);
     },
     [](const SumTuning& t) {
       const FixedPointTuning& f = t.fixed_point;
       return words("rows of 1, 2 or 4 floats in slabs of up to ", f.most_slab_values,
                    " values and sums (", f.most_slab_halves,
                    " of 16 bits), if rows have several values up to ", f.most_at_once,
                    " in all: a launch is most of their time, and this is a single one");
     }},
    {SumWay::kPrivatized,
     [](SumCandidate& c) {
       return (c.layout.inner > 1 || c.layout.axis_size <= c.tuned.privatized.most_rows_fixed) &&
              pays_privatized(c);
     },
     [](const SumTuning& t) {
       const PrivatizedTuning& p = t.privatized;
       return words("few rows, whose sums all fit shared memory: at most ", p.most_wide_rows,
                    " of ", p.wide_row, " values or more, ", p.most_rows_fixed,
                    " of single values and where fixed point is possible; slabs of ",
                    p.least_slab_values, " values or more, ", p.values_per_row,
                    " or more per row; ", p.least_values, " values or more in all, and ",
                    p.entries_per_row,
                    " entries or more for each row of one slab: atomics would wait for each other");
     }},
    {SumWay::kFixedPoint,
     [](SumCandidate& c) {
       return c.layout.inner == 1 && c.problem.entries() >= c.problem.rows() &&
              c.problem.entries() + 4 * c.problem.rows() >= c.tuned.fixed_point.least_kept &&
              is_one_table(c) && c.fixed().keeps;
     },
     [](const SumTuning& t) {
       return words(
           "single floats, an entry or more per sum, if a block can keep its entries in shared "
           "memory, and entries and four times the sums are ",
           t.fixed_point.least_kept, " or more, which fill the GPU");
     }},
    {SumWay::kFixedPoint,
     [](SumCandidate& c) {
       const FixedPointTuning& t = c.tuned.fixed_point;
       return c.layout.inner > 1 && c.layout.axis_size <= t.most_crowded_rows &&
              c.problem.entries() >= t.least_crowd &&
              c.layout.entries >= t.crowd_per_row * c.layout.axis_size && is_one_table(c);
     },
     [](const SumTuning& t) {
       const FixedPointTuning& f = t.fixed_point;
       return words("rows of 2 or 4 floats, ", f.least_crowd, " entries or more to slabs of up to ",
                    f.most_crowded_rows, " rows, ", f.crowd_per_row, " entries or more per row");
     }},
    {SumWay::kSparse,
     [](SumCandidate& c) {
       return c.layout.inner % SmallCut::kColumns != 0 &&
              c.problem.result_values() >= c.tuned.sparse.least_odd_values && pays_sparse(c);
     },
     [](const SumTuning& t) {
       return words("what the next row but one takes, in widths that are no multiple of ",
                    SmallCut::kColumns, " and results of ", t.sparse.least_odd_values,
                    " values or more: small takes longer to write the rows without entries");
     }},
    {SumWay::kSmall, [](SumCandidate& c) { return pays_small(c); },
     [](const SumTuning& t) {
       const SmallTuning& s = t.small;
       return words("up to ", s.most_entries, " entries per slab (", s.most_entries_rounded,
                    " of 8 and 16 bits), up to ", s.most_values, " values per strip (",
                    s.most_values_rounded, "), up to ", s.most_blocks,
                    " blocks per multiprocessor: one launch, and nothing to round");
     }},
    {SumWay::kSparse, [](SumCandidate& c) { return pays_sparse(c); },
     [](const SumTuning& t) {
       const SparseTuning& s = t.sparse;
       return words(
           "16-bit floats, ", s.rows_per_entry, " rows or more per entry, up to ", s.most_entries,
           " entries per slab, results of ", s.least_values,
           " values or more, most of which other ways would set to zero and round in vain");
     }},
    {SumWay::kFew,
     [](SumCandidate& c) {
       const FewTuning& t = c.tuned.few;
       const int64_t entries = c.layout.batch * c.layout.entries;
       const int64_t rows = c.layout.batch * c.layout.axis_size;
       return c.problem.result_bytes == 2 && c.problem.words && c.layout.outer == 1 &&
              t.rows_per_entry * entries <= rows && rows <= INT32_MAX &&
              t.values_per_entry * entries <= c.problem.result_values() &&
              c.problem.result_values() >= t.least_result_values &&
              few_scratch(c.layout) <= most_scratch(c.layout, c.problem.result_bytes);
     },
     [](const SumTuning& t) {
       return words("16-bit floats, ", t.few.rows_per_entry, " rows and ", t.few.values_per_entry,
                    " values of the result or more per entry, results of ",
                    t.few.least_result_values, " values or more");
     }},
    {SumWay::kSorted,
     [](SumCandidate& c) {
       const SortedTuning& t = c.tuned.sorted;
       // Atomics on 16-bit values need a table of floats and a pass over it to round.
       const int64_t rows = c.problem.result_bytes == 2
                                ? std::max(c.problem.entries(), c.problem.rows())
                                : c.problem.entries();
       return c.layout.inner * std::max<int64_t>(c.problem.result_bytes, 4) >= t.least_row_bytes &&
              rows * c.layout.inner >= t.least_values && !is_long_to_sort(c);
     },
     [](const SumTuning& t) {
       return words("rows of ", t.sorted.least_row_bytes, " bytes or more (as float32), ",
                    t.sorted.least_values,
                    " values or more (of 16 bits: or sums); of 16 and 32 bits, if rows are whole "
                    "vectors of 16 bytes or more than ",
                    t.sorted.rows_per_odd_entry, " per entry");
     }},
    {SumWay::kSorted,
     [](SumCandidate& c) {
       return c.problem.result_bytes == 2 &&
              table_bytes(c) > most_scratch(c.layout, c.problem.result_bytes);
     },
     [](const SumTuning&) {
       return words(
           "16-bit floats whose sums by atomics, in a table of float32, would exceed the "
           "bound on scratch memory");
     }},
    {SumWay::kSorted,
     [](SumCandidate& c) {
       const SortedTuning& t = c.tuned.sorted;
       return c.layout.inner > 1 && c.problem.result_values() <= t.most_crowded_sums &&
              c.layout.entries >= t.crowd_per_row * c.layout.axis_size &&
              c.layout.entries >= t.least_crowd * c.layout.slabs();
     },
     [](const SumTuning& t) {
       return words("rows of several values, up to ", t.sorted.most_crowded_sums, " sums in all, ",
                    t.sorted.crowd_per_row, " entries or more per row, and per slab ",
                    t.sorted.least_crowd, " or more times the number of slabs: atomics would wait ",
                    "for each other");
     }},
    {SumWay::kStaged,
     [](SumCandidate& c) {
       const AtomicTuning& t = c.tuned.atomic;
       return fits_staged(c) &&
              c.layout.slabs() * (c.layout.entries / (t.entries_per_sum * c.layout.axis_size)) >=
                  t.least_staged_blocks;
     },
     [](const SumTuning& t) {
       return words("single values, ", t.atomic.least_staged_entries,
                    " entries or more per slab, whose sums fit shared memory: ",
                    t.atomic.least_staged_blocks, " blocks or more of ", t.atomic.entries_per_sum,
                    " entries per sum");
     }},
    {SumWay::kStaged,
     [](SumCandidate& c) {
       const AtomicTuning& t = c.tuned.atomic;
       return fits_staged(c) && c.layout.slabs() >= t.filling_slabs &&
              c.layout.axis_size >= t.least_filling_rows &&
              c.layout.entries >= c.layout.axis_size &&
              c.problem.entries() >= t.least_filling_entries;
     },
     [](const SumTuning& t) {
       const AtomicTuning& a = t.atomic;
       return words("the same with one entry per sum, in ", a.filling_slabs, " slabs or more of ",
                    a.least_filling_rows, " sums or more, ", a.least_filling_entries,
                    " entries in all: a block to each slab");
     }},
    {SumWay::kEntries, [](SumCandidate& c) { return c.layout.inner == 1; },
     [](const SumTuning&) { return words("other single values"); }},
    {SumWay::kEntries,
     [](SumCandidate& c) {
       return c.problem.vectors && (c.layout.inner == 2 || c.layout.inner == 4);
     },
     [](const SumTuning&) {
       return words("aligned rows of 2 or 4 values that are summed as float32");
     }},
    {SumWay::kValues,
     [](SumCandidate& c) {
       const AtomicTuning& t = c.tuned.atomic;
       const int64_t values = c.problem.values();
       return (c.layout.inner < t.streamed_row && values < t.least_short_streamed) ||
              (c.problem.result_bytes >= 4 && c.layout.entries <= c.layout.axis_size &&
               values < t.most_spread_values);
     },
     [](const SumTuning& t) {
       return words("other rows below ", t.atomic.streamed_row, " values in calls below ",
                    t.atomic.least_short_streamed, " values; any of 32 and 64 bits, an entry or ",
                    "less per row, in calls below ", t.atomic.most_spread_values);
     }},
    {SumWay::kTiles,
     [](SumCandidate& c) {
       const AtomicTuning& t = c.tuned.atomic;
       return c.problem.vectors && c.layout.inner >= 8 && c.layout.inner % kTileVector == 0 &&
              (c.layout.inner >= t.tiled_row || c.problem.values() < t.most_short_tiled);
     },
     [](const SumTuning& t) {
       return words("aligned rows of whole vectors of four values that are summed as float32: of ",
                    t.atomic.tiled_row, " or more, and of 8 and 12 in calls below ",
                    t.atomic.most_short_tiled, " values");
     }},
    {SumWay::kStreamed, [](SumCandidate&) { return true; },
     [](const SumTuning&) { return words("everything else"); }},
};

// ---- The choice ---------------------------------------------------------------------------------

struct SumPlan {
  const SumRow* row;
  bool adjacent;    // as in the problem
  int64_t at_once;  // by atomics: so many of the call's slowest axis, which `cut` is for
  std::variant<std::monostate, FixedCut, SmallCut, PrivatizedCut, StagedCut, TilesCut, StreamedCut>
      cut;

  SumWay way() const { return row->way; }
};

inline auto cut_for(SumWay way, SumCandidate& candidate) -> decltype(SumPlan::cut) {
  switch (way) {
    case SumWay::kFixedPoint:
      return candidate.fixed();
    case SumWay::kSmall:
      return candidate.small();
    case SumWay::kSparse:
      return candidate.sparse();
    case SumWay::kPrivatized:
      return candidate.privatized();
    case SumWay::kStaged:
      return cut_staged(candidate.problem, candidate.device);
    case SumWay::kTiles:
      return cut_tiles(candidate.layout, candidate.device);
    case SumWay::kStreamed:
      return cut_streamed(candidate.problem, candidate.device);
    default:
      return {};
  }
}

// Small, sparse and privatized pay with a plan too: then the plan is not used, and the bits are
// those of a call without it.
inline SumPlan choose(const SumProblem& problem, const DeviceLimits& device) {
  SumCandidate candidate(problem, device);
  const bool repeatable = problem.repeatable && problem.floats && !problem.in_place;
  const SumRow* row = repeatable ? kRepeatableSums : kSums;
  while (!ability(row->way).can(problem, repeatable) || !row->applies(candidate)) ++row;
  if (row->way < SumWay::kStaged) return {row, problem.adjacent, 0, cut_for(row->way, candidate)};
  SumProblem part = problem;
  const int64_t at_once = slowest(part.layout) = summed_at_once(problem, device);
  SumCandidate of_part(part, device);
  return {row, problem.adjacent, at_once, cut_for(row->way, of_part)};
}

// ---- An entry for each element ------------------------------------------------------------------

// Are so few 16-bit floats added to a result of so many that this is not the work of a table of
// floats? Then they are summed by their places in the result, as a sum of single values.
inline bool pays_by_places(int64_t entries, int64_t result_values, const DeviceLimits& device) {
  if (tuning(device).elements.values_per_place * entries > result_values) return false;
  SumProblem problem{RowLayout::contiguous(1, 1, result_values, entries, /*inner=*/1)};
  problem.value_bytes = problem.result_bytes = 2;
  problem.sum_bytes = 4;
  problem.floats = problem.words = true;
  const SumWay way = choose(problem, device).way();
  return way == SumWay::kSparse || way == SumWay::kFew;
}

// ---- The largest or smallest values -------------------------------------------------------------

// Of a best value's key and its entry, which have the larger one's alignment.
constexpr int64_t best_bytes(int64_t value_bytes) { return value_bytes > 4 ? 16 : 8; }

// How the positions of the best values of few rows are found, if that pays.
inline PrivatizedCut cut_for_best(const RowLayout& layout, int64_t value_bytes,
                                  const DeviceLimits& device) {
  SumProblem problem{layout};
  problem.value_bytes = value_bytes;
  problem.sum_bytes = problem.result_bytes = best_bytes(value_bytes);
  SumCandidate candidate(problem, device);
  const bool narrow = layout.inner < candidate.tuned.privatized.wide_row ||
                      layout.axis_size <= candidate.tuned.best.most_wide_rows;
  const bool pays = narrow && layout.entries < UINT32_MAX && pays_privatized(candidate);
  return pays ? candidate.privatized() : PrivatizedCut{};
}

// Does it pay to sort the entries for the positions of the best values? The alternative is two
// passes of atomics.
inline bool pays_to_sort_for_best(const RowLayout& layout, const DeviceLimits& device) {
  const SortedTuning& t = tuning(device).sorted;
  const BestTuning& best = tuning(device).best;
  const int64_t rows = layout.slabs() * layout.axis_size, entries = layout.slabs() * layout.entries;
  const bool is_crowded = rows <= best.most_crowded_rows && entries >= best.least_crowd;
  return is_crowded ||
         (layout.inner >= t.least_best_row && entries * layout.inner >= t.least_best_values);
}

// The same for the values alone, which one pass finds. A plan has the entries sorted.
inline bool pays_to_sort_for_values(const RowLayout& layout, bool planned,
                                    const DeviceLimits& device) {
  const int64_t per_row = planned ? 1 : tuning(device).sorted.least_best_entries;
  return layout.entries >= per_row * layout.axis_size &&
         (planned || pays_to_sort_for_best(layout, device));
}

// Values of 8 and 16 bits are compared in a table of 32 bits. Are entries so few that only the
// elements that they go to should be in it?
inline bool pays_to_start_few(const RowLayout& layout, const DeviceLimits& device) {
  return tuning(device).best.rows_per_entry * layout.entries <= layout.axis_size;
}

}  // namespace torch_ops
