// The loops of a generated reduction on the CPU, over a range of (output, part) and then over one
// of outputs.
#pragma once
#include "reduce/reduce.h"
#include "rows.h"

namespace torch_ops {

template <class F, int kept, int reduced, class Out, class... In>
struct HostReduction : Reduction<F, kept, reduced, Out, In...> {
  using Base = Reduction<F, kept, reduced, Out, In...>;
  using Base::operands;
  using typename Base::Result;

  // Calls run(at, length) for each stretch of a part's elements along the innermost axis.
  template <class Plan, class Run>
  static TORCH_OPS_FUNCTION void walk(const Plan& plan, int64_t number, char* const* start,
                                      const Run& run) {
    int64_t first = number * plan.part;
    const int64_t last = Base::end_of_part(plan, first);
    const int64_t inner = reduced == 0 ? 1 : plan.reduced[0].size;
    int64_t left = inner - first % inner;  // of the stretch
    while (first < last) {
      char* at[operands];
      Base::find_element(plan, start, first, at);
      const int64_t length = left < last - first ? left : last - first;
      run(at, length);
      first += length;
      left = inner;
    }
  }

  template <class Plan>
  static TORCH_OPS_FUNCTION void finish(const Plan& plan, int64_t begin, int64_t end, const F& f) {
    for (; begin < end; ++begin) {
      char* at[operands];
      Base::find_output(plan, begin, at);
      // Two and two: the error of a sum grows with the logarithm of the number of parts.
      Result* const parts = plan.partials + begin * plan.parts;
      for (int64_t step = 1; step < plan.parts; step *= 2) {
        for (int64_t k = 0; k + step < plan.parts; k += 2 * step) {
          parts[k] = f.torch_ops_combine(parts[k], parts[k + step]);
        }
      }
      Base::store(f, at[0], parts[0]);
    }
  }

  // ---- outputs whose elements lie together ----

  static constexpr int lanes = 32;  // running results, so that a loop need not wait for each sum

  template <class Row>
  static TORCH_OPS_FUNCTION Result mapped(const F& f, const Row& row, int64_t element) {
    return f.torch_ops_map(load_as<typename In::Value>(row.template of<In>(element))...);
  }

  template <class Row>
  static TORCH_OPS_FUNCTION void add_row(const F& f, const Row& row, int64_t length,
                                         Result* running, int& filled) {
    int64_t j = 0;
    if (filled == 0 && length >= lanes) {
      for (; j < lanes; ++j) running[j] = mapped(f, row, j);
      filled = lanes;
    }
    for (; filled < lanes && j < length; ++j) running[filled++] = mapped(f, row, j);
    for (; j + lanes <= length; j += lanes) {
      for (int k = 0; k < lanes; ++k) {
        running[k] = f.torch_ops_combine(running[k], mapped(f, row, j + k));
      }
    }
    for (int k = 0; j + k < length; ++k) {
      running[k] = f.torch_ops_combine(running[k], mapped(f, row, j + k));
    }
  }

  // Elements of an operand that lie otherwise are copied, so that there is one loop to compile.
  static constexpr int64_t copied = 256;  // at a time; whole rounds of lanes
  template <class A>
  struct Copy {
    alignas(16) char bytes[copied * A::size];
  };
  struct Copies : Copy<In>... {};

  template <class A>
  static TORCH_OPS_FUNCTION char* neighbours(char* at, int64_t stride, int64_t count,
                                             Copy<A>& copy) {
    if (stride == A::size) return at;
    auto* const to = reinterpret_cast<typename A::Stored*>(copy.bytes);
    for (int64_t j = 0; j < count; ++j) {
      to[j] = *reinterpret_cast<const typename A::Stored*>(at + j * stride);
    }
    return copy.bytes;
  }

  // `count` of them from `begin` on, side by side where their running results are combined: each
  // waits for the one before.
  template <int count, class Plan>
  static TORCH_OPS_FUNCTION void some_rows(const Plan& plan, int64_t begin, bool is_flat,
                                           const F& f) {
    Result running[count][lanes], sums[count];
    char* start[count][operands];
    Copies copies;
    int filled = 0;
    const int64_t parts = count > 1 ? 1 : plan.parts;
    for (int r = 0; r < count; ++r) {
      Base::find_output(plan, (begin + r) / parts, start[r]);
      filled = 0;
      walk(plan, (begin + r) % parts, start[r], [&](char* const* at, int64_t length) {
        const int64_t* const strides = plan.reduced[0].strides;
        const int64_t most = is_flat ? length : copied;
        for (int64_t j = 0; j < length; j += most) {
          const int64_t some = length - j < most ? length - j : most;
          char* from[operands];
          Each{(from[In::number] = is_flat
                                       ? at[In::number]
                                       : neighbours<In>(at[In::number] + j * strides[In::number],
                                                        strides[In::number], some, copies),
                0)...};
          add_row(f, Rows<In...>(from), some, running[r], filled);
        }
      });
    }
    for (int r = 0; r < count; ++r) sums[r] = filled ? running[r][0] : f.torch_ops_empty();
    for (int k = 1; k < filled; ++k) {
      for (int r = 0; r < count; ++r) sums[r] = f.torch_ops_combine(sums[r], running[r][k]);
    }
    for (int r = 0; r < count; ++r) {
      if (parts == 1) {
        Base::store(f, start[r][0], sums[r]);
      } else {
        plan.partials[begin + r] = sums[r];
      }
    }
  }

  template <class Plan>
  static TORCH_OPS_FUNCTION void rows(const Plan& plan, int64_t begin, int64_t end, const F& f) {
    constexpr int side_by_side = 8;
    bool is_flat = true;
    if (reduced > 0) {
      Each{(is_flat &= plan.reduced[0].strides[In::number] == In::size, 0)...};
    }
    if (plan.parts == 1) {
      for (; begin + side_by_side <= end; begin += side_by_side) {
        some_rows<side_by_side>(plan, begin, is_flat, f);
      }
    }
    for (; begin < end; ++begin) some_rows<1>(plan, begin, is_flat, f);
  }

  // ---- outputs that lie together as their elements do ----
  //
  // Over a range of (strip, part), a strip being
  // up to `most` neighbouring outputs. So whole lines of memory are used, and a row is combined
  // with the results so far in one loop that the compiler vectorises.
  static constexpr int64_t most = 8192;
  static constexpr int64_t most_rows = 64;  // of which one result is made: sums round less

  // A row's element in a column.
  template <class A>
  static TORCH_OPS_FUNCTION typename A::Value value(char* const* row, const int64_t* strides,
                                                    int64_t column) {
    const int64_t stride = A::mode == 'c' ? A::size : A::mode == 'b' ? 0 : strides[A::number];
    return load_as<typename A::Value>(
        *reinterpret_cast<const typename A::Stored*>(row[A::number] + column * stride));
  }

  template <class Plan>
  static TORCH_OPS_FUNCTION void columns(const Plan& plan, int64_t begin, int64_t end, const F& f) {
    const int64_t row_size = plan.kept[0].size;
    const int64_t strips = (row_size + plan.width - 1) / plan.width;  // of a row
    for (; begin < end; ++begin) {
      const int64_t strip = begin / plan.parts, number = begin % plan.parts;
      const int64_t column = strip % strips * plan.width;
      const int64_t output = strip / strips * row_size + column;
      const int64_t columns = row_size - column < plan.width ? row_size - column : plan.width;
      char* start[operands];
      Base::find_output(plan, output, start);
      Result running[most], sums[most];
      int64_t rows = 0;  // in `running`
      bool begun = false;
      const auto flush = [&] {
        if (begun) {
          for (int64_t c = 0; c < columns; ++c) sums[c] = f.torch_ops_combine(sums[c], running[c]);
        } else {
          for (int64_t c = 0; c < columns; ++c) sums[c] = running[c];
        }
        begun = true;
        rows = 0;
      };
      walk(plan, number, start, [&](char* const* at, int64_t length) {
        for (int64_t j = 0; j < length; ++j) {
          char* row[operands];
          for (int k = 0; k < operands; ++k) row[k] = at[k] + j * plan.reduced[0].strides[k];
          const int64_t* const strides = plan.kept[0].strides;
          if (rows == 0) {
#pragma GCC ivdep
            for (int64_t c = 0; c < columns; ++c) {
              running[c] = f.torch_ops_map(value<In>(row, strides, c)...);
            }
          } else {
#pragma GCC ivdep
            for (int64_t c = 0; c < columns; ++c) {
              running[c] =
                  f.torch_ops_combine(running[c], f.torch_ops_map(value<In>(row, strides, c)...));
            }
          }
          if (++rows == most_rows) flush();
        }
      });
      if (rows > 0) flush();
      if (plan.parts == 1) {
        for (int64_t c = 0; c < columns; ++c) {
          Base::store(f, start[0] + c * plan.kept[0].strides[0], sums[c]);
        }
      } else {
        for (int64_t c = 0; c < columns; ++c) {
          plan.partials[(output + c) * plan.parts + number] = sums[c];
        }
      }
    }
  }
};

}  // namespace torch_ops
