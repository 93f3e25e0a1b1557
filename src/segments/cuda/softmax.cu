// Steps of a softmax over segments: a lane has V columns of some entries.
#include <algorithm>
#include <type_traits>

#include "common/cuda/launch.cuh"
#include "common/cuda/vectorized.cuh"
#include "common/indexing/index_view.cuh"
#include "common/layout/row_grid.cuh"
#include "segments/softmax_formulas.h"
#include "segments/softmax_launch.h"

namespace torch_ops {
namespace {

constexpr int kUnroll = 2;  // words of a lane, a block apart, whose loads do not wait

template <int V, SoftmaxStep kStep, class Value>
__global__ void step_kernel(const __grid_constant__ SoftmaxCall<kStep, Value> call,
                            const __grid_constant__ RowGrid grid) {
  constexpr int K = kUnroll;
  constexpr SoftmaxFormula<kStep> formula;
  constexpr bool kHasB = reads_b(kStep), kHasQ = reads_q(kStep);
  using Number = ComputeType<Value>;
  using Out = typename SoftmaxCall<kStep, Value>::Out;
  using Values = Vector<Value, V>;
  using Numbers = Vector<Number, V>;
  const RowLayout& layout = call.layout;
  const IndexView index{call.index};
  for (int64_t number = blockIdx.y; number < grid.chunks; number += gridDim.y) {
    const RowGrid::Chunk chunk = grid.chunk(number);
    const uint32_t first = blockIdx.x * (blockDim.x * K) + threadIdx.x;
    if (first >= chunk.words) continue;
    int64_t at_entry[K], entries[K], own[K], rows[K];
    Values a[K], b[K];
#pragma unroll
    for (int k = 0; k < K; ++k) {
      // Beyond the end the last word is computed again.
      const auto at = grid.place(chunk, min(first + k * blockDim.x, chunk.words - 1));
      const int64_t slab = chunk.slab + at.slab;
      int64_t batch, slice;
      grid.split_slab(slab, batch, slice);
      at_entry[k] = batch * layout.index_batch_stride + at.entry * layout.index_entry_stride;
      own[k] = (slab * layout.entries + at.entry) * layout.inner + at.column * V;
      rows[k] = slab * layout.axis_size * layout.inner + at.column * V;
      a[k] = *reinterpret_cast<const Values*>(call.a + own[k]);
      if constexpr (kHasB) b[k] = *reinterpret_cast<const Values*>(call.b + own[k]);
    }
    index.load(at_entry, entries);
#pragma unroll
    for (int k = 0; k < K; ++k) {
      const bool good = in_range(entries[k], layout.axis_size);
      const int64_t row = rows[k] + (good ? entries[k] : 0) * layout.inner;
      Numbers p{}, q{};
      if (good) p = *reinterpret_cast<const Numbers*>(call.p + row);
      if (kHasQ && good) q = *reinterpret_cast<const Numbers*>(call.q + row);
      Vector<Out, V> result;
#pragma unroll
      for (int v = 0; v < V; ++v) {
        const Number other = kHasB ? static_cast<Number>(b[k].values[v]) : Number(0);
        const Number number =
            formula(static_cast<Number>(a[k].values[v]), other, p.values[v], q.values[v]);
        result.values[v] = static_cast<Out>(good ? number : Number(0));
      }
      store(call.out + own[k], result);
    }
  }
}

}  // namespace

namespace kernels {

template <SoftmaxStep kStep, class Value>
void softmax_step(OnCuda on, const SoftmaxCall<kStep, Value>& given) {
  const HostScope scope(on.program);
  const RowLayout& layout = given.layout;
  if (layout.slabs() * layout.entries * layout.inner == 0) return;
  const auto launch = [&](auto columns) {
    constexpr int V = columns();
    // Rows of more than 2^30 words are computed in parts.
    for (int64_t column = 0; column < layout.inner; column += RowGrid::kMaxChunk) {
      auto call = given;
      call.a += column;
      call.b += column;
      call.p += column;
      call.q += column;
      call.out += column;
      const int64_t words = std::min(layout.inner - column, RowGrid::kMaxChunk) / V;
      const RowGrid grid(layout.batch, layout.outer, layout.entries, words);
      const dim3 blocks(grid_x(grid.chunk_words(), kThreads * kUnroll), grid_y(grid.chunks));
      auto* kernel = step_kernel<V, kStep, Value>;
      TORCH_OPS_LAUNCH(kernel, blocks, kThreads, 0, call, grid);
    }
  };
  constexpr int kWide = kVectorSize<ComputeType<Value>>;
  const bool whole = layout.inner % kWide == 0 && is_aligned(given.a, kWide * sizeof(Value)) &&
                     is_aligned(given.b, kWide * sizeof(Value)) &&
                     is_aligned(given.p, kVectorBytes) && is_aligned(given.q, kVectorBytes);
  whole ? launch(std::integral_constant<int, kWide>()) : launch(std::integral_constant<int, 1>());
}

#define INSTANTIATE_STEP(STEP, T) \
  template void softmax_step(OnCuda, const SoftmaxCall<SoftmaxStep::STEP, T>&);
TORCH_OPS_FOR_EACH_FLOAT(TORCH_OPS_SOFTMAX_STEPS)

}  // namespace kernels
}  // namespace torch_ops
