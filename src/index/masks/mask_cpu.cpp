#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "common/host/parallel.h"
#include "common/indexing/index_array.h"
#include "index/masks/mask_launch.h"

namespace torch_ops::kernels {
namespace {

// Calls write(first, last, place) for parts of a mask, of at most `grain` entries: `place` is how
// many entries before the part are true. Each task counts its own first.
template <class Write>
void for_each_part(const bool* mask, int64_t entries, int64_t grain, const Write& write) {
  const int64_t tasks = (entries + grain - 1) / grain;
  std::vector<int64_t> begins(tasks + 1);
  const auto part = [=](int64_t task) {
    return std::pair(task * grain, std::min((task + 1) * grain, entries));
  };
  parallel_for(tasks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const auto [first, last] = part(task);
      begins[task + 1] = std::count(mask + first, mask + last, true);
    }
  });
  for (int64_t task = 0; task < tasks; ++task) begins[task + 1] += begins[task];
  parallel_for(tasks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const auto [first, last] = part(task);
      write(first, last, begins[task]);
    }
  });
}

}  // namespace

template <class Position>
void mask_positions(OnCpu on, const bool* mask, int64_t entries, Position* positions,
                    int64_t room) {
  const HostScope scope(on.program);
  if (room == 0) return;
  for_each_part(mask, entries, kElementsPerTask, [=](int64_t first, int64_t last, int64_t place) {
    for (int64_t n = first; n < last && place < room; ++n) {
      if (mask[n]) positions[place++] = static_cast<Position>(n);
    }
  });
}

void masked_scatter(OnCpu on, const bool* mask, int64_t entries, const char* rows, int64_t room,
                    int64_t row_bytes, char* result) {
  const HostScope scope(on.program);
  if (room == 0) {
    std::memset(result, 0, entries * row_bytes);
    return;
  }
  const bool is_word = row_bytes == 1 || row_bytes == 2 || row_bytes == 4 || row_bytes == 8;
  const int64_t grain =
      std::max<int64_t>(4 * kElementsPerTask / std::max<int64_t>(row_bytes, 4), 1);
  for_each_part(mask, entries, grain, [=](int64_t first, int64_t last, int64_t place) {
    if (is_word) {
      dispatch_size(row_bytes, [&](auto word) {
        using Word = decltype(word);
        const auto* const from = reinterpret_cast<const Word*>(rows);
        for (int64_t n = first; n < last; ++n) {  // without a branch, which nobody can foresee
          const Word row = from[std::min(place, room - 1)];
          reinterpret_cast<Word*>(result)[n] = mask[n] && place < room ? row : Word();
          place += mask[n];
        }
      });
      return;
    }
    for (int64_t n = first; n < last; ++n) {
      char* const to = result + n * row_bytes;
      if (mask[n] && place < room) {
        std::memcpy(to, rows + place * row_bytes, row_bytes);
      } else {
        std::memset(to, 0, row_bytes);
      }
      place += mask[n];
    }
  });
}

template void mask_positions(OnCpu, const bool*, int64_t, int32_t*, int64_t);
template void mask_positions(OnCpu, const bool*, int64_t, int64_t*, int64_t);

}  // namespace torch_ops::kernels
