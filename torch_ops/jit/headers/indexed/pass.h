// One pass of a generated indexed kernel over its entries, on CPU and CUDA. A header for each kind
// of processor comes first, and declares
//   Vector<Stored, count>              elements that lie together
//   wide_product(a, b)                 of int32_t or int64_t, in 64 bits
//   keep_here(value)                   a load of it is not moved beyond this place
//   loaded_whole(from)                 what is there, by as few loads as its size allows
//   record_bad(plan, index, entry, value)
//   the lanes of a worker              threads that share its entries or its summed features
#pragma once
#include "indexed/operands.h"

namespace torch_ops {

// ---- The walk -----------------------------------------------------------------------------------

template <class... I>
struct Indices {};

// One pass over the entries.
//   vector, unroll   features of a worker, neighbours in memory; entries whose loads are in flight
//   is_full          the vectors divide the features
//   sums_inner       vectors lie along a summed axis; else along one that the outputs have
//   walk             r, entries of a row by `order` and `offsets`; u, a row's entries are as many
//                    and as far apart as another's; e, each entry for itself
//   is_ordered       the walk has an order
//   shares           lanes share a row's entries or its summed features
//   kept, summed     axes of the features that outputs have, and that are summed
//   together         neighbours in a warp that sum an output for each entry
//   Id, Number       of the order and its offsets; of entries and rows in registers
template <int vector, int unroll, bool is_full, bool sums_inner, char walk, bool is_ordered,
          bool shares_, bool is_batched, int kept, int summed, int together, class Id, class Number,
          class Ins, class Outs, class Idx>
struct IndexedPass;

template <int vector, int unroll, bool is_full, bool sums_inner, char walk, bool is_ordered,
          bool shares_, bool is_batched, int kept, int summed, int together, class Id, class Number,
          class... In, class... Out, class... Ix>
struct IndexedPass<vector, unroll, is_full, sums_inner, walk, is_ordered, shares_, is_batched, kept,
                   summed, together, Id, Number, Operands<In...>, Operands<Out...>,
                   Indices<Ix...>> {
  static constexpr int inputs = sizeof...(In);
  static constexpr int indices = sizeof...(Ix);
  static constexpr bool is_summed = summed > 0;
  using Sums = AllReduced<vector, Out...>;
  static constexpr bool shares = shares_;
  using Position = Number;

  // ---- where things are

  static TORCH_OPS_FUNCTION Number words_of(int64_t features) {
    return (static_cast<Number>(features) + vector - 1) / vector;
  }
  // Vectors of the outputs' features, or features where vectors lie along a summed axis.
  template <class Plan>
  static TORCH_OPS_FUNCTION Number kept_words(const Plan& plan) {
    return sums_inner ? static_cast<Number>(plan.kept_size) : words_of(plan.kept_size);
  }
  template <class Plan>
  static TORCH_OPS_FUNCTION Number summed_words(const Plan& plan) {
    return !is_summed   ? 1
           : sums_inner ? words_of(plan.summed_size)
                        : static_cast<Number>(plan.summed_size);
  }
  static TORCH_OPS_FUNCTION int width_of(int64_t size, Number word) {
    if (is_full) return vector;
    const Number left = static_cast<Number>(size) - word * vector;
    return left < vector ? static_cast<int>(left) : vector;
  }

  template <class Plan>
  static TORCH_OPS_FUNCTION Number first_of(const Plan& plan, Number row) {
    return static_cast<Number>(walk == 'u' ? row * plan.row_length
                                           : static_cast<int64_t>(plan.offsets[row]));
  }
  // The row that the entry at a position of the walk is reduced to.
  template <class Plan>
  static TORCH_OPS_FUNCTION Number row_at(const Plan& plan, Number position) {
    if (walk == 'u') return position / static_cast<Number>(plan.row_length);
    if (plan.row_of != nullptr) return static_cast<Number>(plan.row_of[position]);
    Number low = 0, high = static_cast<Number>(plan.rows);
    while (high - low > 1) {  // offsets[low] <= position < offsets[high]
      const Number middle = low + (high - low) / 2;
      (static_cast<Number>(plan.offsets[middle]) <= position ? low : high) = middle;
    }
    return low;
  }
  template <class Plan>
  static TORCH_OPS_FUNCTION Number entry_at(const Plan& plan, Number row, Number position) {
    if (walk == 'u') {
      const Number place = position - row * static_cast<Number>(plan.row_length);
      return row * static_cast<Number>(plan.row_step) +
             place * static_cast<Number>(plan.entry_step);
    }
    return is_ordered ? static_cast<Number>(plan.order[position]) : position;
  }

  // ---- entries

  struct Entries {
    bool is_there[unroll];
    bool has_rows[unroll];  // no index of it is out of range
    Number entry[unroll];
    Number rows[indices ? indices : 1][unroll];
  };

  template <class I, class Plan>
  static TORCH_OPS_FUNCTION void read_index(const Plan& plan, Number position, int u,
                                            Entries& entries) {
    if (I::source == '-') return;
    Number& to = entries.rows[I::number][u];
    if (I::source == 'p') {
      to = static_cast<Number>(static_cast<const Id*>(plan.index[I::number])[position]);
    } else {
      // Without branches, so that all loads are in flight.
      const int64_t size = plan.sizes[I::number], value = value_of<I>(plan, entries.entry[u]);
      const bool is_row = static_cast<uint64_t>(value) < static_cast<uint64_t>(size);
      const int64_t row = is_row ? value : 0;
      to = static_cast<Number>(is_batched ? batch_of(plan, entries, u) * size + row : row);
      entries.has_rows[u] &= is_row;
    }
  }
  template <class I, class Plan>
  static TORCH_OPS_FUNCTION int64_t value_of(const Plan& plan, Number entry) {
    return I::source == 'i' ? int64_t(static_cast<const int32_t*>(plan.index[I::number])[entry])
                            : static_cast<const int64_t*>(plan.index[I::number])[entry];
  }
  template <class I, class Plan>
  static TORCH_OPS_FUNCTION void record_index(const Plan& plan, Number entry) {
    if (I::source != 'i' && I::source != 'l') return;
    const int64_t size = plan.sizes[I::number], value = value_of<I>(plan, entry);
    if (static_cast<uint64_t>(value) >= static_cast<uint64_t>(size)) {
      record_bad(plan, I::number, entry, value);
    }
  }

  template <class Plan>
  static TORCH_OPS_FUNCTION Number batch_of(const Plan& plan, const Entries& entries, int u) {
    return entries.entry[u] / static_cast<Number>(plan.batch_entries);
  }
  template <class Plan>
  static TORCH_OPS_FUNCTION void read_entries(const Plan& plan, Number row, Number position,
                                              Number end, Number step, Entries& entries) {
#ifdef __CUDACC_RTC__
#pragma unroll
#endif
    for (int u = 0; u < unroll; ++u) {
      Number at = position + u * step;
      entries.is_there[u] = at < end;
      entries.has_rows[u] = true;
      // The last instead of one that is not there: without branches all loads are in flight.
      if (at >= end) at = end - 1;
      entries.entry[u] = entry_at(plan, row, at);
      Each{(read_index<Ix>(plan, at, u, entries), 0)...};
    }
#ifdef __CUDACC_RTC__
#pragma unroll
#endif
    for (int u = 0; u < unroll; ++u) {
      Each{(keep<In>(entries, u), 0)...};
    }
    record_entries(plan, entries);
  }
  template <class Plan>
  static TORCH_OPS_FUNCTION void record_entries(const Plan& plan, const Entries& entries) {
    bool have_rows = true;  // known to the compiler where no index is checked
    for (int u = 0; u < unroll; ++u) have_rows &= entries.has_rows[u];
    if (have_rows) return;
    for (int u = 0; u < unroll; ++u) {
      Each{(record_index<Ix>(plan, entries.entry[u]), 0)...};
    }
  }
  template <class I>
  static TORCH_OPS_FUNCTION void keep(Entries& entries, int u) {
    if (I::by >= 0) keep_here(entries.rows[I::by >= 0 ? I::by : 0][u]);
    if (I::by == by_entry) keep_here(entries.entry[u]);
  }
  template <class In_, class Plan>
  static TORCH_OPS_FUNCTION Number row_of(const Plan& plan, const Entries& entries, int u) {
    const Number entry = entries.entry[u];
    if (In_::by >= 0) return entries.rows[In_::by >= 0 ? In_::by : 0][u];
    if (In_::by == in_batch) {
      return entry - batch_of(plan, entries, u) * static_cast<Number>(plan.batch_entries);
    }
    return In_::by == by_batch ? batch_of(plan, entries, u) : entry;
  }
  template <class I, class Plan>
  static TORCH_OPS_FUNCTION const char* row_at_of(const Plan& plan, const char* start, Number row) {
    return start + wide_product(row, static_cast<Number>(plan.row_strides[I::number]));
  }

  // ---- values

  template <class I>
  struct Loaded {
    static constexpr int count = I::mode == 'b' ? 1 : vector;
    Vector<typename I::Stored, count> of[I::moves ? unroll : 1];
  };
  struct AllLoaded : Loaded<In>... {};

  template <class I, class Plan>
  static TORCH_OPS_FUNCTION void load(const Plan& plan, const char* from, int width,
                                      Vector<typename I::Stored, Loaded<I>::count>& to) {
    if (I::mode == 's' && vector > 1) {
      const int64_t stride =
          sums_inner ? plan.summed[0].strides[I::number] : plan.kept[0].strides[I::number];
      for (int v = 0; v < width; ++v) {
        to[v] = *reinterpret_cast<const typename I::Stored*>(from + v * stride);
      }
    } else {
      to.load(from, I::mode == 'b' ? 1 : width);
    }
  }
  template <class I, class Plan>
  static TORCH_OPS_FUNCTION void load_fixed(const Plan& plan, char* const* at, Number row,
                                            int width, AllLoaded& loaded) {
    if (I::moves) return;
    const char* const from =
        I::by == by_row ? row_at_of<I>(plan, at[I::number], row) : at[I::number];
    load<I>(plan, from, width, static_cast<Loaded<I>&>(loaded).of[0]);
  }
  template <class I, class Plan>
  static TORCH_OPS_FUNCTION void load_moving(const Plan& plan, char* const* at,
                                             const Entries& entries, int u, int width,
                                             AllLoaded& loaded) {
    if (!I::moves) return;
    const char* const from = row_at_of<I>(plan, at[I::number], row_of<I>(plan, entries, u));
    // An entry that is not there stands for the last one; of a walk over all entries they are so
    // few that their rows are read without a branch.
    if (!entries.has_rows[u] || (walk != 'e' && !entries.is_there[u])) return;
    load<I>(plan, from, width, static_cast<Loaded<I>&>(loaded).of[I::moves ? u : 0]);
  }
  template <class I>
  static TORCH_OPS_FUNCTION typename I::Value value(const AllLoaded& loaded, int u, int v) {
    return load_as<typename I::Value>(
        static_cast<const Loaded<I>&>(loaded).of[I::moves ? u : 0][I::mode == 'b' ? 0 : v]);
  }

  // ---- outputs for each entry

  // Until its features are summed, or until its vector is stored.
  // The bool is no default argument: NVRTC 13.2 refuses one in the expansion below.
  template <class O, bool is_entry>
  struct OfEntry {
    static constexpr int width = O::role == 'e' ? vector : 1;
    typename O::Value value[unroll][width];
  };
  template <class O>
  struct OfEntry<O, false> {};
  template <class O>
  struct OfOutput : OfEntry<O, O::role == 'e' || O::role == 'f'> {};
  struct OfEntries : OfOutput<Out>... {};

  template <class O>
  static TORCH_OPS_FUNCTION void clear_entry(OfEntry<O, true>& out) {
    for (int u = 0; u < unroll; ++u) {
      for (int v = 0; v < OfEntry<O, true>::width; ++v) out.value[u][v] = typename O::Value();
    }
  }
  template <class O>
  static TORCH_OPS_FUNCTION void clear_entry(OfEntry<O, false>&) {}

  template <class O>
  static TORCH_OPS_FUNCTION void take(As<'e'>, const typename O::Value& made, int u, int v, int64_t,
                                      Sums&, OfEntries& out) {
    typename O::Value& held = static_cast<OfEntry<O, true>&>(out).value[u][v];
    held = is_summed ? static_cast<typename O::Value>(held + made) : made;
  }
  template <class O>
  static TORCH_OPS_FUNCTION void take(As<'f'>, const typename O::Value& made, int u, int, int64_t,
                                      Sums&, OfEntries& out) {
    typename O::Value& held = static_cast<OfEntry<O, true>&>(out).value[u][0];
    held = static_cast<typename O::Value>(held + made);
  }
  template <class O>
  static TORCH_OPS_FUNCTION void take(As<'-'>, const typename O::Value&, int, int, int64_t, Sums&,
                                      OfEntries&) {}
  template <class O>
  static TORCH_OPS_FUNCTION void take(As<'r'>, const typename O::Value& made, int, int v,
                                      int64_t entry, Sums& sums, OfEntries&) {
    sums.template of<O>().add(v, made, entry);
  }

  template <class O, class Plan, class Lanes>
  static TORCH_OPS_FUNCTION void store_entry(As<'e'>, const Plan& plan, const Lanes& lanes,
                                             const Entries& entries, Number word, int width,
                                             OfEntries& out) {
    auto& held = static_cast<OfEntry<O, true>&>(out);
    if (sums_inner) {
      for (int u = 0; u < unroll; ++u) sum_vector<O>(held.value[u]);
      store_sums<O>(plan, lanes, entries, plan.kept_size, word, held);
      return;
    }
    for (int u = 0; u < unroll; ++u) {
      if (!entries.is_there[u]) continue;
      Vector<typename O::Stored, vector> stored;
      for (int v = 0; v < width; ++v) store_as(stored[v], held.value[u][v]);
      stored.store(
          plan.outs[O::number] + (int64_t(entries.entry[u]) * plan.kept_size + word * vector) *
                                     static_cast<int64_t>(sizeof(typename O::Stored)),
          width);
    }
  }
  // The words of a row are neighbours in a warp.
  template <class O, class Plan, class Lanes>
  static TORCH_OPS_FUNCTION void store_entry(As<'f'>, const Plan& plan, const Lanes& lanes,
                                             const Entries& entries, Number, int, OfEntries& out) {
    store_sums<O>(plan, lanes, entries, 1, 0, static_cast<OfEntry<O, true>&>(out));
  }
  // The first value becomes the sum of all.
  template <class O>
  static TORCH_OPS_FUNCTION void sum_vector(typename O::Value* values) {
    for (int step = 1; step < vector; step *= 2) {
      for (int v = 0; v + step < vector; v += 2 * step) {
        values[v] = static_cast<typename O::Value>(values[v] + values[v + step]);
      }
    }
  }
  // Neighbours have the features of an entry: they sum them, and one of them writes the sum.
  template <class O, class Plan, class Lanes>
  static TORCH_OPS_FUNCTION void store_sums(const Plan& plan, const Lanes& lanes,
                                            const Entries& entries, int64_t size, Number word,
                                            OfEntry<O, true>& held) {
    Number entry[unroll];
    for (int u = 0; u < unroll; ++u) entry[u] = entries.is_there[u] ? entries.entry[u] : -1;
    lanes.template sum_entries<together, sums_inner>(held.value, entry);
    auto* const to = reinterpret_cast<typename O::Stored*>(plan.outs[O::number]);
    for (int u = 0; u < unroll; ++u) {
      if (entry[u] >= 0) store_as(to[entry[u] * size + word], held.value[u][0]);
    }
  }
  template <class O, class Plan, class Lanes>
  static TORCH_OPS_FUNCTION void store_entry(As<'r'>, const Plan&, const Lanes&, const Entries&,
                                             int64_t, int, OfEntries&) {}
  template <class O, class Plan, class Lanes>
  static TORCH_OPS_FUNCTION void store_entry(As<'-'>, const Plan&, const Lanes&, const Entries&,
                                             int64_t, int, OfEntries&) {}

  // ---- the loop

  // The entries at the positions begin, begin + step, ... below end.
  template <class Plan, class Element, class Lanes>
  static TORCH_OPS_FUNCTION void run(const Plan& plan, const Element& element, const Lanes& lanes,
                                     Number row, Number word, Number begin, Number end, Number step,
                                     Sums& sums) {
    char* start[inputs ? inputs : 1];
    for (int k = 0; k < inputs; ++k) start[k] = plan.data[k];
    move_to<kept, !sums_inner, In...>(plan.kept, sums_inner ? word : word * vector, start);
    int width = sums_inner ? vector : width_of(plan.kept_size, word);
    AllLoaded loaded;
    if (!is_summed) Each{(load_fixed<In>(plan, start, row, width, loaded), 0)...};
    // Lanes share the entries, or the summed features.
    const Number first_summed = sums_inner ? lanes.lane() : 0;
    const Number summed_step = sums_inner ? lanes.count() : 1;
    const Number summed_end = summed_words(plan);
    if (!sums_inner) begin += lanes.lane() * step, step *= lanes.count();
    if (begin >= end) return;
    Entries next;
    read_entries(plan, row, begin, end, step, next);
#ifdef __CUDACC_RTC__
#pragma unroll 1
#endif
    for (Number position = begin; position < end; position += unroll * step) {
      const Entries entries = next;
      // Which rows the next entries read is known when the rows of these arrive. On CUDA a walk
      // over all entries is one round.
      if (unroll > 1 ? walk != 'e' : position + step < end) {
        read_entries(plan, row, position + unroll * step, end, step, next);
      }
      OfEntries of_entries;
      Each{(clear_entry<Out>(of_entries), 0)...};
      for (Number s = first_summed; s < summed_end; s += summed_step) {
        char* at[inputs ? inputs : 1];
        for (int k = 0; k < inputs; ++k) at[k] = start[k];
        if (is_summed) {
          move_to<summed, sums_inner, In...>(plan.summed, sums_inner ? s * vector : s, at);
          if (sums_inner) width = width_of(plan.summed_size, s);
          Each{(load_fixed<In>(plan, at, row, width, loaded), 0)...};
        }
#ifdef __CUDACC_RTC__
#pragma unroll
#endif
        for (int u = 0; u < unroll; ++u) {
          Each{(load_moving<In>(plan, at, entries, u, width, loaded), 0)...};
        }
#ifdef __CUDACC_RTC__
#pragma unroll
#endif
        for (int u = 0; u < unroll; ++u) {
          if (!entries.is_there[u] || !entries.has_rows[u]) continue;
          const int count = is_full ? vector : width;
#ifdef __CUDACC_RTC__
#pragma unroll
#else
#pragma GCC ivdep
#ifdef TORCH_OPS_NO_UNROLLING
#pragma GCC unroll 1
#endif
#endif
          for (int v = 0; v < count; ++v) {
            Variables<Out...> out;
            Each{(out.template of<Out>() = typename Out::Value(), 0)...};
            element(value<In>(loaded, u, v)..., out.template of<Out>()...,
                    static_cast<ptrdiff_t>(entries.entry[u]));
            Each{(take<Out>(As<Out::role>(), out.template of<Out>(), u, v, entries.entry[u], sums,
                            of_entries),
                  0)...};
          }
        }
      }
      Each{
          (store_entry<Out>(As<Out::role>(), plan, lanes, entries, word, width, of_entries), 0)...};
    }
  }

  // ---- rows

  template <class O, class Plan>
  static TORCH_OPS_FUNCTION void store(const Plan& plan, int64_t row, Number word, int64_t count,
                                       const Sums& sums) {
    const int width = sums_inner ? 1 : width_of(plan.kept_size, word);
    const int64_t at = wide_product(static_cast<Number>(row), static_cast<Number>(plan.kept_size)) +
                       (sums_inner ? word : word * vector);
    store_values<O>(As<O::role>(), plan, at, width, count, sums);
  }
  template <class O, class Plan>
  static TORCH_OPS_FUNCTION void store_values(As<'-'>, const Plan&, int64_t, int, int64_t,
                                              const Sums&) {}
  template <class O, class Plan>
  static TORCH_OPS_FUNCTION void store_values(As<'e'>, const Plan&, int64_t, int, int64_t,
                                              const Sums&) {}
  template <class O, class Plan>
  static TORCH_OPS_FUNCTION void store_values(As<'f'>, const Plan&, int64_t, int, int64_t,
                                              const Sums&) {}
  template <class O, class Plan>
  static TORCH_OPS_FUNCTION void store_values(As<'r'>, const Plan& plan, int64_t at, int width,
                                              int64_t count, const Sums& sums) {
    using Stored = typename O::Stored;
    const auto& made = sums.template of<O>();
    char* const to = plan.outs[O::number] + at * static_cast<int64_t>(sizeof(Stored));
    Vector<Stored, sums_inner ? 1 : vector> stored;
    for (int v = 0; v < (sums_inner ? 1 : is_full ? vector : width); ++v) {
      store_as(stored[v], finished<O>(As<O::kind == 'm' ? 'm' : '-'>(), made.value[v], count));
    }
    stored.store(to, width);
    store_winners<O>(As<O::is_best ? 'x' : '-'>(), plan, at, width, made);
  }
  template <class O>
  static TORCH_OPS_FUNCTION typename O::Value finished(As<'m'>, const typename O::Value& sum,
                                                       int64_t count) {
    return count > 0 ? Mean<typename O::Value>::of(sum, count) : sum;
  }
  template <class O>
  static TORCH_OPS_FUNCTION typename O::Value finished(As<'-'>, const typename O::Value& made,
                                                       int64_t) {
    return made;
  }
  template <class O, class Plan, class Made>
  static TORCH_OPS_FUNCTION void store_winners(As<'x'>, const Plan& plan, int64_t at, int width,
                                               const Made& made) {
    auto* const winners = reinterpret_cast<int64_t*>(plan.winners[O::number]);
    if (winners == nullptr) return;
    for (int v = 0; v < width; ++v) winners[at + v] = made.entry[v];
  }
  template <class O, class Plan, class Made>
  static TORCH_OPS_FUNCTION void store_winners(As<'-'>, const Plan&, int64_t, int, const Made&) {}

  // ---- long rows: the order of the entries is cut into tiles of `plan.most`, beyond which a row
  // is long. A tile then has parts of two long rows at most: that of its first entry and that of
  // its last one. What becomes of them is put into the slots 2 * tile and 2 * tile + 1, and joined.

  struct Part {
    Number row, begin, end;
    bool is_here;
  };
  template <class Plan>
  static TORCH_OPS_FUNCTION Number end_of_tile(const Plan& plan, Number first) {
    const Number left = static_cast<Number>(plan.positions) - first;
    return first + (left < plan.most ? left : static_cast<Number>(plan.most));
  }
  template <class Plan>
  static TORCH_OPS_FUNCTION Part part_of(const Plan& plan, Number slot) {
    const Number first = (slot >> 1) * static_cast<Number>(plan.most);
    const Number last = end_of_tile(plan, first);
    Part part;
    part.row = row_at(plan, slot & 1 ? last - 1 : first);
    part.begin = first_of(plan, part.row);
    part.end = first_of(plan, part.row + 1);
    part.is_here = part.end - part.begin > plan.most && !(slot & 1 && part.begin <= first);
    if (part.begin < first) part.begin = first;
    if (part.end > last) part.end = last;
    return part;
  }
  template <class Plan>
  static TORCH_OPS_FUNCTION Part row_part(const Plan& plan, Number row) {
    const Number begin = first_of(plan, row), end = first_of(plan, row + 1);
    return {row, begin, end, end - begin <= static_cast<Number>(plan.most)};
  }

  // A word of an item: of a slot, or, after these, of a row that is not long.
  template <class Plan, class Element, class Lanes>
  static TORCH_OPS_FUNCTION void reduce(const Plan& plan, const Element& element,
                                        const Lanes& lanes, Number item, Number word) {
    // Those of all tiles' first entries, which are most, before those of their last ones.
    const Number slots = static_cast<Number>(plan.slots), tiles = slots >> 1;
    const bool is_slot = item < slots;
    const Number slot = item < tiles ? 2 * item : 2 * (item - tiles) + 1;
    const Part part = is_slot ? part_of(plan, slot) : row_part(plan, item - slots);
    if (!part.is_here) return;
    Sums sums;
    sums.clear();
    run(plan, element, lanes, part.row, word, part.begin, part.end, 1, sums);
    if (sums_inner) sums.join_vectors();
    Each{(lanes.template join<sums_inner ? 1 : vector>(sums.template of<Out>()), 0)...};
    if (!lanes.is_first()) return;
    if (is_slot) {
      partials(plan)[wide_product(slot, kept_words(plan)) + word] = sums;
    } else {
      Each{(store<Out>(plan, part.row, word, part.end - part.begin, sums), 0)...};
    }
  }

  template <class Plan>
  static TORCH_OPS_FUNCTION Sums* partials(const Plan& plan) {
    static_assert(sizeof(Sums) <= Plan::partial_bytes, "what the host allocates for a part");
    return reinterpret_cast<Sums*>(plan.partials);
  }

  // The long row that begins in a tile; -1: none does.
  template <class Plan>
  static TORCH_OPS_FUNCTION Number long_row_of(const Plan& plan, Number tile) {
    const Number most = static_cast<Number>(plan.most), first = tile * most;
    const Number row = row_at(plan, end_of_tile(plan, first) - 1), begin = first_of(plan, row);
    return first_of(plan, row + 1) - begin > most && begin >= first ? row : -1;
  }
  // How many parts it has.
  template <class Plan>
  static TORCH_OPS_FUNCTION Number parts_of(const Plan& plan, Number tile, Number row) {
    return (first_of(plan, row + 1) - 1) / static_cast<Number>(plan.most) - tile + 1;
  }
  // Joins the parts number `from`, `from + step`... of it, and those of a warp's lanes.
  template <class Plan, class Lanes>
  static TORCH_OPS_FUNCTION Sums join_parts(const Plan& plan, Number tile, Number row, Number word,
                                            Number from, Number step, const Lanes& lanes) {
    // The row begins in the middle of its first tile, or there.
    const bool is_inside = first_of(plan, row) > tile * static_cast<Number>(plan.most);
    const Number count = parts_of(plan, tile, row), words = kept_words(plan);
    const Sums* const parts = partials(plan) + word;
    Sums sums;
    sums.clear();
#ifdef __CUDACC_RTC__
#pragma unroll 8
#endif
    for (Number part = from; part < count; part += step) {
      const Number slot = 2 * (tile + part) + (part == 0 && is_inside ? 1 : 0);
      sums.join(loaded_whole(parts + wide_product(slot, words)));
    }
    Each{(lanes.template join<sums_inner ? 1 : vector>(sums.template of<Out>()), 0)...};
    return sums;
  }
  template <class Plan>
  static TORCH_OPS_FUNCTION void store_joined(const Plan& plan, Number row, Number word,
                                              const Sums& sums) {
    const Number count = first_of(plan, row + 1) - first_of(plan, row);
    Each{(store<Out>(plan, row, word, count, sums), 0)...};
  }
};

}  // namespace torch_ops
