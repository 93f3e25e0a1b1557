// Steps of a softmax over segments, on the CPU.
#include <algorithm>
#include <type_traits>

#include "common/elementwise/elementwise_cpu.h"
#include "scatter/cpu/sum_loops.h"
#include "segments/softmax_formulas.h"
#include "segments/softmax_launch.h"

namespace torch_ops {
namespace {

constexpr int64_t kLongRow = 128;  // values of a row that has its own loop

// Of n values that follow each other; p and q are those of their rows.
template <SoftmaxStep kStep, class Value, class Out, class Number>
void step_values(Simd simd, const Value* a, const Value* b, const Number* p, const Number* q,
                 int64_t n, Out* out) {
  constexpr SoftmaxFormula<kStep> formula;
  if constexpr (std::is_same_v<Value, Number>) {
    map_range(simd, formula, 0, n, out, a, b, p, q);
  } else {
    Number wide_a[kPiece], wide_b[kPiece], result[kPiece];
    for (int64_t i = 0; i < n; i += kPiece) {
      const int64_t m = std::min(kPiece, n - i);
      widen_values(simd, a + i, m, wide_a);
      if (reads_b(kStep)) widen_values(simd, b + i, m, wide_b);
      map_range(simd, formula, 0, m, result, wide_a, reads_b(kStep) ? wide_b : wide_a, p + i,
                q + i);
      store_sums(simd, result, m, out + i);
    }
  }
}

// The entries [begin, end) of all slabs.
template <SoftmaxStep kStep, class Value, class Index>
void step_range(Simd simd, const SoftmaxCall<kStep, Value>& call, const Index* index, int64_t begin,
                int64_t end) {
  using Number = ComputeType<Value>;
  using Out = typename SoftmaxCall<kStep, Value>::Out;
  const RowLayout& layout = call.layout;
  const int64_t inner = layout.inner;
  const bool is_long = inner >= kLongRow;
  const int64_t most = is_long ? 1 : kPiece / inner;  // entries at a time
  Number p[kPiece], q[kPiece];
  // Calls use(k, row, table) for the entries n + k: the row that it names, and where its slab's
  // rows begin.
  const auto for_each_entry = [&](int64_t n, int64_t count, auto use) {
    int64_t slab = n / layout.entries, place = n - slab * layout.entries;
    for (int64_t k = 0; k < count; ++slab, place = 0) {
      const Index* entries = index + slab / layout.outer * layout.index_batch_stride;
      const int64_t last = std::min(count, k + layout.entries - place);
      for (; k < last; ++k, ++place) {
        use(k, static_cast<int64_t>(entries[place * layout.index_entry_stride]),
            slab * layout.axis_size * inner);
      }
    }
  };
  for (int64_t n = begin, count; n < end; n += count) {
    count = std::min(most, end - n);
    const Number *own_p = p, *own_q = reads_q(kStep) ? q : p;
    bool all_good = true;
    for_each_entry(n, count, [&](int64_t k, int64_t row, int64_t table) {
      all_good = all_good && in_range(row, layout.axis_size);
      const int64_t from = table + std::clamp<int64_t>(row, 0, layout.axis_size - 1) * inner;
      if (is_long) {
        own_p = call.p + from;
        own_q = call.q + from;
        return;
      }
      for (int64_t d = 0; d < inner; ++d) {
        p[k * inner + d] = call.p[from + d];
        if (reads_q(kStep)) q[k * inner + d] = call.q[from + d];
      }
    });
    const int64_t own = n * inner;
    step_values<kStep>(simd, call.a + own, call.b + own, own_p, own_q, count * inner,
                       call.out + own);
    if (all_good) continue;
    for_each_entry(n, count, [&](int64_t k, int64_t row, int64_t) {
      if (!in_range(row, layout.axis_size)) {
        std::fill_n(call.out + own + k * inner, inner, Out(0.0f));
      }
    });
  }
}

}  // namespace

namespace kernels {

template <SoftmaxStep kStep, class Value>
void softmax_step(OnCpu on, const SoftmaxCall<kStep, Value>& call) {
  using Out = typename SoftmaxCall<kStep, Value>::Out;
  const HostScope scope(on.program);
  const RowLayout& layout = call.layout;
  const int64_t entries = layout.slabs() * layout.entries;
  if (entries * layout.inner == 0) return;
  if (layout.axis_size == 0) {  // no entry names a row
    std::fill_n(call.out, entries * layout.inner, Out(0.0f));
    return;
  }
  dispatch_index(call.index, [&](const auto* index) {
    parallel_for(entries, kElementsPerTask / 4 / layout.inner + 1, [&](int64_t begin, int64_t end) {
      step_range(cpu_simd(), call, index, begin, end);
    });
  });
}

#define INSTANTIATE_STEP(STEP, T) \
  template void softmax_step(OnCpu, const SoftmaxCall<SoftmaxStep::STEP, T>&);
TORCH_OPS_FOR_EACH_FLOAT(TORCH_OPS_SOFTMAX_STEPS)

}  // namespace kernels
}  // namespace torch_ops
