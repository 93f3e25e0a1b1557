// scatter_add on the CPU, one call over threads. No torch.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "common/cuda/scratch.h"
#include "common/elementwise/elementwise_cpu.h"
#include "common/host/parallel.h"
#include "scatter/cpu/blocking.h"
#include "scatter/cpu/short_slabs.h"
#include "scatter/cpu/sum_loops.h"
#include "scatter/cpu/tiles.h"

namespace torch_ops {

// One call: its steps share the pointers and the blocking. Value is a storage type, and Result is
// the same or the type of the sums.
template <class Value, class Index, class Result>
class ScatterAdd {
 public:
  using Sum = ScatterSum<Value>;

  // `onto`: the sums are added to the values in the result, and no entry may be out of range if
  // that is an error. Otherwise the result has only the sums.
  ScatterAdd(const Value* values, const Index* index, const RowLayout& layout,
             const IndexRule& rule, Result* result, bool onto)
      : values_(values),
        index_(index),
        layout_(layout),
        rule_(rule),
        result_(result),
        onto_(onto),
        blocking_(choose_cpu_blocking(layout, sizeof(Sum), num_threads(), onto)),
        strips_((layout.inner + blocking_.columns - 1) / blocking_.columns),
        tiles_((layout.entries + blocking_.tile_entries - 1) / blocking_.tile_entries),
        piece_size_(std::min(blocking_.block_rows(), layout.axis_size) * blocking_.columns),
        groups_((std::min(blocking_.block_rows(), layout.axis_size) + blocking_.group_rows() - 1) >>
                blocking_.group_shift) {}

  // Returns the smallest position of an entry that is out of range; the result is then undefined.
  int64_t run() {
    if (layout_.inner == 1 && std::max(layout_.axis_size, layout_.entries) <= kShortSlab) {
      return add_short_slabs(simd_, layout_, rule_, values_, index_, result_, onto_);
    }
    if constexpr (std::is_same_v<Result, Value>) {
      if (onto_ && is_few()) {
        add_few(simd_, layout_, rule_, values_, index_, result_);
        return kNoBadEntry;
      }
    }
    if (blocking_.blocks > 1) {
      const int64_t bad = sort_tiles();
      if (bad != kNoBadEntry) return bad;
    }
    cut_blocks();
    const int64_t bad = add_all();
    join_all();
    return bad;
  }

 private:
  // Is it too little work for several threads, compared with the work for a block's other rows?
  bool is_few() const {
    constexpr int64_t kGroup = 32;  // values that are rounded in the time of finding a row
    if (added() > kElementsPerTask) return false;
    if (blocking_.blocks > 1) return true;
    return !std::is_same_v<Sum, Value> &&
           layout_.entries * std::max<int64_t>(kGroup / layout_.inner, 1) <= layout_.axis_size;
  }

  // A part of a block's entries, [begin, end), and where its sums go.
  struct Piece {
    int64_t slab, block, begin, end;
  };
  struct CutBlock {
    int64_t slab, block, first, pieces;
  };

  // ---- The tiles, sorted

  int64_t sort_tiles() {
    const int64_t all = layout_.slabs() * layout_.entries;
    rows_ = Scratch<uint16_t>(all);
    if (layout_.inner == 1) {
      binned_ = Scratch<Value>(all);
    } else {
      positions_ = Scratch<uint16_t>(all);
    }
    bounds_ = Scratch<uint32_t>(layout_.slabs() * tiles_ * (blocking_.blocks + 1));
    in_order_ = Scratch<uint8_t>(layout_.slabs() * tiles_);
    return parallel_min_shared(layout_.slabs() * tiles_, 1, all, [&](auto deal) {
      const auto cursors = Scratch<uint32_t>(kTileParts * (blocking_.blocks + 1));
      Scratch<int64_t> resolved;
      if (rule_.rewrites()) resolved = Scratch<int64_t>(blocking_.tile_entries);
      int64_t bad = kNoBadEntry;
      for (int64_t begin = 0, end = 0; deal(begin, end);) {
        for (int64_t tile = begin; tile < end; ++tile) {
          bad =
              std::min(bad, sort_tile(tile / tiles_, tile % tiles_, cursors.get(), resolved.get()));
        }
      }
      return bad;
    });
  }

  // `resolved` has room for a tile's rows if the rule rewrites entries.
  int64_t sort_tile(int64_t slab, int64_t tile, uint32_t* cursors, int64_t* resolved) {
    const int64_t first = tile * blocking_.tile_entries;
    const int64_t entries = std::min(blocking_.tile_entries, layout_.entries - first);
    const Index* index = entries_at(slab, first);
    const int64_t stride = layout_.index_entry_stride;
    const bool in_order = ascends(index, stride, entries, layout_.axis_size);
    in_order_.get()[slab * tiles_ + tile] = in_order;
    if (in_order) {
      find_bounds(index, stride, entries, blocking_, bounds_of(slab, tile));
      return kNoBadEntry;
    }
    const int64_t bad = find_bad(index, stride, entries, layout_.axis_size);
    if (bad == kNoBadEntry) {
      bin(slab, tile, index, stride, entries, cursors);
      return kNoBadEntry;
    }
    if (!rule_.rewrites()) return position_of(slab, first + bad);
    const int64_t behind = blocking_.blocks << blocking_.block_shift;
    resolve_entries(index, stride, entries, rule_, behind, resolved);
    bin(slab, tile, resolved, 1, entries, cursors);
    return kNoBadEntry;
  }

  template <class Row>
  void bin(int64_t slab, int64_t tile, const Row* rows, int64_t stride, int64_t entries,
           uint32_t* cursors) {
    const int64_t place = slab * layout_.entries + tile * blocking_.tile_entries;
    const auto sort = [&](const auto* values, auto* payloads) {
      using Payload = std::remove_pointer_t<decltype(payloads)>;
      bin_tile(rows, stride, entries, blocking_, values, cursors,
               Bins<Payload>{rows_.get() + place, payloads + place, bounds_of(slab, tile)});
    };
    if (layout_.inner == 1) {
      sort(values_ + place, binned_.get());
    } else {
      sort(static_cast<const uint16_t*>(nullptr), positions_.get());
    }
  }

  const Index* entries_at(int64_t slab, int64_t n) const {
    return index_ + slab / layout_.outer * layout_.index_batch_stride +
           n * layout_.index_entry_stride;
  }
  int64_t position_of(int64_t slab, int64_t n) const {
    return slab / layout_.outer * layout_.entries + n;
  }
  uint32_t* bounds_of(int64_t slab, int64_t tile) const {
    return bounds_.get() + (slab * tiles_ + tile) * (blocking_.blocks + 1);
  }

  // ---- Blocks of many entries

  void cut_blocks() {
    if (blocking_.pieces(layout_.entries) == 1)
      return;  // no block can have more entries than a slab
    std::vector<int64_t> entries(blocking_.blocks);
    for (int64_t slab = 0; slab < layout_.slabs(); ++slab) {
      std::fill(entries.begin(), entries.end(), blocking_.blocks == 1 ? layout_.entries : 0);
      for (int64_t tile = 0; tile < tiles_ && blocking_.blocks > 1; ++tile) {
        const uint32_t* bounds = bounds_of(slab, tile);
        for (int64_t block = 0; block < blocking_.blocks; ++block) {
          entries[block] += bounds[block + 1] - bounds[block];
        }
      }
      for (int64_t block = 0; block < blocking_.blocks; ++block) {
        const int64_t count = blocking_.pieces(entries[block]);
        if (count == 1) continue;
        cut_.push_back({slab, block, static_cast<int64_t>(pieces_.size()), count});
        for (int64_t piece = 0; piece < count; ++piece) {
          pieces_.push_back(
              {slab, block, entries[block] * piece / count, entries[block] * (piece + 1) / count});
        }
      }
    }
    partials_ = Scratch<Sum>(pieces_.size() * strips_ * piece_size_);
    touched_ = Scratch<uint8_t>(pieces_.size() * strips_ * groups_);
    is_cut_.resize(layout_.slabs() * blocking_.blocks);
    for (const CutBlock& each : cut_) is_cut_[each.slab * blocking_.blocks + each.block] = true;
  }

  // ---- Adding

  int64_t add_all() {
    // The pieces first: they are the longest tasks.
    const auto pieces = static_cast<int64_t>(pieces_.size());
    const int64_t blocks = layout_.slabs() * blocking_.blocks;
    const int64_t set = onto_ ? 0 : layout_.slabs() * layout_.axis_size * layout_.inner;
    const int64_t work = added() + set;
    const int64_t grain = kElementsPerTask / (work / blocks / strips_ + 1) + 1;
    return parallel_min_shared((pieces + blocks) * strips_, grain, work, [&](auto deal) {
      Scratch<Sum> sums;
      Scratch<uint8_t> touched;
      if (!std::is_same_v<Sum, Result>) {
        sums = Scratch<Sum>(piece_size_);
        touched = Scratch<uint8_t>(groups_);
      }
      int64_t bad = kNoBadEntry;
      for (int64_t begin = 0, end = 0; deal(begin, end);) {
        for (int64_t task = begin; task < end; ++task) {
          const int64_t number = task / strips_;
          const int64_t strip = task % strips_;
          if (number < pieces) {
            bad = std::min(bad, add_piece(pieces_[number], strip, partial(number, strip),
                                          touched_in(number, strip)));
            continue;
          }
          const int64_t block = number - pieces;
          if (!is_cut_.empty() && is_cut_[block]) continue;
          const Piece whole{block / blocking_.blocks, block % blocking_.blocks, 0, INT64_MAX};
          if constexpr (std::is_same_v<Sum, Result>) {
            bad = std::min(bad, add_block(whole, strip));
          } else {
            bad = std::min(bad, add_piece(whole, strip, sums.get(), touched.get()));
            store_block(whole, strip, sums.get(), touched.get());
          }
        }
      }
      return bad;
    });
  }

  // Directly into the result.
  int64_t add_block(const Piece& block, int64_t strip) {
    Result* sums = result_at(block.slab, blocking_.first_row(block.block), strip);
    if (!onto_) set_to_zero(sums, rows_in(block.block), strip);
    return add(block, strip, sums, layout_.inner);
  }

  // Into `sums`, of which only the groups of rows that are `touched` are set.
  int64_t add_piece(const Piece& piece, int64_t strip, Sum* sums, uint8_t* touched) {
    const int64_t columns = columns_in(strip);
    look(piece, touched);
    for_each_stretch(touched, rows_in(piece.block), [&](int64_t begin, int64_t end, bool any) {
      const Sum zero = onto_ ? nothing_added<Sum>() : Sum();
      if (any) std::fill_n(sums + begin * columns, (end - begin) * columns, zero);
    });
    return add(piece, strip, sums, columns);
  }

  // Finds the groups of its block's rows that a piece may add to: few if it is of one hot row,
  // or if there are few entries compared with rows.
  void look(const Piece& piece, uint8_t* touched) const {
    std::fill_n(touched, groups_, !blocking_.looks);
    if (!blocking_.looks) return;
    if (blocking_.blocks > 1) {
      for_each_run(piece, 0, [&](const ScatterRun<Value>& run) {
        for (int64_t n = 0; n < run.entries; ++n) touched[run.rows[n] >> blocking_.group_shift] = 1;
      });
      return;
    }
    const Index* entries = entries_at(piece.slab, piece.begin);
    const int64_t count = std::min(piece.end, layout_.entries) - piece.begin;
    const auto last = static_cast<uint64_t>(layout_.axis_size - 1);
    with_rule(rule_, [&](auto row_of) {
      for (int64_t n = 0; n < count; ++n) {
        // Entries out of range are found where they would be added.
        const auto row = static_cast<uint64_t>(row_of(entries[n * layout_.index_entry_stride]));
        touched[std::min(row, last) >> blocking_.group_shift] = 1;
      }
    });
  }

  // Calls use(begin, end, any) for stretches of a block's rows, as long as possible, that are
  // touched or are not.
  template <class Use>
  void for_each_stretch(const uint8_t* touched, int64_t rows, Use use) const {
    const int64_t groups = (rows + blocking_.group_rows() - 1) >> blocking_.group_shift;
    for (int64_t begin = 0, end = 0; begin < groups; begin = end) {
      while (end < groups && touched[end] == touched[begin]) ++end;
      use(begin << blocking_.group_shift, std::min(end << blocking_.group_shift, rows),
          touched[begin] != 0);
    }
  }

  int64_t add(const Piece& piece, int64_t strip, Sum* sums, int64_t stride) {
    return blocking_.blocks == 1 ? add_from_index(piece, strip, sums, stride)
                                 : add_from_tiles(piece, strip, sums, stride);
  }

  int64_t add_from_index(const Piece& piece, int64_t strip, Sum* sums, int64_t stride) {
    const int64_t end = std::min(piece.end, layout_.entries);
    for (int64_t first = piece.begin; first < end; first += kRunEntries) {
      const int64_t count = std::min(kRunEntries, end - first);
      const int64_t bad = add_run(piece.slab, first, count, strip, sums, stride);
      if (bad == kNoBadEntry) continue;
      if (!rule_.rewrites()) return position_of(piece.slab, first + bad);
      add_run_by_rule(piece.slab, first + bad, count - bad, strip, sums, stride);
    }
    return kNoBadEntry;
  }

  // Some kRunEntries entries. Returns the first that is out of range, before which all are added.
  int64_t add_run(int64_t slab, int64_t first, int64_t count, int64_t strip, Sum* sums,
                  int64_t stride) {
    const int64_t index_stride = layout_.index_entry_stride;
    const Index* const entries = entries_at(slab, first);
    const Value* const values = value_at(slab, first, strip);
    if (layout_.inner == 1) {
      return add_elements_widened(simd_, count, entries, index_stride, layout_.axis_size, values,
                                  sums);
    }
    const int64_t bad = find_bad(entries, index_stride, count, layout_.axis_size);
    const int64_t good = std::min(bad, count);
    uint16_t rows[kRunEntries];
    for (int64_t n = 0; n < good; ++n) rows[n] = static_cast<uint16_t>(entries[n * index_stride]);
    if (good > 0) {
      add_rows(simd_, ScatterRun<Value>{good, rows, nullptr, values, layout_.inner},
               columns_in(strip), sums, stride);
    }
    return bad;
  }

  // The same where some are not the rows themselves, but the rule says which they name.
  void add_run_by_rule(int64_t slab, int64_t first, int64_t count, int64_t strip, Sum* sums,
                       int64_t stride) {
    const Index* const entries = entries_at(slab, first);
    const Value* const values = value_at(slab, first, strip);
    uint16_t positions[kRunEntries];
    if (layout_.inner == 1) {
      uint32_t rows[kRunEntries];
      const int64_t kept =
          keep_rows(entries, layout_.index_entry_stride, count, rule_, rows, positions);
      Sum kept_values[kRunEntries];
      for (int64_t n = 0; n < kept; ++n) kept_values[n] = static_cast<Sum>(values[positions[n]]);
      add_elements_widened(simd_, kept, rows, 1, blocking_.block_rows(), kept_values, sums);
    } else {
      uint16_t rows[kRunEntries];
      const int64_t kept =
          keep_rows(entries, layout_.index_entry_stride, count, rule_, rows, positions);
      if (kept == 0) return;
      add_rows(simd_, ScatterRun<Value>{kept, rows, positions, values, layout_.inner},
               columns_in(strip), sums, stride);
    }
  }

  int64_t add_from_tiles(const Piece& piece, int64_t strip, Sum* sums, int64_t stride) {
    for_each_run(piece, strip, [&](const ScatterRun<Value>& run) {
      if (layout_.inner == 1) {
        add_elements_widened(simd_, run.entries, run.rows, 1, blocking_.block_rows(), run.values,
                             sums);
      } else {
        add_rows(simd_, run, columns_in(strip), sums, stride);
      }
    });
    return kNoBadEntry;
  }

  // Calls use(run) for the entries of a piece in the tiles.
  template <class Use>
  void for_each_run(const Piece& piece, int64_t strip, Use use) const {
    int64_t before = 0;  // the block's entries in the tiles that are done
    for (int64_t tile = 0; tile < tiles_ && before < piece.end; ++tile) {
      const uint32_t* bounds = bounds_of(piece.slab, tile) + piece.block;
      const int64_t entries = bounds[1] - bounds[0];
      const int64_t begin = std::max<int64_t>(piece.begin - before, 0);
      const int64_t end = std::min(piece.end - before, entries);
      before += entries;
      if (begin >= end) continue;
      const int64_t first = tile * blocking_.tile_entries;  // of the tile
      if (in_order_.get()[piece.slab * tiles_ + tile]) {
        read_in_order(piece, strip, first + bounds[0] + begin, first + bounds[0] + end, use);
        continue;
      }
      const int64_t place = piece.slab * layout_.entries + first + bounds[0] + begin;
      const bool elements = layout_.inner == 1;
      use(ScatterRun<Value>{
          end - begin, rows_.get() + place, elements ? nullptr : positions_.get() + place,
          elements ? binned_.get() + place : value_at(piece.slab, first, strip), layout_.inner});
    }
  }

  // The entries [begin, end) of a slab's index in place: all of them rows of the piece's
  // block.
  template <class Use>
  void read_in_order(const Piece& piece, int64_t strip, int64_t begin, int64_t end, Use use) const {
    uint16_t rows[kRunEntries];
    const int64_t mask = blocking_.block_rows() - 1;
    for (int64_t first = begin; first < end; first += kRunEntries) {
      const int64_t n = std::min(kRunEntries, end - first);
      number_rows(entries_at(piece.slab, first), layout_.index_entry_stride, n, mask, rows);
      use(ScatterRun<Value>{n, rows, nullptr, value_at(piece.slab, first, strip), layout_.inner});
    }
  }

  // ---- The sums of pieces

  void join_all() {
    // In tasks of some groups of rows of a strip.
    const int64_t rows =
        std::max(kElementsPerTask / 4 / blocking_.columns >> blocking_.group_shift, int64_t{1})
        << blocking_.group_shift;
    const int64_t parts = (std::min(blocking_.block_rows(), layout_.axis_size) + rows - 1) / rows;
    const int64_t tasks = static_cast<int64_t>(cut_.size()) * strips_ * parts;
    parallel_for(tasks, 1, [&](int64_t begin, int64_t end) {
      for (int64_t task = begin; task < end; ++task) {
        const CutBlock& cut = cut_[task / parts / strips_];
        const int64_t first = task % parts * rows;
        const int64_t last = std::min(first + rows, rows_in(cut.block));
        for (int64_t row = first; row < last; row += blocking_.group_rows()) {
          join(cut, task / parts % strips_, row, std::min(blocking_.group_rows(), last - row));
        }
      }
    });
  }

  // A group of rows.
  void join(const CutBlock& cut, int64_t strip, int64_t first, int64_t rows) {
    const int64_t columns = columns_in(strip);
    Sum* sums = nullptr;
    for (int64_t piece = cut.first; piece < cut.first + cut.pieces; ++piece) {
      if (touched_in(piece, strip)[first >> blocking_.group_shift] == 0) continue;
      Sum* others = partial(piece, strip) + first * columns;
      if (sums == nullptr) {
        sums = others;
      } else {
        add_sums(simd_, sums, rows * columns, others);
      }
    }
    store(cut.slab, cut.block, strip, first, rows, sums);
  }

  void store_block(const Piece& block, int64_t strip, const Sum* sums, const uint8_t* touched) {
    for_each_stretch(touched, rows_in(block.block), [&](int64_t begin, int64_t end, bool any) {
      store(block.slab, block.block, strip, begin, end - begin,
            any ? sums + begin * columns_in(strip) : nullptr);
    });
  }

  // `sums` are null if they are zeros.
  void store(int64_t slab, int64_t block, int64_t strip, int64_t first, int64_t rows,
             const Sum* sums) {
    const int64_t columns = columns_in(strip);
    Result* to = result_at(slab, blocking_.first_row(block) + first, strip);
    if (sums == nullptr) return onto_ ? void() : set_to_zero(to, rows, strip);
    const auto store_some = [&](const Sum* from, int64_t n, Result* at) {
      onto_ ? add_rounded(simd_, from, n, at) : store_sums(simd_, from, n, at);
    };
    if (columns == layout_.inner) return store_some(sums, rows * columns, to);
    for (int64_t row = 0; row < rows; ++row) {
      store_some(sums + row * columns, columns, to + row * layout_.inner);
    }
  }

  // Rows of the result.
  void set_to_zero(Result* to, int64_t rows, int64_t strip) {
    const int64_t columns = columns_in(strip);
    if (columns == layout_.inner) {
      std::memset(to, 0, rows * columns * sizeof(Result));
      return;
    }
    for (int64_t row = 0; row < rows; ++row) {
      std::memset(to + row * layout_.inner, 0, columns * sizeof(Result));
    }
  }

  // ---- Where things are

  int64_t added() const { return layout_.slabs() * layout_.entries * layout_.inner; }  // values
  int64_t columns_in(int64_t strip) const {
    return std::min(blocking_.columns, layout_.inner - strip * blocking_.columns);
  }
  int64_t rows_in(int64_t block) const {
    return std::min(blocking_.block_rows(), layout_.axis_size - blocking_.first_row(block));
  }
  const Value* value_at(int64_t slab, int64_t n, int64_t strip) const {
    return values_ + (slab * layout_.entries + n) * layout_.inner + strip * blocking_.columns;
  }
  Result* result_at(int64_t slab, int64_t row, int64_t strip) const {
    return result_ + (slab * layout_.axis_size + row) * layout_.inner + strip * blocking_.columns;
  }
  Sum* partial(int64_t piece, int64_t strip) const {
    return partials_.get() + (piece * strips_ + strip) * piece_size_;
  }
  uint8_t* touched_in(int64_t piece, int64_t strip) const {
    return touched_.get() + (piece * strips_ + strip) * groups_;
  }

  const Value* values_;
  const Index* index_;
  const RowLayout layout_;
  const IndexRule rule_;
  Result* result_;
  const bool onto_;
  const CpuBlocking blocking_;
  const Simd simd_ = cpu_simd();
  const int64_t strips_;
  const int64_t tiles_;       // per slab
  const int64_t piece_size_;  // in elements
  const int64_t groups_;      // of a block's rows

  // Of all slabs' entries, tile by tile; `bounds_` is [slabs, tiles, blocks + 1]. Of a tile that is
  // `in_order_`, [slabs, tiles], there are only the bounds.
  Scratch<uint16_t> rows_;
  Scratch<uint16_t> positions_;
  Scratch<Value> binned_;
  Scratch<uint32_t> bounds_;
  Scratch<uint8_t> in_order_;

  std::vector<Piece> pieces_;
  std::vector<CutBlock> cut_;
  std::vector<bool> is_cut_;  // of all slabs' blocks; empty if there are none
  Scratch<Sum> partials_;
  Scratch<uint8_t> touched_;  // [pieces, strips, groups]: 1 where partials_ is set
};

}  // namespace torch_ops
