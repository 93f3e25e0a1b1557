// Launches gather's kernels: which one, in what words, on what grid.
#include <type_traits>

#include "common/cuda/launch.cuh"
#include "common/cuda/vectorized.cuh"
#include "common/indexing/index_view.cuh"
#include "gather/cuda/along_kernels.cuh"
#include "gather/cuda/gather_elements.cuh"
#include "gather/cuda/gather_flat.cuh"
#include "gather/cuda/gather_granules.cuh"
#include "gather/cuda/gather_path.h"
#include "gather/cuda/gather_short.cuh"
#include "gather/cuda/gather_staged.cuh"
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

template <class Word, class Index>
auto flat_kernel(const RowLayout& layout) {
  if constexpr (std::is_same_v<Index, RuledIndex>) {
    if (!is_flat(layout)) return gather_flat_kernel<FlatPlaces::kAny, Word, Index>;
  }
  return layout.outer > 1 ? gather_flat_kernel<FlatPlaces::kSlabs, Word, Index>
                          : gather_flat_kernel<FlatPlaces::kOneSlab, Word, Index>;
}

template <class Word, class Index>
void launch_flat(const WordCall<Word>& call, const Index& index) {
  auto* const kernel = flat_kernel<Word, Index>(call.layout);
  for_each_flat(call.layout, [&](const FlatRows& flat, int64_t from, int64_t to) {
    const int64_t words = int64_t{flat.rows} * flat.row_words;
    TORCH_OPS_LAUNCH(kernel, grid_x(words, kFlatThreads * kFlatUnroll<Word>), kFlatThreads, 0,
                     call.source + from, index, call.output + to, flat, call.errors);
  });
}

template <int U, class Word, class Index>
auto short_kernel(const RowLayout& layout) {
  if constexpr (std::is_same_v<Index, RuledIndex>) {
    if (!is_flat(layout)) return gather_short_kernel<U, FlatPlaces::kAny, Word, Index>;
  }
  return gather_short_kernel<U, FlatPlaces::kSlabs, Word, Index>;
}

template <int U, class Word, class Index>
void launch_short(const WordCall<Word>& call, const Index& index) {
  auto* const kernel = short_kernel<U, Word, Index>(call.layout);
  for_each_flat(call.layout, [&](const FlatRows& flat, int64_t from, int64_t to) {
    const ShortWalk walk(flat.rows, flat.row_words, U, current_device_limits().multiprocessors);
    const dim3 blocks(grid_x(flat.rows, kShortThreads), walk.parts);
    TORCH_OPS_LAUNCH(kernel, blocks, kShortThreads, 0, call.source + from, index, call.output + to,
                     flat, walk, call.errors);
  });
}

// Words in flight: as many as registers allow, if a row has so many.
template <class Word, class Index>
void launch_short_rows(const WordCall<Word>& call, const Index& index) {
  constexpr int kFew = 8, kMany = 12;
  call.layout.inner > kFew ? launch_short<kMany>(call, index) : launch_short<kFew>(call, index);
}

template <class Word, class Index>
void launch_staged(const WordCall<Word>& call, const Index& index) {
  const RowLayout& layout = call.layout;
  const RowGrid grid(layout.batch, layout.outer, layout.entries, /*words=*/1);
  const Staging staging = cut_staging(layout, sizeof(Word), current_device_limits());
  const int64_t part = ceil_div(layout.entries, staging.parts * 16) * 16;  // whole vectors
  const dim3 blocks(grid_x(layout.entries, part), grid_y(layout.slabs()));
  const auto bytes = static_cast<int>(layout.axis_size * sizeof(Word));
  auto* const kernel = gather_staged_kernel<Word, Index>;
  allow_shared_bytes(kernel, bytes);
  TORCH_OPS_LAUNCH(kernel, blocks, staging.threads, bytes, call.source, index, call.output, layout,
                   grid, part, call.errors);
}

template <class Word>
void launch_granules(const WordCall<Word>& call) {
  const RowLayout& layout = call.layout;
  const RowGrid grid(layout.batch, layout.outer, layout.entries, layout.inner);
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

// `index` reads the same as `call.any`. A path that no call in words of this size takes has no
// kernel for it.
template <class Word, class Index>
void launch_path(GatherPath path, const WordCall<Word>& call, const Index& index) {
  constexpr int64_t kBytes = sizeof(Word);
  switch (path) {
    case GatherPath::kFlat:
      return launch_flat(call, index);
    case GatherPath::kShort:
      if constexpr (kBytes < 8) return launch_short_rows(call, index);
      break;
    case GatherPath::kGranules:
      if constexpr (kBytes < 4) return launch_granules(call);
      break;
    case GatherPath::kElements:
      if constexpr (kBytes >= 2 && kBytes <= 8) return launch_elements(call);
      break;
    case GatherPath::kStaged:
      if constexpr (kBytes <= 8) return launch_staged(call, index);
      break;
  }
  fail_without_kernel("GatherPath");
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
  // The readers of one type are for indices without gaps, and for tables that is_flat() takes.
  const bool simple =
      (!rule.rewrites() || rule.mode() == IndexMode::kFromEnd) && is_flat(words.layout);
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
