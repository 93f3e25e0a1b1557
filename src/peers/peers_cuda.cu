#include <algorithm>

#include "common/cuda/launch.cuh"
#include "peers/peers_kernels.cuh"
#include "peers/peers_launch.h"

namespace torch_ops::kernels {
namespace {

// Calls use(word) with the widest word that divides a row; `addresses` are those of arrays whose
// alignment is not known, by `or`.
template <class Use>
void with_word(int64_t row_bytes, uintptr_t addresses, Use&& use) {
  const uintptr_t bits = static_cast<uintptr_t>(row_bytes) | addresses;
  if (bits % 16 == 0) return use(uint4());
  if (bits % 8 == 0) return use(uint2());
  if (bits % 4 == 0) return use(uint32_t());
  if (bits % 2 == 0) return use(uint16_t());
  return use(uint8_t());
}

template <class Word>
void launch_gather(const PeerGather& call, const IndexErrorSite& errors) {
  const RowLayout& layout = call.layout;
  const RuledIndex index{{call.index}, call.policy};
  const bool is_long = layout.axis_size > INT32_MAX;
  auto* kernel = is_long ? gather_peers_kernel<true, Word> : gather_peers_kernel<false, Word>;
  PeerWords of{};
  of.parts = call.parts;
  of.length = call.length;
  of.axis_size = layout.axis_size;
  if (!is_long) of.by_length = FastDivisor(static_cast<uint32_t>(call.length));
  of.row_words = call.row_bytes / static_cast<int64_t>(sizeof(Word));
  of.index_stride = layout.index_entry_stride;
  for (of.first_word = 0; of.first_word < of.row_words; of.first_word += of.words) {
    of.words = static_cast<uint32_t>(std::min(of.row_words - of.first_word, kMostPeerWords));
    of.by_words = FastDivisor(of.words);
    const int64_t rows = kMostPeerWords / of.words;
    for (of.first_row = 0; of.first_row < layout.entries; of.first_row += rows) {
      of.all_words =
          static_cast<uint32_t>(std::min(rows, layout.entries - of.first_row)) * of.words;
      TORCH_OPS_LAUNCH(kernel, grid_x(of.all_words, kPeerThreads * kPeerUnroll), kPeerThreads, 0,
                       of, index, static_cast<Word*>(call.output), errors);
    }
  }
}

}  // namespace

void gather_peers(OnCuda on, const PeerGather& call, const IndexErrorSite& errors) {
  const HostScope scope(on.program);
  if (call.layout.entries * call.row_bytes == 0) return;
  // Parts begin at multiples of 16 bytes.
  with_word(call.row_bytes, reinterpret_cast<uintptr_t>(call.output),
            [&](auto word) { launch_gather<decltype(word)>(call, errors); });
}

void put_to_peers(OnCuda on, const PeerPut& call, const IndexErrorSite& errors) {
  const HostScope scope(on.program);
  with_word(call.row_bytes, reinterpret_cast<uintptr_t>(call.values), [&](auto word) {
    using Word = decltype(word);
    int lanes = 1;
    while (lanes < 32 && lanes * static_cast<int64_t>(sizeof(Word)) < call.row_bytes) lanes *= 2;
    // One block at least writes the headers.
    const unsigned blocks = grid_x(std::max<int64_t>(call.count, 1), kPeerThreads / lanes);
    TORCH_OPS_LAUNCH(put_to_peers_kernel<Word>, blocks, kPeerThreads, 0, call, lanes, errors.slot,
                     errors.raised);
  });
}

void meet_peers(OnCuda on, const PeerPads& pads, int64_t* meeting, bool failed,
                int64_t milliseconds, int64_t* outcome) {
  const HostScope scope(on.program);
  constexpr int64_t kNanoseconds = 1'000'000;  // of a millisecond
  const auto threads =
      static_cast<unsigned>(std::min<int64_t>(ceil_div(pads.ranks, 32) * 32, 1024));
  TORCH_OPS_LAUNCH(meet_peers_kernel, 1, threads, 0, pads, meeting, failed,
                   milliseconds * kNanoseconds, outcome);
}

}  // namespace torch_ops::kernels
