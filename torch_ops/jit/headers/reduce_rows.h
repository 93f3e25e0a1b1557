// The loops of a generated reduction on CUDA of outputs whose elements lie together: the lanes of
// an output walk along them.
#pragma once
#include "reduce.h"
#include "vectors.h"

namespace torch_ops {

constexpr int row_threads = 256;  // a block; src/jit/reduction.cpp has it too
// Loads of a thread in flight: of single elements, and of words of up to 16 bytes.
constexpr int row_unroll = 16, wide_unroll = 4;

template <class F, int kept, int reduced, class Out, class... In>
struct RowReduction : Reduction<F, kept, reduced, Out, In...> {
  using Base = Reduction<F, kept, reduced, Out, In...>;
  using Base::operands;
  using typename Base::Result;

  // Elements of a word: as many as 16 bytes hold of the smallest type, at most 8.
  static TORCH_OPS_FUNCTION constexpr int count_vector() {
    int64_t smallest = 16;
    for (const int64_t size : {int64_t{16}, In::size...})
      smallest = size < smallest ? size : smallest;
    return smallest == 1 ? 8 : static_cast<int>(16 / smallest);
  }
  static constexpr int vector = count_vector();

  // Are elements neighbours, and aligned for words of several?
  template <class A, class Plan>
  static TORCH_OPS_FUNCTION bool lies_in_words(const Plan& plan, char* const* start) {
    constexpr int64_t word = vector * A::size < 16 ? vector * A::size : 16;
    int64_t places = reinterpret_cast<int64_t>(start[A::number]);
#pragma unroll
    for (int d = 1; d < reduced; ++d) places |= plan.reduced[d].strides[A::number];
    return plan.reduced[0].strides[A::number] == A::size && places % word == 0;
  }

  // The results of a group of threads, in shared memory, become that of its first one.
  static TORCH_OPS_FUNCTION void combine_lanes(const F& f, Result* shared, int base, int lane,
                                               int lanes, int64_t valid) {
    for (int step = lanes / 2; step > 0; step /= 2) {
      __syncthreads();
      if (lane < step && lane + step < valid) {
        shared[base + lane] = f.torch_ops_combine(shared[base + lane], shared[base + lane + step]);
      }
    }
    __syncthreads();
  }

  template <class Plan>
  static TORCH_OPS_FUNCTION void partial(const Plan& plan, const F& f) {
    __shared__ Result shared[row_threads];
    const int lanes = static_cast<int>(plan.lanes), thread = threadIdx.x;
    const int per_block = row_threads / lanes;
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
        const auto read = [&](int64_t element) -> Result {
          char* at[operands];
          Base::find_element(plan, start, element, at);
          return f.torch_ops_map(load_as<typename In::Value>(element_at<In>(at[In::number]))...);
        };
        int64_t element = first + lane;
        bool is_wide = reduced > 0 && vector > 1 && sizeof...(In) > 0 &&
                       (first | last | plan.reduced[0].size) % vector == 0;
        Each{(is_wide = is_wide && lies_in_words<In>(plan, start), 0)...};
        if (is_wide) {
          // Neighbouring elements in words, several of them in flight.
          element = first / vector + lane;
          const int64_t end = last / vector;
          valid = end - first / vector;
          bool begun = false;
          for (; element < end; element += wide_unroll * lanes) {
            Loaded<vector, wide_unroll, In...> loaded;
#pragma unroll
            for (int u = 0; u < wide_unroll; ++u) {
              const int64_t word = element + u * lanes;
              if (word < end) {
                char* at[operands];
                Base::find_element(plan, start, word * vector, at);
                Each{(loaded.template load<In>(u, at[In::number]), 0)...};
              }
            }
#pragma unroll
            for (int u = 0; u < wide_unroll; ++u) {
              if (element + u * lanes < end) {
#pragma unroll
                for (int e = 0; e < vector; ++e) {
                  const Result value = f.torch_ops_map(loaded.template value<In>(u, e)...);
                  sum = begun ? f.torch_ops_combine(sum, value) : value;
                  begun = true;
                }
              }
            }
          }
          if (!begun) sum = f.torch_ops_empty();
        } else {
          if (element < last) {
            sum = read(element);
            element += lanes;
          } else {
            sum = f.torch_ops_empty();
          }
          for (; element + (row_unroll - 1) * lanes < last; element += row_unroll * lanes) {
            Result several[row_unroll];
#pragma unroll
            for (int k = 0; k < row_unroll; ++k) several[k] = read(element + k * lanes);
#pragma unroll
            for (int k = 0; k < row_unroll; ++k) sum = f.torch_ops_combine(sum, several[k]);
          }
          for (; element < last; element += lanes) sum = f.torch_ops_combine(sum, read(element));
        }
      }
      shared[thread] = sum;
      combine_lanes(f, shared, own * lanes, lane, lanes, valid);
      if (lane == 0 && output < plan.outputs) {
        if (plan.parts == 1) {
          Base::store(f, start[0], shared[own * lanes]);
        } else {
          plan.partials[output * plan.parts + blockIdx.y] = shared[own * lanes];
        }
      }
      __syncthreads();
    }
  }

  template <class Plan>
  static TORCH_OPS_FUNCTION void finish(const Plan& plan, const F& f) {
    __shared__ Result shared[row_threads];
    constexpr int lanes = row_threads;
    const int lane = threadIdx.x;
    const int64_t valid = plan.parts;
    for (int64_t output = blockIdx.x; output < plan.outputs; output += gridDim.x) {
      const Result* const parts = plan.partials + output * plan.parts;
      Result sum{};
      if (lane < valid) sum = parts[lane];
      for (int64_t k = lane + lanes; k < valid; k += lanes) {
        sum = f.torch_ops_combine(sum, parts[k]);
      }
      shared[lane] = sum;
      combine_lanes(f, shared, 0, lane, lanes, valid);
      if (lane == 0) {
        char* at[operands];
        Base::find_output(plan, output, at);
        Base::store(f, at[0], shared[0]);
      }
      __syncthreads();
    }
  }
};

}  // namespace torch_ops
