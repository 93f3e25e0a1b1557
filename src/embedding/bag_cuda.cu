#include "common/cuda/launch.cuh"
#include "common/cuda/vectorized.cuh"
#include "common/host/float16.h"
#include "common/indexing/index_error.cuh"
#include "common/indexing/index_view.cuh"
#include "common/indexing/row_layout.h"
#include "embedding/bag_launch.h"

namespace torch_ops::kernels {
namespace {

constexpr int kBagUnroll = 4;  // rows that a thread reads at a time

// `lanes` threads, a power of two up to a warp, sum a bag: V columns each at a time.
template <int V, class Value>
__global__ void bag_kernel(const __grid_constant__ BagCall<Value> call, IndexView entries,
                           int lanes, const __grid_constant__ IndexErrorSite errors) {
  using Sum = ComputeType<Value>;
  const int64_t teams = static_cast<int64_t>(gridDim.x) * (blockDim.x / lanes);
  const int lane = static_cast<int>(threadIdx.x) % lanes;
  const int64_t team =
      static_cast<int64_t>(blockIdx.x) * (blockDim.x / lanes) + threadIdx.x / lanes;
  for (int64_t bag = team; bag < call.bags; bag += teams) {
    const int64_t begin = call.begin(bag), end = call.begin(bag + 1);
    // Of a width of 0 nothing is summed, but entries are checked.
    for (int64_t column = lane * V; column < max(call.width, int64_t{1}); column += lanes * V) {
      Sum sums[V] = {};
      int64_t kept = 0;
      for (int64_t first = begin; first < end; first += kBagUnroll) {
        int64_t picks[kBagUnroll];
        Sum factors[kBagUnroll];
        Vector<Value, V> rows[kBagUnroll];
#pragma unroll
        for (int k = 0; k < kBagUnroll; ++k) {
          const int64_t n = min(first + k, end - 1);
          picks[k] = entries[n];
          const bool there = in_range(picks[k], call.rows);
          if (!there && first + k < end) record_bad_entry(errors, n, picks[k]);
          const bool counts = there && picks[k] != call.padding && first + k < end;
          kept += counts;
          factors[k] = !counts                   ? Sum(0)
                       : call.factors == nullptr ? Sum(1)
                                                 : static_cast<Sum>(call.factors[n]);
          picks[k] = counts && call.width > 0 ? picks[k] : -1;
        }
#pragma unroll
        for (int k = 0; k < kBagUnroll; ++k) {
          if (picks[k] < 0) continue;
          rows[k] = *reinterpret_cast<const Vector<Value, V>*>(call.weight + picks[k] * call.width +
                                                               column);
        }
#pragma unroll
        for (int k = 0; k < kBagUnroll; ++k) {
          if (picks[k] < 0) continue;
#pragma unroll
          for (int v = 0; v < V; ++v) sums[v] += factors[k] * static_cast<Sum>(rows[k].values[v]);
        }
      }
      if (call.width == 0) break;
      const Sum divisor = call.mean && kept > 0 ? static_cast<Sum>(kept) : Sum(1);
      Vector<Value, V> result;
#pragma unroll
      for (int v = 0; v < V; ++v) result.values[v] = static_cast<Value>(sums[v] / divisor);
      store(call.result + bag * call.width + column, result);
    }
  }
}

template <int V, class Value>
void launch(const BagCall<Value>& call, const IndexErrorSite& errors) {
  int lanes = 1;
  while (lanes < 32 && lanes * V < call.width) lanes *= 2;
  TORCH_OPS_LAUNCH((bag_kernel<V, Value>), grid_x(call.bags, kThreads / lanes), kThreads, 0, call,
                   IndexView{call.entries}, lanes, errors);
}

}  // namespace

template <class Value>
void sum_bags(OnCuda on, const BagCall<Value>& call, const IndexErrorSite& errors) {
  const HostScope scope(on.program);
  if (call.bags == 0) return;
  constexpr int V = kVectorSize<Value>;
  const bool vectors = call.width > 0 && call.width % V == 0 &&
                       is_aligned(call.weight, kVectorBytes) &&
                       is_aligned(call.result, kVectorBytes);
  vectors ? launch<V>(call, errors) : launch<1>(call, errors);
}

#define INSTANTIATE(Value) \
  template void sum_bags(OnCuda, const BagCall<Value>&, const IndexErrorSite&);
TORCH_OPS_FOR_EACH_FLOAT(INSTANTIATE)

}  // namespace torch_ops::kernels
