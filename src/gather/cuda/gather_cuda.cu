// Launches gather's kernels: which one, in what words, on what grid.
#include <type_traits>

#include "common/cuda/launch.cuh"
#include "common/cuda/vectorized.cuh"
#include "common/indexing/index_view.cuh"
#include "gather/cuda/gather_elements.cuh"
#include "gather/cuda/gather_flat.cuh"
#include "gather/cuda/gather_kernels.cuh"
#include "gather/cuda/gather_path.h"
#include "gather/cuda/gather_short.cuh"
#include "gather/cuda/gather_streamed.cuh"
#include "gather/gather_launch.h"

namespace torch_ops {
namespace {

template <class Word>
void launch_rows(const void* source, const RuledIndex& index, void* output, const RowLayout& layout,
                 const IndexErrorSite& errors) {
  // Rows of more than 2^30 words are copied in parts.
  for (int64_t column = 0; column < layout.inner; column += RowGrid::kMaxChunk) {
    const int64_t words = std::min(layout.inner - column, RowGrid::kMaxChunk);
    const RowGrid grid(layout.batch, layout.outer, layout.entries, words);
    const dim3 blocks(grid_x(grid.chunk_words(), kGatherThreads * kGatherUnroll),
                      grid_y(grid.chunks));
    TORCH_OPS_LAUNCH(gather_rows_kernel<Word>, blocks, kGatherThreads, 0,
                     static_cast<const Word*>(source) + column * layout.table_inner_stride, index,
                     static_cast<Word*>(output) + column, layout, grid, layout.inner, errors);
  }
}

template <class Word, class Index>
void launch_flat(const void* source, const Index& index, void* output, const RowLayout& layout,
                 const IndexErrorSite& errors) {
  auto* kernel = layout.outer > 1 ? gather_flat_kernel<true, Word, Index>
                                  : gather_flat_kernel<false, Word, Index>;
  for_each_flat(layout, [&](const FlatRows& flat, int64_t word) {
    const int64_t words = int64_t{flat.rows} * flat.row_words;
    TORCH_OPS_LAUNCH(kernel, grid_x(words, kFlatThreads * kFlatUnroll<Word>), kFlatThreads, 0,
                     static_cast<const Word*>(source) + word, index,
                     static_cast<Word*>(output) + flat.first_row * layout.inner, flat, errors);
  });
}

template <int U, class Word, class Index>
void launch_short(const void* source, const Index& index, void* output, const RowLayout& layout,
                  const IndexErrorSite& errors) {
  for_each_flat(layout, [&](const FlatRows& flat, int64_t word) {
    const ShortWalk walk(flat.rows, flat.row_words, U, current_device_limits().multiprocessors);
    const dim3 blocks(grid_x(flat.rows, kShortThreads), walk.parts);
    TORCH_OPS_LAUNCH((gather_short_kernel<U, Word, Index>), blocks, kShortThreads, 0,
                     static_cast<const Word*>(source) + word, index,
                     static_cast<Word*>(output) + flat.first_row * layout.inner, flat, walk,
                     errors);
  });
}

// Words in flight: as many as registers allow, if a row has so many.
template <class Word, class Index>
void launch_short_rows(const void* source, const Index& index, void* output,
                       const RowLayout& layout, const IndexErrorSite& errors) {
  constexpr int kFew = 8, kMany = 12;
  if constexpr (sizeof(Word) <= 4) {
    if (layout.inner > kFew) {
      return launch_short<kMany, Word>(source, index, output, layout, errors);
    }
  }
  launch_short<kFew, Word>(source, index, output, layout, errors);
}

template <class Word, class Index>
void launch_staged(const void* source, const Index& index, void* output, const RowLayout& layout,
                   const IndexErrorSite& errors) {
  const RowGrid grid(layout.batch, layout.outer, layout.entries, /*words=*/1);
  const Staging staging = cut_staging(layout, sizeof(Word), current_device_limits());
  const int64_t part = ceil_div(layout.entries, staging.parts * 16) * 16;  // whole vectors
  const dim3 blocks(grid_x(layout.entries, part), grid_y(layout.slabs()));
  const auto bytes = static_cast<int>(staging.words * sizeof(Word));
  auto* const kernel = gather_staged_kernel<Word, Index>;
  allow_shared_bytes(kernel, bytes);
  TORCH_OPS_LAUNCH(kernel, blocks, staging.threads, bytes, static_cast<const Word*>(source), index,
                   static_cast<Word*>(output), layout, grid, static_cast<uint32_t>(staging.words),
                   part, errors);
}

template <class Word>
void launch_streamed(const void* source, const IndexView& index, void* output,
                     const RowLayout& layout, const GatherPolicy& policy,
                     const IndexErrorSite& errors) {
  const RowGrid grid(layout.batch, layout.outer, layout.entries, layout.inner);
  const auto* from = static_cast<const Word*>(source);
  auto* to = static_cast<Word*>(output);
  if constexpr (sizeof(Word) >= 4) {
    constexpr int64_t kTile = kStreamedTile / sizeof(Word);
    // One vector more: a chunk may start within one.
    const dim3 blocks(grid_x(grid.chunk_words() + kVectorSize<Word>, kTile), grid_y(grid.chunks));
    TORCH_OPS_LAUNCH(gather_streamed_kernel<Word>, blocks, kStreamedThreads, 0, from, index, to,
                     layout, grid, policy, errors);
  } else {
    const GranuleTiles tiles(layout.inner * sizeof(Word), sizeof(Word));
    const int64_t count = tiles.parts > 1 ? grid.rows_per_chunk * tiles.parts
                                          : ceil_div(grid.rows_per_chunk, tiles.rows);
    const Word* end = from + (layout.batch - 1) * layout.table_batch_stride +
                      (layout.outer - 1) * layout.table_outer_stride +
                      (layout.axis_size - 1) * layout.table_axis_stride + layout.inner;
    const dim3 blocks(grid_x(count, 1), grid_y(grid.chunks));
    TORCH_OPS_LAUNCH(gather_granules_kernel<Word>, blocks, kGranuleThreads, 0, from, end, index, to,
                     layout, grid, tiles, policy, errors);
  }
}

template <class Word>
void launch_elements(const void* source, const RuledIndex& index, void* output,
                     const RowLayout& layout, const IndexErrorSite& errors) {
  // Of few picks no two are in one line of the L1 cache; of many some are.
  constexpr int64_t kFewPicks = int64_t{1} << 20;
  const bool once = layout.slabs() * layout.entries <= kFewPicks;
  auto* kernel = once ? gather_elements_kernel<true, Word> : gather_elements_kernel<false, Word>;
  const dim3 blocks(grid_x(layout.entries, TableWindows::kThreads * TableWindows::kUnroll),
                    grid_y(layout.slabs()));
  TORCH_OPS_LAUNCH(kernel, blocks, TableWindows::kThreads, 0, static_cast<const Word*>(source),
                   index, static_cast<Word*>(output), ElementWindows(layout), errors);
}

// Index is a reader for the index that `any` describes: common kernels have one for each.
template <class Word, class Index>
void launch_path(GatherPath path, const void* source, const Index& index, const RuledIndex& any,
                 void* output, const RowLayout& layout, const IndexErrorSite& errors) {
  switch (path) {
    case GatherPath::kRows:
      return launch_rows<Word>(source, any, output, layout, errors);
    case GatherPath::kStreamed:
      return launch_streamed<Word>(source, any.data, output, layout, any.policy, errors);
    case GatherPath::kElements:
      if constexpr (sizeof(Word) >= 2 && sizeof(Word) <= 8) {
        return launch_elements<Word>(source, any, output, layout, errors);
      }
      break;
    case GatherPath::kFlat:
      return launch_flat<Word>(source, index, output, layout, errors);
    case GatherPath::kShort:
      return launch_short_rows<Word>(source, index, output, layout, errors);
    case GatherPath::kStaged:
      return launch_staged<Word>(source, index, output, layout, errors);
  }
  fail_without_kernel("GatherPath::kElements");
}

// A call, seen in the widest words that move its rows; neither index nor axis nor rows are empty.
class WordCall {
 public:
  explicit WordCall(const GatherCall<RowLayout>& call)
      : call_(call),
        words_(lay_out_words(
            call.layout, call.element_bytes,
            reinterpret_cast<uintptr_t>(call.source) | reinterpret_cast<uintptr_t>(call.output))),
        path_(choose_gather_path(words_.layout, words_.word_bytes, current_device_limits())) {}

  // Index is a reader for the index that `any` describes.
  template <class Index>
  void launch(const Index& index, const RuledIndex& any, const IndexErrorSite& errors) const {
    dispatch_size<uint2, uint4>(words_.word_bytes, [&](auto word) {
      using Word = decltype(word);
      if constexpr (sizeof(Word) < 16) {
        launch_path<Word>(path_, call_.source, index, any, call_.output, words_.layout, errors);
      } else if (path_ == GatherPath::kFlat) {  // or, in words of 16 bytes, by rows
        launch_flat<Word>(call_.source, index, call_.output, words_.layout, errors);
      } else {
        launch_rows<Word>(call_.source, any, call_.output, words_.layout, errors);
      }
    });
  }

 private:
  const GatherCall<RowLayout>& call_;
  WordLayout words_;
  GatherPath path_;
};

}  // namespace

namespace kernels {

void gather(OnCuda on, const GatherCall<RowLayout>& call, const IndexErrorSite& errors) {
  const HostScope scope(on.program);
  const RowLayout& layout = call.layout;
  if (layout.slabs() * layout.entries * layout.inner == 0) return;
  const WordCall words(call);
  const RuledIndex any{{call.index}, call.policy};
  const IndexRule& rule = call.policy.rule;
  const auto launch_typed = [&](auto zero) {
    using Index = decltype(zero);
    const PlainIndex<Index> plain{static_cast<const Index*>(call.index.data)};
    if (rule.mode() == IndexMode::kFromEnd) {
      words.launch(FromEndIndex<Index>{plain, layout.axis_size}, any, errors);
    } else {
      words.launch(plain, any, errors);
    }
  };
  const bool simple = !rule.rewrites() || rule.mode() == IndexMode::kFromEnd;
  if (simple && call.index.entry_bytes == 8) {
    launch_typed(int64_t{});
  } else if (simple && call.index.entry_bytes == 4) {
    launch_typed(int32_t{});
  } else {
    words.launch(any, any, errors);
  }
}

}  // namespace kernels
}  // namespace torch_ops
