// Which way a call of scatter_add takes on the GPU: decided from sizes, the values' dtype and the
// GPU's limits alone. No torch.
#pragma once

#include <cstdint>

#include "common/cuda/device_limits.h"
#include "common/indexing/row_layout.h"
#include "scatter/sum/atomic_cut.h"
#include "scatter/sum/fixed_cut.h"
#include "scatter/sum/small_cut.h"

namespace torch_ops {

// Four have the same bits on every run, of which the first two are for few entries a slab, and the
// third takes the entries of short rows in any order; two add in no given order.
enum class ScatterWay {
  kSmall,
  kSparse,
  kBinned,
  kSorted,
  kFew,
  kAtomic,  // choose_atomic_path() says which kernel
};

struct ScatterProblem {
  RowLayout layout;
  int64_t value_bytes;
  int64_t sum_bytes;  // of what values are summed in by atomics
  bool floats;
  bool repeatable;         // the bits of floats must be the same on every run
  bool unrounded = false;  // 16-bit floats' sums stay floats: only kSorted and kAtomic can do that
};

struct ScatterChoice {
  ScatterWay way;
  SmallCut cut;  // of kSmall and kSparse
};

// kSmall and kSparse pay beside a plan too: then the plan is left alone, and the bits are those of
// a call without it.
inline ScatterChoice choose_scatter_way(const ScatterProblem& problem, const DeviceLimits& device) {
  const RowLayout& layout = problem.layout;
  const int64_t value_bytes = problem.value_bytes;
  const SmallCut cut = cut_small(layout, value_bytes, problem.sum_bytes, device);
  const SmallCut sparse = cut_sparse(layout, value_bytes, problem.sum_bytes, device);
  const auto choose = [&] {
    if (!problem.floats) {
      return is_small_fastest(value_bytes, cut) ? ScatterWay::kSmall : ScatterWay::kAtomic;
    }
    const Binning binning = choose_binning(layout, value_bytes, device.shared_bytes);
    if (problem.repeatable) {
      if (binning.pays) return ScatterWay::kBinned;
      return pays_to_sum_small(layout, cut) ? ScatterWay::kSmall : ScatterWay::kSorted;
    }
    if (is_binning_fastest(layout, value_bytes, binning)) return ScatterWay::kBinned;
    const bool sparse_pays = is_sparse_fastest(layout, value_bytes, sparse);
    if (sparse_pays && is_sparse_faster(layout)) return ScatterWay::kSparse;
    if (is_small_fastest(value_bytes, cut)) return ScatterWay::kSmall;
    if (sparse_pays) return ScatterWay::kSparse;
    if (has_few_entries(layout, value_bytes)) return ScatterWay::kFew;
    if (pays_to_sort(layout, value_bytes) || exceeds_scratch(layout, value_bytes)) {
      return ScatterWay::kSorted;
    }
    if (has_few_rows(layout)) return binning.pays ? ScatterWay::kBinned : ScatterWay::kSorted;
    return ScatterWay::kAtomic;
  };
  ScatterWay way = choose();
  if (problem.unrounded && way != ScatterWay::kSorted) {
    way = problem.repeatable || has_few_rows(layout) ? ScatterWay::kSorted : ScatterWay::kAtomic;
  }
  return {way, way == ScatterWay::kSparse ? sparse : cut};
}

}  // namespace torch_ops
