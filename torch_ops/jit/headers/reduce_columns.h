// The loops of a generated reduction on CUDA of outputs that lie together as their elements do: the
// sum over the rows of a matrix.
//
// A thread has `vector` neighbouring outputs, loads a vector of each of its rows, several rows in
// flight, and combines in registers. `across` threads of a block stand side by side, so that they
// read a row's memory as it lies, and `lanes` of them one below the other, each with every
// `lanes`-th row; these are combined through shared memory. Blocks one below the other have a part
// of the rows each; their results, rows of a matrix as well, `finish` combines.
#pragma once
#include "reduce.h"
#include "vectors.h"

namespace torch_ops {

constexpr int column_threads = 256;  // a block at most; src/jit/reduction.cpp has it too

template <int vector, class F, int kept, int reduced, class Out, class... In>
struct ColumnReduction : Reduction<F, kept, reduced, Out, In...> {
  using Base = Reduction<F, kept, reduced, Out, In...>;
  using Base::operands;
  using typename Base::Result;

  // Rows of a thread whose loads, of single elements or of vectors, are in flight together.
  static constexpr int unroll = vector == 1 ? 8 : 4;
  // Is there another element for each row?
  template <class A>
  static constexpr bool moves = A::mode >= 'a';

  // The results of threads that have the same outputs become those of the first of them, for any
  // number of threads: `half` is the largest power of two below it.
  template <int width>
  static TORCH_OPS_FUNCTION void combine_lanes(const F& f, Result (*shared)[column_threads],
                                               int lane, int across, int half, int64_t valid) {
    for (int step = half; step > 0; step /= 2) {
      __syncthreads();
      if (lane < step && lane + step < valid) {
#pragma unroll
        for (int e = 0; e < width; ++e) {
          Result& mine = shared[e][threadIdx.x];
          mine = f.torch_ops_combine(mine, shared[e][threadIdx.x + step * across]);
        }
      }
    }
  }

  // A thread's way down its rows. Along one axis pointers step; along several each row's place is
  // computed.
  struct Way {
    char* start[operands];
    char* at[operands];
    int64_t steps[operands];

    template <class Plan>
    TORCH_OPS_FUNCTION void begin(const Plan& plan, int64_t row, int lanes) {
      Base::copy(at, start);
      if (reduced != 1) return;
      Each{(begin_one<In>(plan, row, lanes), 0)...};
    }
    template <class A, class Plan>
    TORCH_OPS_FUNCTION void begin_one(const Plan& plan, int64_t row, int lanes) {
      if (!moves<A>) return;
      at[A::number] += row * plan.reduced[0].strides[A::number];
      steps[A::number] = lanes * plan.reduced[0].strides[A::number];
    }
    template <class Plan, class Loaded>
    TORCH_OPS_FUNCTION void load(const Plan& plan, int64_t row, int u, Loaded& loaded) {
      if (reduced != 1) Base::find_element(plan, start, row, at);
      Each{(moves<In> ? loaded.template load<In>(u, at[In::number]) : void(), 0)...};
      if (reduced == 1)
        Each{(moves<In> ? void(at[In::number] += steps[In::number]) : void(), 0)...};
    }
  };

  // Loads rows from `row` on, and maps and combines each output's.
  template <int rows, class Plan, class Fixed>
  static TORCH_OPS_FUNCTION void add_rows(const Plan& plan, const F& f, int64_t row, int lanes,
                                          Way& way, Fixed& fixed, Result* sums, bool& begun) {
    Loaded<vector, rows, In...> loaded;
#pragma unroll
    for (int u = 0; u < rows; ++u) way.load(plan, row + u * lanes, u, loaded);
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
  static TORCH_OPS_FUNCTION void partial(const Plan& plan, const F& f) {
    __shared__ Result shared[vector][column_threads];
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
        Base::find_output(plan, word * vector, way.at);
        to = way.at[0];
        Loaded<vector, 1, In...> fixed;
        Each{(moves<In> ? void() : fixed.template load<In>(0, way.at[In::number]), 0)...};
        int64_t row = first + lane;
        way.begin(plan, row, lanes);
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
      combine_lanes<vector>(f, shared, lane, across, half, valid);
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
                                              Result (*shared)[column_threads], char* to) {
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
  static TORCH_OPS_FUNCTION void finish(const Plan& plan, const F& f) {
    __shared__ Result shared[1][column_threads];
    const int lanes = static_cast<int>(plan.finish_lanes), across = column_threads / lanes;
    const int half = lanes / 2;  // a power of two here
    const int lane = threadIdx.x / across, own = threadIdx.x % across;
    const int64_t valid = plan.parts < lanes ? plan.parts : lanes;
    for (int64_t block = int64_t(blockIdx.x) * across; block < plan.outputs;
         block += int64_t(gridDim.x) * across) {
      const int64_t output = block + own;
      const bool active = lane < valid && output < plan.outputs;
      Result sum{};
      if (active) {
        const Result* const parts = plan.partials + output;
        sum = parts[lane * plan.outputs];
#pragma unroll 8
        for (int64_t k = lane + lanes; k < plan.parts; k += lanes) {
          sum = f.torch_ops_combine(sum, parts[k * plan.outputs]);
        }
      }
      shared[0][threadIdx.x] = sum;
      combine_lanes<1>(f, shared, lane, across, half, valid);
      if (lane == 0 && active) {
        char* at[operands];
        Base::find_output(plan, output, at);
        Base::store(f, at[0], shared[0][threadIdx.x]);
      }
      __syncthreads();
    }
  }
};

}  // namespace torch_ops
