// Means and variances of the values of a row, in one pass.
#include <algorithm>

#include "common/cuda/launch.cuh"
#include "scatter/cuda/sorted/sorted_launch.cuh"

namespace torch_ops {
namespace {

// The mean of some numbers and the sum of their squared distances from it, by steps as in B. P.
// Welford, "Note on a method for calculating corrected sums of squares and products", 1962. The
// mean is counted from one of the numbers, for it would be rounded by more if they are large.
template <class Number>
struct Moment {
  Number origin;
  Number mean;
  Number squares;
  Number count;
};

template <int V, class Number>
struct Moments {
  static constexpr int kColumns = V;
  static constexpr int kBlocks = 4;
  using Part = Moment<Number>;
  using Options = MomentRule;
  Number origins[V], means[V], squares[V], count;

  __device__ __forceinline__ Moments() { clear_if(true); }

  template <class Value, class Place>
  static __device__ __forceinline__ Vector<Value, V> load(const Value* from, Place, Options) {
    return *reinterpret_cast<const Vector<Value, V>*>(from);
  }

  template <class Value>
  __device__ __forceinline__ void add(const Vector<Value, V>& more) {
    count += 1;
    const Number share = 1 / count;
#pragma unroll
    for (int v = 0; v < V; ++v) {
      const auto given = static_cast<Number>(more.values[v]);
      origins[v] = count == 1 ? given : origins[v];
      const Number value = given - origins[v], distance = value - means[v];
      means[v] += distance * share;
      squares[v] += distance * (value - means[v]);
    }
  }

  // T. F. Chan, G. H. Golub and R. J. LeVeque, "Algorithms for computing the sample variance",
  // 1983.
  __device__ __forceinline__ void add(const Part* more) {
    const Number before = count;
    count += more->count;
    const Number share = more->count / max(count, Number(1));
#pragma unroll
    for (int v = 0; v < V; ++v) {
      origins[v] = before == 0 ? more[v].origin : origins[v];
      const Number distance = more[v].origin - origins[v] + (more[v].mean - means[v]);
      means[v] += distance * share;
      squares[v] += more[v].squares + distance * (distance * (share * before));
    }
  }

  __device__ __forceinline__ void copy_to(Part* to) const {
#pragma unroll
    for (int v = 0; v < V; ++v) to[v] = {origins[v], means[v], squares[v], count};
  }

  __device__ __forceinline__ void clear_if(bool done) {
    count = done ? 0 : count;
#pragma unroll
    for (int v = 0; v < V; ++v) {
      origins[v] = done ? 0 : origins[v];
      means[v] = done ? 0 : means[v];
      squares[v] = done ? 0 : squares[v];
    }
  }

  __device__ __forceinline__ void write(Number* to, Options options) const {
    const auto freedom = max(count - static_cast<Number>(options.correction), Number(0));
    Vector<Number, V> result;
#pragma unroll
    for (int v = 0; v < V; ++v) {
      result.values[v] = options.is_mean ? origins[v] + means[v] : squares[v] / freedom;
    }
    store(to, result);
  }
};

}  // namespace

namespace kernels {

template <class Value>
void scatter_moment(OnCuda on, const ReduceCall<Value, ComputeType<Value>>& call, MomentRule rule,
                    const IndexErrorSite& errors) {
  using Number = ComputeType<Value>;
  const HostScope scope(on.program);
  const auto none = static_cast<Number>(rule.is_mean ? 0 : 0 / std::max(-rule.correction, 0.0));
  if (call.values_count() == 0 || call.result_count() == 0) return fill(call, none);
  with_shape(call.layout, [&](const auto& shape) {
    const auto entries = entries_in_order(call, shape, errors);
    constexpr int kWide = kVectorSize<Number>;
    with_columns<kWide>(call.values, call.layout.inner, [&](auto columns) {
      total_sorted<Moments<columns(), Number>>(call.values, call.result, shape, entries, rule,
                                               none);
    });
  });
}

#define INSTANTIATE_MOMENT(T)                                                            \
  template void scatter_moment(OnCuda, const ReduceCall<T, ComputeType<T>>&, MomentRule, \
                               const IndexErrorSite&);
TORCH_OPS_FOR_EACH_FLOAT(INSTANTIATE_MOMENT)

}  // namespace kernels
}  // namespace torch_ops
