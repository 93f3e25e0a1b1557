// Sums on CUDA: the choice of a way, zeros before it, and rounding after it.
#include <algorithm>
#include <type_traits>

#include "common/cuda/kernel_overlap.cuh"
#include "common/cuda/launch.cuh"
#include "common/cuda/scratch.h"
#include "common/cuda/vectorized.cuh"
#include "scatter/scatter_launch.h"
#include "scatter/sum/ways.cuh"

namespace torch_ops {
namespace {

// One block per multiprocessor, which keeps the memory busy and leaves room for the next kernel's
// blocks: these start at once, and wait only before they add.
__global__ void __launch_bounds__(kThreads) zero_kernel(char* memory, int64_t bytes) {
  let_next_kernel_begin();
  constexpr int kUnroll = 4;
  const uint4 zeros = make_uint4(0, 0, 0, 0);
  auto* vectors = reinterpret_cast<uint4*>(memory);
  const int64_t count = bytes / kVectorBytes, step = int64_t{gridDim.x} * kThreads;
  int64_t at = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  for (; at + (kUnroll - 1) * step < count; at += kUnroll * step) {
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) vectors[at + u * step] = zeros;
  }
  for (; at < count; at += step) vectors[at] = zeros;
  if (at == count) {  // of one thread
    for (int64_t i = count * kVectorBytes; i < bytes; ++i) memory[i] = 0;
  }
}

// A lane rounds as many sums as make 16 bytes; the last ones one by one.
template <class Sum, class Value>
__global__ void __launch_bounds__(kThreads)
    round_kernel(const Sum* sums, Value* result, int64_t count) {
  constexpr int V = kVectorSize<Value>;
  const int64_t at = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * V;
  wait_for_kernel_before();
  if (at + V <= count) {
    Vector<Value, V> rounded;
#pragma unroll
    for (int part = 0; part < V; part += 4) {
      const auto four = *reinterpret_cast<const Vector<Sum, 4>*>(sums + at + part);
#pragma unroll
      for (int v = 0; v < 4; ++v) rounded.values[part + v] = static_cast<Value>(four.values[v]);
    }
    store(result + at, rounded);
  } else {
    for (int64_t i = at; i < count; ++i) result[i] = static_cast<Value>(sums[i]);
  }
}

// By atomics; rounded, part after part, if the result does not have the type of the sums.
template <class Value, class Result>
void sum_by_atomics(const ReduceCall<Value, Result>& call, const SumPlan& plan,
                    const IndexErrorSite& errors) {
  using Sum = SumOf<Value>;
  const auto add_to = [&](const ReduceCall<Value, Sum>& part, int64_t first_row) {
    zero(part.result, part.result_count() * sizeof(Sum));
    add_by_atomics<Value>(part, plan, /*fresh=*/true, first_row, errors);
  };
  if constexpr (std::is_same_v<Sum, Result>) {
    add_to(call, 0);
  } else {
    ReduceCall<Value, Sum> part{call.values, call.index, call.layout, call.rule, nullptr};
    int64_t& length = slowest(part.layout);
    const int64_t all = length, at_once = length = plan.at_once;
    const DeviceScratch memory(part.result_count() * sizeof(Sum));
    part.result = static_cast<Sum*>(memory.get());
    const int64_t rows = part.layout.slabs() * part.layout.entries;
    const int64_t index_stride = call.layout.batch > 1 ? call.layout.index_batch_stride : 0;
    const int64_t results = part.result_count();
    for (int64_t first = 0; first < all; first += at_once) {
      const int64_t number = first / at_once;
      length = std::min(at_once, all - first);
      part.values = call.values + number * rows * call.layout.inner;
      part.index = IndexView{call.index}.from(first * index_stride);
      add_to(part, number * rows);
      const int64_t count = part.result_count();
      launch_early(round_kernel<Sum, Value>, grid_x(ceil_div(count, kVectorSize<Value>), kThreads),
                   kThreads, 0, part.result, call.result + number * results, count);
    }
  }
}

template <class Value, class Result>
void sum(const ReduceCall<Value, Result>& call, bool repeatable, const IndexErrorSite& errors) {
  constexpr bool kFloats = !std::is_integral_v<Value>;
  constexpr bool kRounds = std::is_same_v<Value, Result>;
  const SumPlan plan =
      choose(describe(call, repeatable, /*in_place=*/false), current_device_limits());
  switch (plan.way()) {
    case SumWay::kSmall:
    case SumWay::kSparse:
      if constexpr (kRounds) return sum_small(call, std::get<SmallCut>(plan.cut), errors);
      break;
    case SumWay::kFixedPoint:
      if constexpr (kRounds && kFloats && sizeof(Value) <= 4) {
        return sum_fixed(call, std::get<FixedCut>(plan.cut), errors);
      }
      break;
    case SumWay::kPrivatized:
      return sum_privatized(call, std::get<PrivatizedCut>(plan.cut), /*in_place=*/false, errors);
    case SumWay::kSorted:
      if constexpr (kFloats) return sum_sorted(call, errors);
      break;
    case SumWay::kFew:
      if constexpr (kRounds && kFloats && sizeof(Value) == 2) return sum_few(call, errors);
      break;
    default:
      return sum_by_atomics(call, plan, errors);
  }
  fail_without_kernel("SumWay");
}

}  // namespace

void zero(void* memory, int64_t bytes, bool leave_shared) {
  if (bytes == 0) return;
  const int64_t blocks = std::min(ceil_div(bytes, int64_t{kThreads} * kVectorBytes),
                                  current_device_limits().multiprocessors);
  // A multiprocessor does not change its division of shared memory and L1 cache while it runs
  // blocks. If these leave all to the former, the next kernel's find what they need; others would
  // miss the cache (docs/internals/kernels/atomics.md).
  cudaLaunchAttribute split;
  split.id = cudaLaunchAttributePreferredSharedMemoryCarveout;
  split.val.sharedMemCarveout = cudaSharedmemCarveoutMaxShared;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(kThreads);
  config.stream = current_stream();
  config.attrs = &split;
  config.numAttrs = leave_shared ? 1 : 0;
  TORCH_OPS_CUDA_CALL(cudaLaunchKernelEx(&config, zero_kernel, static_cast<char*>(memory), bytes));
}

namespace kernels {

template <class Value, class Result>
void scatter_add(OnCuda on, const ReduceCall<Value, Result>& call, bool repeatable,
                 const IndexErrorSite& errors) {
  const HostScope scope(on.program);
  if (call.values_count() == 0 || call.result_count() == 0) {
    return zero(call.result, call.result_count() * sizeof(Result));
  }
  sum(call, repeatable, errors);
}

template <class Value>
void scatter_add_to(OnCuda on, const ReduceCall<Value, SumOf<Value>>& call,
                    const IndexErrorSite& errors) {
  const HostScope scope(on.program);
  if (call.values_count() == 0 || call.result_count() == 0) return;
  const SumPlan plan = choose(describe<Value>(call, /*repeatable=*/false, /*in_place=*/true),
                              current_device_limits());
  if (plan.way() == SumWay::kPrivatized) {
    return sum_privatized(call, std::get<PrivatizedCut>(plan.cut), /*in_place=*/true, errors);
  }
  add_by_atomics<Value>(call, plan, /*fresh=*/false, /*first_row=*/0, errors);
}

#define INSTANTIATE(T)                                                                     \
  template void scatter_add(OnCuda, const ReduceCall<T, T>&, bool, const IndexErrorSite&); \
  template void scatter_add_to<T>(OnCuda, const ReduceCall<T, SumOf<T>>&, const IndexErrorSite&);
TORCH_OPS_FOR_EACH_SUMMED(INSTANTIATE)
template void scatter_add(OnCuda, const ReduceCall<Float16, float>&, bool, const IndexErrorSite&);
template void scatter_add(OnCuda, const ReduceCall<BFloat16, float>&, bool, const IndexErrorSite&);

}  // namespace kernels
}  // namespace torch_ops
