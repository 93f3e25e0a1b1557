// Sums, means and largest values of the rows that bags of entries name, in the kernel library:
// bag_cpu.cpp and bag_cuda.cu. Nothing is checked but the values of the entries. No torch.
#pragma once

#include <cstdint>

#include "common/host/host_device.h"
#include "common/host/host_program.h"
#include "common/indexing/index_array.h"
#include "common/indexing/index_error.h"

namespace torch_ops {

template <class Value>
struct BagCall {
  const Value* weight;       // [rows, width], contiguous
  IndexArray entries;        // [count], contiguous
  const int64_t* offsets;    // where bags begin, the first at 0; null: all are of `length` entries
  const Value* factors;      // [count], of the rows, or null
  Value* result;             // [bags, width]
  int64_t* rows_of_largest;  // likewise, on CUDA; `rows`: of no entry. Null: sums or means
  int64_t rows;
  int64_t width;
  int64_t count;
  int64_t bags;
  int64_t offset_count;  // bags, or one more: where the last bag ends
  int64_t length;
  int64_t padding;  // an entry that counts for no bag; -1: none
  bool mean;

  TORCH_OPS_HOST_DEVICE int64_t begin(int64_t bag) const {
    if (offsets == nullptr) return bag * length;
    if (bag == 0 || bag >= offset_count) return bag == 0 ? 0 : count;
    const int64_t at = offsets[bag];
    return at < 0 ? 0 : at < count ? at : count;
  }
};

namespace kernels {

// Returns the position of the first entry that is no row, or kNoBadEntry; where there is one, the
// result is nonsense.
template <class Value>
TORCH_OPS_KERNELS_API int64_t reduce_bags(OnCpu on, const BagCall<Value>& call);

// An entry that is no row counts for no bag, and is recorded. So is an offset that is no position,
// and counts as the nearest one.
template <class Value>
TORCH_OPS_KERNELS_API void reduce_bags(OnCuda on, const BagCall<Value>& call,
                                       const IndexErrorSite& errors,
                                       const IndexErrorSite& offset_errors);

}  // namespace kernels
}  // namespace torch_ops
