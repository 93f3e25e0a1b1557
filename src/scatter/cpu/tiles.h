// Tiles of scatter_add's index on the CPU, sorted by block of the result. No torch.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "common/indexing/index_mode.h"
#include "common/layout/row_layout.h"
#include "scatter/cpu/blocking.h"

namespace torch_ops {

// ---- Sorting a tile of the index by block -------------------------------------------------------

// The record of a tile's entries, sorted by block and in order within each: the row within
// the block, and the position within the tile or, if a row is one element, its value: reading
// that at its position would fetch a cache line per entry.
template <class Payload>
struct Bins {
  uint16_t* rows;
  Payload* payloads;
  uint32_t* bounds;  // block b has [bounds[b], bounds[b + 1])
};

template <class T>
void prefetch_to_write(const T* begin, int64_t size) {
  constexpr auto kLine = static_cast<int64_t>(64 / sizeof(T));
  for (int64_t n = 0; n < size; n += kLine) __builtin_prefetch(begin + n, 1);
}

constexpr int64_t kTileParts = 4;

// Sorts `entries` entries, at most a tile, all of them rows of the axis or of a block after the
// last one, which is not used. `values` is null if the payload is the position. `cursors`
// has room for kTileParts numbers per block and as many more.
template <class Index, class Payload>
void bin_tile(const Index* index, int64_t stride, int64_t entries, const CpuBlocking& blocking,
              const Payload* values, uint32_t* cursors, const Bins<Payload>& bins) {
  const int shift = blocking.block_shift;
  const int64_t mask = blocking.block_rows() - 1, slots = blocking.blocks + 1;
  uint16_t* const rows = bins.rows;
  Payload* const payloads = bins.payloads;
  // Scattered stores to lines that are in no cache would wait for each other.
  prefetch_to_write(rows, entries);
  prefetch_to_write(payloads, entries);
  std::fill_n(cursors, kTileParts * slots, 0);
  const auto sort = [=](auto step, auto payload) {
    // The quarters of the tile in turn, each with its own cursors: in a long run of one block,
    // adding to its cursor waits for the previous addition. Calls use(cursor, n, entry).
    const auto for_each = [=](auto use) {
      const auto visit = [=](int64_t part, int64_t n) {
        const auto entry = static_cast<int64_t>(index[n * step]);
        use(cursors[part * slots + (entry >> shift)], n, entry);
      };
      const int64_t size = entries / kTileParts;
      for (int64_t n = 0; n < size; ++n) {
        for (int64_t part = 0; part < kTileParts; ++part) visit(part, part * size + n);
      }
      for (int64_t n = kTileParts * size; n < entries; ++n) visit(kTileParts - 1, n);
    };
    for_each([](uint32_t& count, int64_t, int64_t) { ++count; });
    uint32_t bound = 0;
    for (int64_t block = 0; block < slots; ++block) {
      bins.bounds[block] = bound;
      for (int64_t part = 0; part < kTileParts; ++part) {
        bound += std::exchange(cursors[part * slots + block], bound);
      }
    }
    for_each([=](uint32_t& cursor, int64_t n, int64_t entry) {
      const uint32_t at = cursor++;
      rows[at] = static_cast<uint16_t>(entry & mask);
      payloads[at] = payload(n);
    });
  };
  const auto sort_any = [=](auto payload) {
    if (stride == 1) return sort(std::integral_constant<int64_t, 1>(), payload);
    sort(stride, payload);
  };
  if (values != nullptr) {
    sort_any([=](int64_t n) { return values[n]; });
  } else {
    sort_any([](int64_t n) { return static_cast<Payload>(n); });
  }
}

// ---- A tile of the index that is already in order -----------------------------------------------

// Are all entries rows of the axis, and none less than the one before it? Entries in any order are
// told apart by the first few.
template <class Index>
bool ascends(const Index* index, int64_t stride, int64_t entries, int64_t axis_size) {
  using Wide = std::conditional_t<sizeof(Index) == 8, uint64_t, uint32_t>;
  constexpr int64_t kPart = 512;
  const auto part_ascends = [&](const Index* part, auto step, int64_t n) {
    Wide falls = 0;  // the highest bit is set where a difference is negative
    const bool bad = any_bad(part, step, n, axis_size, [&](int64_t i, Wide entry) {
      falls |= entry - static_cast<Wide>(part[(i - 1) * step]);
    });
    return !bad && falls >> (8 * sizeof(Wide) - 1) == 0;
  };
  if (entries > 0 && !in_range(index[0], axis_size)) return false;
  for (int64_t begin = 1; begin < entries; begin += kPart) {
    using One = std::integral_constant<int64_t, 1>;  // known to the compiler, so that it vectorises
    const int64_t n = std::min(kPart, entries - begin);
    const Index* part = index + begin * stride;
    if (!(stride == 1 ? part_ascends(part, One(), n) : part_ascends(part, stride, n))) return false;
  }
  return true;
}

// As in bin_tile: where the entries of each block begin, and where those of the last one end.
template <class Index>
void find_bounds(const Index* index, int64_t stride, int64_t entries, const CpuBlocking& blocking,
                 uint32_t* bounds) {
  int64_t at = 0;  // all before it are in earlier blocks
  for (int64_t block = 0; block <= blocking.blocks; ++block) {
    const int64_t row = blocking.first_row(block);
    const auto is_before = [&](int64_t n) { return static_cast<int64_t>(index[n * stride]) < row; };
    // In doubling steps, and then by halves: a few steps if blocks are many, and some if not.
    int64_t step = 1, end = at;
    while (end < entries && is_before(end)) {
      at = end + 1;
      end += step;
      step *= 2;
    }
    end = std::min(end, entries);
    while (at < end) {
      const int64_t middle = at + (end - at) / 2;
      if (is_before(middle)) {
        at = middle + 1;
      } else {
        end = middle;
      }
    }
    bounds[block] = static_cast<uint32_t>(at);
  }
}

// The rows within their block that entries name; `mask` has the bits of such a number.
template <class Index>
void number_rows(const Index* index, int64_t stride, int64_t entries, int64_t mask,
                 uint16_t* rows) {
  const auto number = [&](auto step) {
    for (int64_t n = 0; n < entries; ++n) rows[n] = static_cast<uint16_t>(index[n * step] & mask);
  };
  if (stride == 1) {
    number(std::integral_constant<int64_t, 1>());
  } else {
    number(stride);
  }
}

// The rows that `entries` entries name by the rule; `nowhere` for those that name none.
template <class Index>
void resolve_entries(const Index* index, int64_t stride, int64_t entries, const IndexRule& rule,
                     int64_t nowhere, int64_t* rows) {
  for (int64_t n = 0; n < entries; ++n) {
    const int64_t row = rule.resolve(index[n * stride]);
    rows[n] = row == kNoRow ? nowhere : row;
  }
}

}  // namespace torch_ops
