// The offsets of segments on CUDA: which entries a segment has, and which segment an entry. No
// torch.
#pragma once

#include <cstdint>

#include "common/indexing/index_error.cuh"
#include "common/indexing/index_view.cuh"
#include "common/layout/row_layout.h"
#include "scatter/sum/run_shape.h"

namespace torch_ops::segments {

// Numbers of rows and entries. Of 64 bits only: half as many kernels, and few divisions.
using Id = uint64_t;

// The offsets of all batches one after the other, as places in [batch, entries]: they do not
// decrease, and the last of each batch begins a segment that is none.
struct Offsets {
  IndexView data;
  int64_t batch_stride;
  int64_t entry_stride;
  int64_t entries;  // a batch
  Id batch;
  Id outer;
  Id segments;  // a batch

  __device__ int64_t count() const { return static_cast<int64_t>(batch) * (segments + 1); }

  // Splits a number into a batch and what it is there.
  __device__ __forceinline__ Id batch_of(int64_t number, Id each) const {
    return batch == 1 ? 0 : static_cast<Id>(number) / each;
  }

  __device__ __forceinline__ Id slab_of(Id row) const {
    return batch * outer == 1 ? 0 : row / segments;
  }
  __device__ __forceinline__ Id batch_of_slab(Id slab) const {
    return outer == 1 ? slab : slab / outer;
  }

  __device__ __forceinline__ int64_t given(Id b, int64_t s) const {
    return data[b * batch_stride + s * entry_stride];
  }

  __device__ __forceinline__ int64_t operator[](int64_t place) const {
    const Id b = batch_of(place, segments + 1);
    return b * entries + given(b, place - static_cast<int64_t>(b) * (segments + 1));
  }

  // The last place in [low, high) whose offset is `entry` or less. Low has such an offset, or is
  // before all, and high has none. All threads of a block look for one.
  __device__ int64_t search_block(int64_t entry, int64_t low, int64_t high) const {
    while (high - low > 1) {
      const int64_t step = (high - low + kRunThreads - 1) / kRunThreads;
      const int64_t probe = low + (static_cast<int64_t>(threadIdx.x) + 1) * step;
      const int below = __syncthreads_count(probe < high && (*this)[probe] <= entry);
      low += below * step;
      high = min(high, low + step);
    }
    return low;
  }

  // The same of one thread.
  __device__ __forceinline__ int64_t search(int64_t entry, int64_t low, int64_t high) const {
    while (high - low > 1) {
      const int64_t middle = (low + high) / 2;
      ((*this)[middle] <= entry ? low : high) = middle;
    }
    return low;
  }

  // Calls put(i, b, s) for the entries [begin, begin + count) that there are: the batch, and the
  // segment there, which is one of `segments` if it is a segment at all. For all threads of a
  // block, each of which gets some.
  template <class Put>
  __device__ __forceinline__ void find(int64_t begin, int count, Put put) const {
    const int64_t all = static_cast<int64_t>(batch) * entries;
    const int64_t end = min(begin + count, all);
    const int64_t low = search_block(begin, -1, this->count());
    // The first place from which on no offset is below the end, or one after it.
    int64_t high = low + 1;
    const int64_t probe = high + threadIdx.x;
    const int below = __syncthreads_count(probe < this->count() && (*this)[probe] < end);
    high += below;
    for (int64_t step = kRunThreads; below == kRunThreads && high < this->count(); step *= 8) {
      if ((*this)[high] >= end) break;
      high = min(high + step, this->count());
    }
    for (int64_t entry = max(begin, int64_t{0}) + threadIdx.x; entry < end; entry += blockDim.x) {
      const int64_t place = search(entry, low, high);
      const Id b = batch_of(max(place, int64_t{0}), segments + 1);
      const int64_t s = place - static_cast<int64_t>(b) * (segments + 1);
      put(static_cast<int>(entry - begin), b, s < 0 ? static_cast<int64_t>(segments) : s);
    }
  }
};

inline Offsets all_offsets(const IndexArray& offsets, const RowLayout& layout) {
  return {IndexView{offsets},
          layout.index_batch_stride,
          layout.index_entry_stride,
          layout.entries,
          static_cast<Id>(layout.batch),
          static_cast<Id>(layout.outer),
          static_cast<Id>(layout.axis_size)};
}

// Where a row of the result has its values.
struct Segment {
  int64_t slab;   // of batch and outer
  int64_t begin;  // entry, as the offsets have it
  int64_t end;    // likewise
  int64_t count;  // entries; none where an offset is out of range
};

__device__ __forceinline__ Segment segment_of(const Offsets& offsets, Id row) {
  const Id slab = offsets.slab_of(row), s = row - slab * offsets.segments;
  const Id b = offsets.batch_of_slab(slab);
  const int64_t begin = offsets.given(b, s), end = offsets.given(b, static_cast<int64_t>(s) + 1);
  const bool is_whole =
      in_range(begin, offsets.entries + 1) && in_range(end, offsets.entries + 1) && end > begin;
  return {static_cast<int64_t>(slab), begin, end, is_whole ? end - begin : 0};
}

// Records an offset that is out of range: the one of segment s of batch b.
__device__ __forceinline__ void check_offset(const Offsets& offsets, Id b, int64_t s,
                                             int64_t offset, const IndexErrorSite& errors) {
  if (!in_range(offset, offsets.entries + 1)) {
    record_bad_entry(errors, static_cast<int64_t>(b) * (offsets.segments + 1) + s, offset);
  }
}

// Records the offsets that are out of range; each block looks at some.
__device__ __forceinline__ void check_offsets(const Offsets& offsets,
                                              const IndexErrorSite& errors) {
  const int64_t step = int64_t{gridDim.x} * kRunThreads;
  for (int64_t n = int64_t{blockIdx.x} * kRunThreads + threadIdx.x; n < offsets.count();
       n += step) {
    const Id b = offsets.batch_of(n, offsets.segments + 1);
    const int64_t s = n - static_cast<int64_t>(b) * (offsets.segments + 1);
    check_offset(offsets, b, s, offsets.given(b, s), errors);
  }
}

}  // namespace torch_ops::segments
