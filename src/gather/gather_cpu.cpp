#include <ATen/Dispatch.h>

#include "common/indexing.h"
#include "common/parallel.h"
#include "gather/gather.h"
#include "gather/gather_kernels.h"

namespace torch_ops {
namespace {

struct Bytes16 {
  uint64_t halves[2];
};

// Calls `copy` with a value of a type of `bytes`: what an element is does not matter to a copy.
template <class Copy>
int64_t dispatch_size(int64_t bytes, Copy&& copy) {
  switch (bytes) {
    case 1:
      return copy(uint8_t());
    case 2:
      return copy(uint16_t());
    case 4:
      return copy(uint32_t());
    case 8:
      return copy(uint64_t());
    case 16:
      return copy(Bytes16());
  }
  TORCH_INTERNAL_ASSERT(false, "no element has ", bytes, " bytes");
}

}  // namespace

void gather_cpu(const char* op, const at::Tensor& source, const at::Tensor& index,
                const RowLayout& layout, const at::Tensor& output) {
  if (index.numel() == 0) return;
  int64_t bad = kNoBadEntry;
  TORCH_OPS_DISPATCH_INDEX(index, "gather", [&] {
    const index_t* entries = index.const_data_ptr<index_t>();
    if (output.numel() == 0) {  // nothing to copy; the index must be right all the same
      bad = first_bad_entry(entries, layout, 0, layout.batch * layout.entries);
      return;
    }
    bad = dispatch_size(source.element_size(), [&](auto word) {
      using Word = decltype(word);
      const auto* from = static_cast<const Word*>(source.const_data_ptr());
      auto* to = static_cast<Word*>(output.mutable_data_ptr());
      return parallel_min(layout.slabs() * layout.entries, kElementsPerTask / layout.inner,
                          [&](int64_t begin, int64_t end) {
                            return gather_rows(from, entries, to, layout, begin, end);
                          });
    });
  });
  if (bad != kNoBadEntry) indexing::raise_out_of_range(op, index, bad, layout.axis_size);
}

}  // namespace torch_ops
