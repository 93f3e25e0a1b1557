// The loops of a generated reduction on CUDA: of parts of the outputs' elements, and then of parts.
#pragma once
#include "reduce/reduce.h"
#include "vectors.h"

namespace torch_ops {

constexpr int threads = 256;  // a block at most; src/jit/reduction/reduction.cpp has it too

// A thread reads words of `vector` elements of its output, or has `vector` neighbouring outputs.
template <int vector, class F, int kept, int reduced, class Out, class... In>
struct CudaReduction : Reduction<F, kept, reduced, Out, In...> {
  using Base = Reduction<F, kept, reduced, Out, In...>;
  using Base::operands;
  using typename Base::Result;

  // The results of threads that have the same outputs, `across` apart, become those of the first of
  // them, for any number of threads: `half` is the largest power of two below it. `own` is where
  // this thread has its own.
  template <int width>
  static TORCH_OPS_FUNCTION void combine_lanes(const F& f, Result (*shared)[threads], int own,
                                               int lane, int across, int half, int64_t valid) {
    for (int step = half; step > 0; step /= 2) {
      __syncthreads();
      if (lane < step && lane + step < valid) {
#pragma unroll
        for (int e = 0; e < width; ++e) {
          Result& mine = shared[e][own];
          mine = f.torch_ops_combine(mine, shared[e][own + step * across]);
        }
      }
    }
  }

  // Combines the parts' results of each output; `lanes` is a power of two.
  template <class Plan>
  static TORCH_OPS_FUNCTION void finish_by(const Plan& plan, const F& f, int lanes, int across,
                                           int lane, int own, int64_t part_step,
                                           int64_t output_step) {
    __shared__ Result shared[1][threads];
    const int64_t valid = plan.parts < lanes ? plan.parts : lanes;
    for (int64_t block = int64_t(blockIdx.x) * across; block < plan.outputs;
         block += int64_t(gridDim.x) * across) {
      const int64_t output = block + own;
      const bool active = lane < valid && output < plan.outputs;
      Result sum{};
      if (active) {
        const Result* const parts = plan.partials + output * output_step;
        sum = parts[lane * part_step];
#pragma unroll 8
        for (int64_t k = lane + lanes; k < plan.parts; k += lanes) {
          sum = f.torch_ops_combine(sum, parts[k * part_step]);
        }
      }
      shared[0][threadIdx.x] = sum;
      combine_lanes<1>(f, shared, threadIdx.x, lane, across, lanes / 2, valid);
      if (lane == 0 && active) {
        char* at[operands];
        Base::find_output(plan, output, at);
        Base::store(f, at[0], shared[0][threadIdx.x]);
      }
      __syncthreads();
    }
  }

  // ---- outputs whose elements lie together: the lanes of an output walk along them ----

  // Loads of a thread in flight: of single elements, and of words of up to 16 bytes.
  static constexpr int row_unroll = 16, word_unroll = 4;

  // A word of an operand. Elements of mode 's' are apart, or not aligned.
  template <class A, class Plan, class Words>
  static TORCH_OPS_FUNCTION void load(const Plan& plan, Words& words, int u, char* const* at) {
    const char* from = at[A::number];
    if (A::mode != 's') {
      words.template load<A>(u, from);
    } else {
#pragma unroll
      for (int e = 0; e < vector; ++e) {
        words.template at<A>(u, e) = *reinterpret_cast<const typename A::Stored*>(from);
        from += plan.reduced[0].strides[A::number];
      }
    }
  }

  // Adds words to a result, if `begun`: every `lanes`-th one, several of them in flight.
  template <class Plan>
  static TORCH_OPS_FUNCTION void add_words(const Plan& plan, const F& f, char* const* start,
                                           int64_t word, int64_t end, int lanes, Result& sum,
                                           bool& begun) {
    for (; word < end; word += word_unroll * lanes) {
      Loaded<vector, word_unroll, In...> loaded;
#pragma unroll
      for (int u = 0; u < word_unroll; ++u) {
        if (word + u * lanes < end) {
          char* at[operands];
          Base::find_element(plan, start, (word + u * lanes) * vector, at);
          Each{(load<In>(plan, loaded, u, at), 0)...};
        }
      }
#pragma unroll
      for (int u = 0; u < word_unroll; ++u) {
        if (word + u * lanes < end) {
#pragma unroll
          for (int e = 0; e < vector; ++e) {
            const Result value = f.torch_ops_map(loaded.template value<In>(u, e)...);
            sum = begun ? f.torch_ops_combine(sum, value) : value;
            begun = true;
          }
        }
      }
    }
  }

  // total(start, first, last, lane, lanes, valid) is a lane's result of the elements of a row, of
  // which the first `valid` lanes have one.
  template <class Plan, class Total>
  static TORCH_OPS_FUNCTION void reduce_rows(const Plan& plan, const F& f, const Total& total) {
    __shared__ Result shared[1][threads];
    const int lanes = static_cast<int>(plan.lanes), thread = threadIdx.x;
    const int per_block = threads / lanes;
    const int lane = thread % lanes, own = thread / lanes;
    const int64_t first = int64_t(blockIdx.y) * plan.part;
    const int64_t last = Base::end_of_part(plan, first);
    for (int64_t block = int64_t(blockIdx.x) * per_block; block < plan.outputs;
         block += int64_t(gridDim.x) * per_block) {
      const int64_t output = block + own;
      int64_t valid = last - first;
      char* start[operands];
      Result sum{};
      if (output < plan.outputs) {
        Base::find_output(plan, output, start);
        sum = total(start, first, last, lane, lanes, valid);
      }
      shared[0][thread] = sum;
      // own * lanes + lane is `thread`; with that some types' sums take twice the registers.
      combine_lanes<1>(f, shared, own * lanes + lane, lane, 1, lanes / 2, valid);
      if (lane == 0 && output < plan.outputs) {
        if (plan.parts == 1) {
          Base::store(f, start[0], shared[0][own * lanes]);
        } else {
          plan.partials[output * plan.parts + blockIdx.y] = shared[0][own * lanes];
        }
      }
      __syncthreads();
    }
  }

  template <class Plan>
  static TORCH_OPS_FUNCTION void rows(const Plan& plan, const F& f) {
    reduce_rows(plan, f,
                [&](char* const* start, int64_t first, int64_t last, int lane, int lanes,
                    int64_t&) -> Result {
                  const auto read = [&](int64_t element) -> Result {
                    char* at[operands];
                    Base::find_element(plan, start, element, at);
                    return f.torch_ops_map(load_as<typename In::Value>(
                        *reinterpret_cast<const typename In::Stored*>(at[In::number]))...);
                  };
                  int64_t element = first + lane;
                  if (element >= last) return f.torch_ops_empty();
                  Result sum = read(element);
                  element += lanes;
                  for (; element + (row_unroll - 1) * lanes < last; element += row_unroll * lanes) {
                    Result several[row_unroll];
#pragma unroll
                    for (int k = 0; k < row_unroll; ++k) several[k] = read(element + k * lanes);
#pragma unroll
                    for (int k = 0; k < row_unroll; ++k) sum = f.torch_ops_combine(sum, several[k]);
                  }
                  for (; element < last; element += lanes)
                    sum = f.torch_ops_combine(sum, read(element));
                  return sum;
                });
  }

  // The same of rows that are whole words.
  template <class Plan>
  static TORCH_OPS_FUNCTION void word_rows(const Plan& plan, const F& f) {
    reduce_rows(plan, f,
                [&](char* const* start, int64_t first, int64_t last, int lane, int lanes,
                    int64_t& valid) -> Result {
                  Result sum{};
                  bool begun = false;
                  const int64_t word = first / vector, end = last / vector;
                  valid = end - word;
                  add_words(plan, f, start, word + lane, end, lanes, sum, begun);
                  return begun ? sum : f.torch_ops_empty();
                });
  }

  // Elements of an operand before its first word.
  template <class A>
  static TORCH_OPS_FUNCTION int before_words(const char* at) {
    return static_cast<int>(-(reinterpret_cast<int64_t>(at) / A::size) & (vector - 1));
  }

  // The same of rows along one axis that begin or end within words: those of the operands of mode
  // 'c', whose words begin at the same elements of a row. What stands before and after the words is
  // read one by one.
  template <class Plan>
  static TORCH_OPS_FUNCTION void ragged_rows(const Plan& plan, const F& f) {
    reduce_rows(
        plan, f,
        [&](char* const* start, int64_t first, int64_t last, int lane, int lanes,
            int64_t& valid) -> Result {
          char* at[operands];
          Base::find_element(plan, start, first, at);
          const int64_t length = last - first;
          int before = 0;
          Each{(before = In::mode == 'c' ? before_words<In>(at[In::number]) : before, 0)...};
          if (before > length) before = static_cast<int>(length);
          const int64_t words = (length - before) / vector;
          const int ends = static_cast<int>(length - words * vector);
          const auto read = [&](int end) -> Result {
            char* to[operands];
            Base::find_element(plan, at, end < before ? end : end + words * vector, to);
            return f.torch_ops_map(load_as<typename In::Value>(
                *reinterpret_cast<const typename In::Stored*>(to[In::number]))...);
          };
          Result sum{};
          bool begun = false;
          for (int end = lane; end < ends; end += lanes) {
            sum = begun ? f.torch_ops_combine(sum, read(end)) : read(end);
            begun = true;
          }
          valid = words > ends ? words : ends;
          Base::find_element(plan, at, before, at);
          add_words(plan, f, at, lane, words, lanes, sum, begun);
          return begun ? sum : f.torch_ops_empty();
        });
  }

  template <class Plan>
  static TORCH_OPS_FUNCTION void finish_rows(const Plan& plan, const F& f) {
    finish_by(plan, f, threads, 1, threadIdx.x, 0, 1, plan.parts);
  }

  // ---- outputs that lie together as their elements do: the sum over the rows of a matrix ----
  //
  // A thread has `vector` neighbouring outputs, loads a vector of each of its rows, several rows in
  // flight, and combines in registers. `across` threads of a block stand side by side, so that they
  // read a row's memory as it lies, and `lanes` of them one below the other, each with every
  // `lanes`-th row; these are combined through shared memory. Blocks one below the other have a
  // part of the rows each; their results, rows of a matrix as well, `finish` combines. Rows of a
  // thread whose loads, of single elements or of vectors, are in flight together.
  static constexpr int unroll = vector == 1 ? 8 : 4;
  // Is there another element for each row?
  template <class A>
  static constexpr bool moves = A::mode >= 'a';

  // A thread's way down its rows. Along one axis pointers step; along several each row's place is
  // computed.
  struct Way {
    char *start[operands], *at[operands];
    int64_t steps[operands];
  };

  // Loads rows from `row` on, and maps and combines each output's.
  template <int rows, class Plan, class Fixed>
  static TORCH_OPS_FUNCTION void add_rows(const Plan& plan, const F& f, int64_t row, int lanes,
                                          Way& way, Fixed& fixed, Result* sums, bool& begun) {
    Loaded<vector, rows, In...> loaded;
#pragma unroll
    for (int u = 0; u < rows; ++u) {
      if (reduced != 1) Base::find_element(plan, way.start, row + u * lanes, way.at);
      Each{(moves<In> ? loaded.template load<In>(u, way.at[In::number]) : void(), 0)...};
#pragma unroll
      for (int k = 0; reduced == 1 && k < operands; ++k) way.at[k] += way.steps[k];
    }
#pragma unroll
    for (int e = 0; e < vector; ++e) {
      Result several[rows];
#pragma unroll
      for (int u = 0; u < rows; ++u) {
        several[u] = f.torch_ops_map(
            (moves<In> ? loaded.template value<In>(u, e) : fixed.template value<In>(0, e))...);
      }
#pragma unroll
      for (int s = 1; s < rows; s *= 2) {
#pragma unroll
        for (int u = 0; u + s < rows; u += 2 * s) {
          several[u] = f.torch_ops_combine(several[u], several[u + s]);
        }
      }
      sums[e] = begun ? f.torch_ops_combine(sums[e], several[0]) : several[0];
    }
    begun = true;
  }

  template <class Plan>
  static TORCH_OPS_FUNCTION void columns(const Plan& plan, const F& f) {
    __shared__ Result shared[vector][threads];
    const int across = static_cast<int>(plan.across), lanes = static_cast<int>(plan.lanes);
    const int half = static_cast<int>(plan.half);
    const int lane = threadIdx.x / across, own = threadIdx.x % across;
    const int64_t first = int64_t(blockIdx.y) * plan.part;
    const int64_t last = Base::end_of_part(plan, first);
    const int64_t valid = last - first < lanes ? last - first : lanes;
    const int64_t words = plan.outputs / vector;
    for (int64_t block = int64_t(blockIdx.x) * across; block < words;
         block += int64_t(gridDim.x) * across) {
      const int64_t word = block + own;
      const bool active = lane < lanes && word < words;
      char* to = nullptr;
      Result sums[vector];
      bool begun = false;
      if (active) {
        Way way;
        Base::find_output(plan, word * vector, way.start);
        to = way.start[0];
        Loaded<vector, 1, In...> fixed;
        Each{(moves<In> ? void() : fixed.template load<In>(0, way.start[In::number]), 0)...};
        int64_t row = first + lane;
        Base::find_element(plan, way.start, row, way.at);
#pragma unroll
        for (int k = 0; k < operands; ++k) way.steps[k] = lanes * plan.reduced[0].strides[k];
        for (; row + (unroll - 1) * lanes < last; row += unroll * lanes) {
          add_rows<unroll>(plan, f, row, lanes, way, fixed, sums, begun);
        }
        for (; row < last; row += lanes) {
          add_rows<1>(plan, f, row, lanes, way, fixed, sums, begun);
        }
      }
#pragma unroll
      for (int e = 0; e < vector; ++e) {
        shared[e][threadIdx.x] = begun ? sums[e] : f.torch_ops_empty();
      }
      combine_lanes<vector>(f, shared, threadIdx.x, lane, across, half, valid);
      if (lane == 0 && active) {
        if (plan.parts == 1) {
          store_vector(plan, f, shared, to);
        } else {
          Vector<Result, vector> part;
#pragma unroll
          for (int e = 0; e < vector; ++e) part[e] = shared[e][threadIdx.x];
          part.store(
              reinterpret_cast<char*>(plan.partials + blockIdx.y * plan.outputs + word * vector));
        }
      }
      __syncthreads();
    }
  }

  template <class Plan>
  static TORCH_OPS_FUNCTION void store_vector(const Plan& plan, const F& f,
                                              Result (*shared)[threads], char* to) {
    if (Out::mode == 'c') {
      Vector<typename Out::Stored, vector> results;
#pragma unroll
      for (int e = 0; e < vector; ++e) {
        Base::store(f, reinterpret_cast<char*>(&results[e]), shared[e][threadIdx.x]);
      }
      results.store(to);
    } else {
      for (int e = 0; e < vector; ++e) {
        Base::store(f, to + e * plan.kept[0].strides[0], shared[e][threadIdx.x]);
      }
    }
  }

  template <class Plan>
  static TORCH_OPS_FUNCTION void finish_columns(const Plan& plan, const F& f) {
    const int lanes = static_cast<int>(plan.finish_lanes), across = threads / lanes;
    const int lane = threadIdx.x / across, own = threadIdx.x % across;
    finish_by(plan, f, lanes, across, lane, own, plan.outputs, 1);
  }
};

}  // namespace torch_ops
