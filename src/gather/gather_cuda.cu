#include <ATen/Dispatch.h>

#include "common/indexing.h"
#include "common/launch.cuh"
#include "common/vectorized.cuh"
#include "gather/gather.h"
#include "gather/gather_kernels.cuh"

namespace torch_ops {
namespace {

// The widest word in which rows can be copied: it must divide the row, every stride and both
// pointers. Rows whose elements are not adjacent move element by element.
int64_t word_bytes(const RowLayout& layout, int64_t element, const void* source,
                   const void* output) {
  if (layout.inner > 1 && layout.table_inner_stride != 1) return element;
  int64_t bytes = kVectorBytes;
  const auto divides_all = [&] {
    return layout.inner * element % bytes == 0 && layout.table_batch_stride * element % bytes == 0 &&
           layout.table_outer_stride * element % bytes == 0 &&
           layout.table_axis_stride * element % bytes == 0 && is_aligned(source, bytes) &&
           is_aligned(output, bytes);
  };
  while (!divides_all()) bytes /= 2;
  return bytes;
}

template <class Word, class Index>
void launch(const void* source, const Index* index, void* output, const RowLayout& layout) {
  // Rows of more than 2^30 words are copied in parts.
  for (int64_t column = 0; column < layout.inner; column += RowGrid::kMaxChunk) {
    const int64_t words = std::min(layout.inner - column, RowGrid::kMaxChunk);
    const RowGrid grid(layout.batch, layout.outer, layout.entries, words);
    const dim3 blocks(grid_x(grid.chunk_words(), kThreads * kGatherUnroll),
                      static_cast<unsigned>(std::min(grid.chunks, kMaxGridYZ)));
    TORCH_OPS_LAUNCH(gather_kernel, blocks, kThreads,
                     static_cast<const Word*>(source) + column * layout.table_inner_stride, index,
                     static_cast<Word*>(output) + column, layout, grid, layout.inner);
  }
}

}  // namespace

void gather_cuda(const char* /*op*/, const at::Tensor& source, const at::Tensor& index,
                 const RowLayout& layout, const at::Tensor& output) {
  if (output.numel() == 0) return;
  const c10::cuda::CUDAGuard guard(output.device());
  const int64_t element = source.element_size();
  const void* from = source.const_data_ptr();
  void* to = output.mutable_data_ptr();
  const int64_t bytes = word_bytes(layout, element, from, to);

  RowLayout in_words = layout;
  const auto rescale = [&](int64_t& stride) { stride = stride * element / bytes; };
  if (bytes != element) {
    rescale(in_words.inner);
    rescale(in_words.table_batch_stride);
    rescale(in_words.table_outer_stride);
    rescale(in_words.table_axis_stride);
    in_words.table_inner_stride = 1;
  }
  TORCH_OPS_DISPATCH_INDEX(index, "gather", [&] {
    const index_t* entries = index.const_data_ptr<index_t>();
    switch (bytes) {
      case 1: return launch<uint8_t>(from, entries, to, in_words);
      case 2: return launch<uint16_t>(from, entries, to, in_words);
      case 4: return launch<uint32_t>(from, entries, to, in_words);
      case 8: return launch<uint2>(from, entries, to, in_words);
      case 16: return launch<uint4>(from, entries, to, in_words);
    }
  });
}

}  // namespace torch_ops
