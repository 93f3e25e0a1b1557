// The entries of an index on the CPU in one of two types, not four: kernels for which a copy of
// narrow entries costs little have half as many instances. No torch.
#pragma once

#include <cstdint>

#include "common/cuda/scratch.h"
#include "common/host/parallel.h"
#include "common/indexing/index_array.h"
#include "common/layout/row_layout.h"

namespace torch_ops {

class WideIndex {
 public:
  // The strides of `layout` become those of the copy, if there is one.
  WideIndex(const IndexArray& index, RowLayout& layout) : index_(index) {
    if (index.entry_bytes >= 4) return;
    const int64_t count = layout.batch * layout.entries;
    copy_ = Scratch<int32_t>(count);
    dispatch_index(index, [&](const auto* narrow) {
      parallel_for(count, kElementsPerTask, [&](int64_t begin, int64_t end) {
        int64_t batch = begin / layout.entries, n = begin % layout.entries;
        for (int64_t place = begin; place < end; ++batch, n = 0) {
          const auto* const own = narrow + batch * layout.index_batch_stride;
          for (; n < layout.entries && place < end; ++n) {
            copy_.get()[place++] = own[n * layout.index_entry_stride];
          }
        }
      });
    });
    layout.index_batch_stride = layout.entries;
    layout.index_entry_stride = 1;
    index_ = {copy_.get(), sizeof(int32_t)};
  }

  // Calls use(entries) with a pointer to int32_t or int64_t.
  template <class Use>
  auto dispatch(Use&& use) const {
    return index_.entry_bytes == 8 ? use(static_cast<const int64_t*>(index_.data))
                                   : use(static_cast<const int32_t*>(index_.data));
  }

 private:
  IndexArray index_;
  Scratch<int32_t> copy_;
};

}  // namespace torch_ops
