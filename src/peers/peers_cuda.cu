#include <thrust/iterator/counting_iterator.h>
#include <thrust/iterator/transform_iterator.h>
#include <algorithm>
#include <chrono>
#include <cub/device/device_scan.cuh>
#include <optional>

#include "common/cuda/launch.cuh"
#include "common/cuda/scratch.h"
#include "peers/peers_kernels.cuh"
#include "peers/peers_launch.h"
#include "scatter/cuda/sorted/sorted_launch.cuh"

namespace torch_ops::kernels {
namespace {

// Calls use(word) with the widest word that divides a row; `addresses` are those of arrays whose
// alignment is not known, by `or`.
template <class Use>
void with_word(int64_t row_bytes, uintptr_t addresses, Use&& use) {
  dispatch_size<uint2, uint4>(widest_word(static_cast<uint64_t>(row_bytes) | addresses), use);
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

void put_to_peers(OnCuda on, const PeerSums& call, const IndexErrorSite& errors) {
  const HostScope scope(on.program);
  // Half a row too, as narrow ones are.
  const uintptr_t addresses = reinterpret_cast<uintptr_t>(call.values) | call.row_bytes / 2;
  with_word(call.row_bytes, addresses, [&](auto word) {
    using Word = decltype(word);
    int lanes = 1;
    while (lanes < 32 && lanes * static_cast<int64_t>(sizeof(Word)) < call.row_bytes) lanes *= 2;
    // One block at least writes the headers.
    const int64_t rows = call.first > 0 ? call.count : 0;
    const unsigned blocks = grid_x(std::max<int64_t>(rows, 1), kPeerThreads / lanes);
    TORCH_OPS_LAUNCH(put_to_peers_kernel<Word>, blocks, kPeerThreads, 0, call, lanes, errors.slot,
                     errors.raised);
  });
}

template <class Value>
void sum_to_peers(OnCuda on, const ReduceCall<Value, SumOf<Value>>& call, bool narrow,
                  const PeerSums& to) {
  const HostScope scope(on.program);
  using Sum = SumOf<Value>;
  const int64_t count = call.layout.entries, inner = call.layout.inner;
  with_shape(call.layout, [&](const auto& shape) {
    using Id = decltype(shape.no_row);
    std::optional<SortedEntries<Id>> entries;
    const DeviceScratch memory(count * static_cast<int64_t>(sizeof(Id)));
    auto* const numbers = static_cast<Id*>(memory.get());
    if (count > 0) {
      entries = sort_entries(call.index, call.layout, call.rule, shape, IndexErrorSite{});
      const auto begins = thrust::make_transform_iterator(thrust::counting_iterator<int64_t>(0),
                                                          RowBegins<Id>{entries->keys});
      const auto number = [&](void* scratch, size_t& bytes) {
        TORCH_OPS_CUDA_CALL(cub::DeviceScan::InclusiveSum(scratch, bytes, begins, numbers, count,
                                                          current_stream()));
      };
      size_t bytes = 0;
      number(nullptr, bytes);
      const DeviceScratch scratch(static_cast<int64_t>(bytes));
      number(scratch.get(), bytes);
    }
    const Id* const keys = entries ? entries->keys : nullptr;
    TORCH_OPS_LAUNCH(list_rows_kernel<Id>, grid_x(count + 1, kPeerThreads), kPeerThreads, 0, keys,
                     numbers, count, call.layout.axis_size, narrow && !std::is_same_v<Value, Sum>,
                     to.length, to.ranks, to.rows, to.bounds);
    if (count == 0) return;
    const DeviceScratch address_memory(count * static_cast<int64_t>(sizeof(uintptr_t)));
    auto* const addresses = static_cast<uintptr_t*>(address_memory.get());
    TORCH_OPS_LAUNCH(address_rows_kernel, grid_x(count, kPeerThreads), kPeerThreads, 0, to,
                     addresses);
    if (inner == 0) return;
    const sorted::Shape<Id> rows(RowLayout::contiguous(1, 1, count, count, inner));
    with_columns<kVectorSize<Sum>>(call.values, inner, [&](auto columns) {
      total_runs<Sums<columns(), Sum>, sorted::RowsByAddress<Sum, Value>>(
          call.values, addresses, rows, numbers, entries->positions, {}, nullptr);
    });
  });
}
#define INSTANTIATE(T) \
  template void sum_to_peers(OnCuda, const ReduceCall<T, SumOf<T>>&, bool, const PeerSums&);
TORCH_OPS_FOR_EACH_FLOAT(INSTANTIATE)
#undef INSTANTIATE

template <class Narrow, class Value>
void add_from_peers(OnCuda on, const PeerSums& call, int64_t count, bool onto, Value* own) {
  const HostScope scope(on.program);
  if (count * call.row_bytes == 0) return;
  using Sum = SumOf<Value>;
  constexpr int kWide = kVectorSize<Sum>;
  constexpr int64_t kMostRows = 1024;    // of a block: so many that their search is little
  constexpr int64_t kMostPlaces = 8192;  // of 4 bytes, in shared memory
  constexpr int64_t kBlocks = 16;        // per multiprocessor, where there are few rows
  const int64_t most = std::clamp<int64_t>(kMostPlaces / call.ranks, 1, kMostRows);
  const int64_t block_rows = std::clamp<int64_t>(
      ceil_div(count, kBlocks * current_device_limits().multiprocessors), 1, most);
  const size_t bytes = call.ranks * sizeof(void*) + block_rows * call.ranks * sizeof(int32_t);
  int lanes = 1;
  while (lanes < 32 && lanes * kVectorBytes < call.row_bytes) lanes *= 2;
  const bool is_wide = call.row_bytes % (kWide * sizeof(Sum)) == 0;
  auto* kernel = is_wide ? add_from_peers_kernel<kWide, Narrow, Value>
                         : add_from_peers_kernel<1, Narrow, Value>;
  TORCH_OPS_LAUNCH(kernel, grid_x(count, block_rows), kPeerThreads, bytes, call, count,
                   static_cast<int>(block_rows), lanes, onto, own);
}
#define INSTANTIATE(T) template void add_from_peers<T>(OnCuda, const PeerSums&, int64_t, bool, T*);
TORCH_OPS_FOR_EACH_FLOAT(INSTANTIATE)
template void add_from_peers<Float16>(OnCuda, const PeerSums&, int64_t, bool, float*);
template void add_from_peers<BFloat16>(OnCuda, const PeerSums&, int64_t, bool, float*);

void meet_peers(OnCuda on, const PeerMeeting& meeting) {
  const HostScope scope(on.program);
  const auto threads =
      static_cast<unsigned>(std::min<int64_t>(ceil_div(meeting.pads.ranks, 32) * 32, 1024));
  TORCH_OPS_LAUNCH(meet_peers_kernel, 1, threads, 0, meeting);
}

void await_said(OnCuda on, const int64_t* said, int64_t number) {
  using std::chrono::steady_clock;
  const HostScope scope(on.program);
  constexpr std::chrono::milliseconds kBetweenQueries(100);
  auto next_query = steady_clock::now() + kBetweenQueries;
  // Without an event, which the host would have to record.
  while (__atomic_load_n(said, __ATOMIC_ACQUIRE) != number) {
    if (steady_clock::now() < next_query) continue;
    const cudaError_t state = cudaStreamQuery(current_stream());
    if (state != cudaErrorNotReady) TORCH_OPS_CUDA_CALL(state);
    next_query += kBetweenQueries;
  }
}

}  // namespace torch_ops::kernels
