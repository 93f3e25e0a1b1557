// Launches gather's kernels: which one, in what words, on what grid.
#include <type_traits>

#include "common/cuda/launch.cuh"
#include "common/cuda/vectorized.cuh"
#include "common/indexing/index_view.cuh"
#include "gather/cuda/along_kernels.cuh"
#include "gather/cuda/gather_elements.cuh"
#include "gather/cuda/gather_flat.cuh"
#include "gather/cuda/gather_kernels.cuh"
#include "gather/cuda/gather_path.h"
#include "gather/cuda/gather_short.cuh"
#include "gather/cuda/gather_streamed.cuh"
#include "gather/gather_launch.h"

namespace torch_ops {
namespace {

// A call in words that move its rows; neither index nor axis nor rows are empty.
template <class Word>
struct WordCall {
  const Word* source;
  Word* output;
  const RowLayout& layout;
  const RuledIndex& any;  // reads the index; common kernels have a reader for each kind of index
  const IndexErrorSite& errors;
};

template <class Word>
void launch_rows(const WordCall<Word>& call) {
  const RowLayout& layout = call.layout;
  // Rows of more than 2^30 words are copied in parts.
  for (int64_t column = 0; column < layout.inner; column += RowGrid::kMaxChunk) {
    const int64_t words = std::min(layout.inner - column, RowGrid::kMaxChunk);
    const RowGrid grid(layout.batch, layout.outer, layout.entries, words);
    const dim3 blocks(grid_x(grid.chunk_words(), kGatherThreads * kGatherUnroll),
                      grid_y(grid.chunks));
    TORCH_OPS_LAUNCH(gather_rows_kernel<Word>, blocks, kGatherThreads, 0,
                     call.source + column * layout.table_inner_stride, call.any,
                     call.output + column, layout, grid, layout.inner, call.errors);
  }
}

template <class Word, class Index>
void launch_flat(const WordCall<Word>& call, const Index& index) {
  auto* kernel = call.layout.outer > 1 ? gather_flat_kernel<true, Word, Index>
                                       : gather_flat_kernel<false, Word, Index>;
  for_each_flat(call.layout, [&](const FlatRows& flat, int64_t word) {
    const int64_t words = int64_t{flat.rows} * flat.row_words;
    TORCH_OPS_LAUNCH(kernel, grid_x(words, kFlatThreads * kFlatUnroll<Word>), kFlatThreads, 0,
                     call.source + word, index, call.output + flat.first_row * call.layout.inner,
                     flat, call.errors);
  });
}

template <int U, class Word, class Index>
void launch_short(const WordCall<Word>& call, const Index& index) {
  for_each_flat(call.layout, [&](const FlatRows& flat, int64_t word) {
    const ShortWalk walk(flat.rows, flat.row_words, U, current_device_limits().multiprocessors);
    const dim3 blocks(grid_x(flat.rows, kShortThreads), walk.parts);
    TORCH_OPS_LAUNCH((gather_short_kernel<U, Word, Index>), blocks, kShortThreads, 0,
                     call.source + word, index, call.output + flat.first_row * call.layout.inner,
                     flat, walk, call.errors);
  });
}

// Words in flight: as many as registers allow, if a row has so many.
template <class Word, class Index>
void launch_short_rows(const WordCall<Word>& call, const Index& index) {
  constexpr int kFew = 8, kMany = 12;
  if constexpr (sizeof(Word) <= 4) {
    if (call.layout.inner > kFew) return launch_short<kMany>(call, index);
  }
  launch_short<kFew>(call, index);
}

template <class Word, class Index>
void launch_staged(const WordCall<Word>& call, const Index& index) {
  const RowLayout& layout = call.layout;
  const RowGrid grid(layout.batch, layout.outer, layout.entries, /*words=*/1);
  const Staging staging = cut_staging(layout, sizeof(Word), current_device_limits());
  const int64_t part = ceil_div(layout.entries, staging.parts * 16) * 16;  // whole vectors
  const dim3 blocks(grid_x(layout.entries, part), grid_y(layout.slabs()));
  const auto bytes = static_cast<int>(staging.words * sizeof(Word));
  auto* const kernel = gather_staged_kernel<Word, Index>;
  allow_shared_bytes(kernel, bytes);
  TORCH_OPS_LAUNCH(kernel, blocks, staging.threads, bytes, call.source, index, call.output, layout,
                   grid, static_cast<uint32_t>(staging.words), part, call.errors);
}

template <class Word>
void launch_streamed(const WordCall<Word>& call) {
  const RowLayout& layout = call.layout;
  const RowGrid grid(layout.batch, layout.outer, layout.entries, layout.inner);
  if constexpr (sizeof(Word) >= 4) {
    constexpr int64_t kTile = kStreamedTile / sizeof(Word);
    // One vector more: a chunk may start within one.
    const dim3 blocks(grid_x(grid.chunk_words() + kVectorSize<Word>, kTile), grid_y(grid.chunks));
    TORCH_OPS_LAUNCH(gather_streamed_kernel<Word>, blocks, kStreamedThreads, 0, call.source,
                     call.any.data, call.output, layout, grid, call.any.policy, call.errors);
  } else {
    const GranuleTiles tiles(layout.inner * sizeof(Word), sizeof(Word));
    const int64_t count = tiles.parts > 1 ? grid.rows_per_chunk * tiles.parts
                                          : ceil_div(grid.rows_per_chunk, tiles.rows);
    const Word* end = call.source + (layout.batch - 1) * layout.table_batch_stride +
                      (layout.outer - 1) * layout.table_outer_stride +
                      (layout.axis_size - 1) * layout.table_axis_stride + layout.inner;
    const dim3 blocks(grid_x(count, 1), grid_y(grid.chunks));
    TORCH_OPS_LAUNCH(gather_granules_kernel<Word>, blocks, kGranuleThreads, 0, call.source, end,
                     call.any.data, call.output, layout, grid, tiles, call.any.policy, call.errors);
  }
}

template <class Word>
void launch_elements(const WordCall<Word>& call) {
  const RowLayout& layout = call.layout;
  // Of few picks no two are in one line of the L1 cache; of many some are.
  constexpr int64_t kFewPicks = int64_t{1} << 20;
  const bool once = layout.slabs() * layout.entries <= kFewPicks;
  auto* kernel = once ? gather_elements_kernel<true, Word> : gather_elements_kernel<false, Word>;
  const dim3 blocks(grid_x(layout.entries, TableWindows::kThreads * TableWindows::kUnroll),
                    grid_y(layout.slabs()));
  TORCH_OPS_LAUNCH(kernel, blocks, TableWindows::kThreads, 0, call.source, call.any, call.output,
                   ElementWindows(layout), call.errors);
}

// `index` reads the same as `call.any`.
template <class Word, class Index>
void launch_path(GatherPath path, const WordCall<Word>& call, const Index& index) {
  if constexpr (sizeof(Word) == 16) {
    return path == GatherPath::kFlat ? launch_flat(call, index) : launch_rows(call);
  } else {
    switch (path) {
      case GatherPath::kFlat:
        return launch_flat(call, index);
      case GatherPath::kRows:
        return launch_rows(call);
      case GatherPath::kShort:
        return launch_short_rows(call, index);
      case GatherPath::kStreamed:
        return launch_streamed(call);
      case GatherPath::kElements:
        if constexpr (sizeof(Word) >= 2 && sizeof(Word) <= 8) return launch_elements(call);
        fail_without_kernel("GatherPath::kElements");
      case GatherPath::kStaged:
        return launch_staged(call, index);
    }
  }
}

template <class Word>
void launch_along(const GatherCall<ElementLayout>& call, const IndexErrorSite& errors) {
  const IndexView index{call.index};
  for_each_part(call.layout, ElementGrid::kMaxPart, [&](const ElementLayout& part, auto offsets) {
    TORCH_OPS_LAUNCH(gather_along_kernel<Word>, grid_x(part.count, kThreads * kAlongUnroll),
                     kThreads, 0, static_cast<const Word*>(call.source) + offsets.table,
                     index.from(offsets.index), static_cast<Word*>(call.output) + offsets.values,
                     offsets.position, ElementGrid(part), call.policy, errors);
  });
}

}  // namespace

namespace kernels {

void gather(OnCuda on, const GatherCall<RowLayout>& call, const IndexErrorSite& errors) {
  const HostScope scope(on.program);
  if (call.layout.slabs() * call.layout.entries * call.layout.inner == 0) return;
  const WordLayout words = lay_out_words(
      call.layout, call.element_bytes,
      reinterpret_cast<uintptr_t>(call.source) | reinterpret_cast<uintptr_t>(call.output));
  const GatherPath path =
      choose_gather_path(words.layout, words.word_bytes, current_device_limits());
  const RuledIndex any{{call.index}, call.policy};
  const auto launch = [&](const auto& index) {
    dispatch_size<uint2, uint4>(words.word_bytes, [&](auto word) {
      using Word = decltype(word);
      const WordCall<Word> in_words{static_cast<const Word*>(call.source),
                                    static_cast<Word*>(call.output), words.layout, any, errors};
      launch_path(path, in_words, index);
    });
  };
  const IndexRule& rule = call.policy.rule;
  const auto launch_typed = [&](auto zero) {
    using Index = decltype(zero);
    const PlainIndex<Index> plain{static_cast<const Index*>(call.index.data)};
    if (rule.mode() == IndexMode::kFromEnd) {
      launch(FromEndIndex<Index>{plain, call.layout.axis_size});
    } else {
      launch(plain);
    }
  };
  const bool simple = !rule.rewrites() || rule.mode() == IndexMode::kFromEnd;
  if (simple && call.index.entry_bytes == 8) {
    launch_typed(int64_t{});
  } else if (simple && call.index.entry_bytes == 4) {
    launch_typed(int32_t{});
  } else {
    launch(any);
  }
}

void gather(OnCuda on, const GatherCall<ElementLayout>& call, const IndexErrorSite& errors) {
  const HostScope scope(on.program);
  if (call.layout.count == 0) return;
  dispatch_size<uint2, uint4>(call.element_bytes,
                              [&](auto word) { launch_along<decltype(word)>(call, errors); });
}

}  // namespace kernels
}  // namespace torch_ops
