#include <ATen/AccumulateType.h>
#include <ATen/Dispatch.h>
#include <ATen/cuda/EmptyTensor.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>

#include "common/index_errors.h"
#include "common/indexing.h"
#include "common/kernel_overlap.cuh"
#include "common/launch.cuh"
#include "scatter/reduce.h"
#include "scatter/scatter.h"
#include "scatter/scatter_atomic_launch.cuh"
#include "scatter/scatter_few.cuh"
#include "scatter/scatter_path.h"
#include "scatter/scatter_planned.cuh"
#include "scatter/scatter_sorted_launch.cuh"

namespace torch_ops {

namespace {

constexpr int kZeroThreads = 256;

// One block a multiprocessor, which keeps the memory busy and leaves room for the next kernel's
// blocks: these come at once, and wait only before they add.
__global__ void __launch_bounds__(kZeroThreads) zero_kernel(char* memory, int64_t bytes) {
  let_next_kernel_begin();
  constexpr int kUnroll = 4;
  const uint4 zeros = make_uint4(0, 0, 0, 0);
  auto* vectors = reinterpret_cast<uint4*>(memory);
  const int64_t count = bytes / kVectorBytes, step = int64_t{gridDim.x} * kZeroThreads;
  int64_t at = int64_t{blockIdx.x} * kZeroThreads + threadIdx.x;
  for (; at + (kUnroll - 1) * step < count; at += kUnroll * step) {
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) vectors[at + u * step] = zeros;
  }
  for (; at < count; at += step) vectors[at] = zeros;
  if (at == count) {  // of one thread
    for (int64_t i = count * kVectorBytes; i < bytes; ++i) memory[i] = 0;
  }
}

}  // namespace

DeviceLimits device_limits_cuda(at::Device device) {
  const c10::cuda::CUDAGuard guard(device);
  return current_device_limits();
}

at::Tensor zeros_cuda(at::IntArrayRef sizes, const at::TensorOptions& options, bool leave_shared) {
  const c10::cuda::CUDAGuard guard(options.device());
  // Not at::empty: in torch's deterministic mode that fills the memory.
  const at::Tensor result = at::detail::empty_cuda(sizes, options);
  if (const auto bytes = static_cast<int64_t>(result.nbytes()); bytes > 0) {
    const int64_t blocks = std::min(ceil_div(bytes, int64_t{kZeroThreads} * kVectorBytes),
                                    current_device_limits().multiprocessors);
    // How a multiprocessor divides shared memory and L1 cache stays while blocks run there. Where
    // these leave all to the former, the next kernel's find what they need of it; others would miss
    // the cache (docs/gather.md).
    cudaLaunchAttribute split;
    split.id = cudaLaunchAttributePreferredSharedMemoryCarveout;
    split.val.sharedMemCarveout = cudaSharedmemCarveoutMaxShared;
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(static_cast<unsigned>(blocks));
    config.blockDim = dim3(kZeroThreads);
    config.stream = current_stream();
    config.attrs = &split;
    config.numAttrs = leave_shared ? 1 : 0;
    C10_CUDA_CHECK(cudaLaunchKernelEx(&config, zero_kernel,
                                      static_cast<char*>(result.mutable_data_ptr()), bytes));
  }
  return result;
}

namespace {

constexpr int kRoundThreads = 256;

// A lane rounds as many sums as make 16 bytes; the last ones one by one.
template <class Value>
__global__ void __launch_bounds__(kRoundThreads)
    round_kernel(const float* sums, Value* result, int64_t count) {
  constexpr int V = kVectorSize<Value>;
  const int64_t at = (int64_t{blockIdx.x} * kRoundThreads + threadIdx.x) * V;
  wait_for_kernel_before();
  if (at + V <= count) {
    Vector<Value, V> rounded;
#pragma unroll
    for (int part = 0; part < V; part += 4) {
      const auto four = *reinterpret_cast<const Vector<float, 4>*>(sums + at + part);
#pragma unroll
      for (int v = 0; v < 4; ++v) rounded.values[part + v] = static_cast<Value>(four.values[v]);
    }
    store(result + at, rounded);
  } else {
    for (int64_t i = at; i < count; ++i) result[i] = static_cast<Value>(sums[i]);
  }
}

}  // namespace

at::Tensor round_cuda(const at::Tensor& sums, at::ScalarType dtype) {
  const c10::cuda::CUDAGuard guard(sums.device());
  const at::Tensor result = at::detail::empty_cuda(sums.sizes(), sums.options().dtype(dtype));
  if (const int64_t count = sums.numel(); count > 0) {
    AT_DISPATCH_REDUCED_FLOATING_TYPES(dtype, "scatter_add", [&] {
      launch_early(round_kernel<scalar_t>,
                   grid_x(ceil_div(count, kVectorSize<scalar_t>), kRoundThreads), kRoundThreads, 0,
                   sums.const_data_ptr<float>(), result.mutable_data_ptr<scalar_t>(), count);
    });
  }
  return result;
}

namespace {

// ---- In no given order --------------------------------------------------------------------------

// `fresh`: the sums are zeros so far.
void add_in_any_order(const char* op, const at::Tensor& values, const at::Tensor& index,
                      const RowLayout& layout, const IndexRule& rule, bool fresh,
                      const at::Tensor& sums) {
  const c10::cuda::CUDAGuard guard(sums.device());
  IndexErrorCall errors = before_launch(op, index, layout, rule.mode());
  if (values.numel() == 0 || sums.numel() == 0) return;
  TORCH_OPS_DISPATCH_VALUES(values.scalar_type(), [&] {
    atomic_launch::add_in_any_order(static_cast<const value_t*>(values.const_data_ptr()),
                                    view_index(index), static_cast<sum_t*>(sums.mutable_data_ptr()),
                                    layout, rule, fresh, errors);
  });
  errors.end();
}

}  // namespace

void scatter_add_cuda(const char* op, const at::Tensor& values, const at::Tensor& index,
                      const RowLayout& layout, const IndexRule& rule, const at::Tensor& sums) {
  add_in_any_order(op, values, index, layout, rule, /*fresh=*/true, sums);
}

void scatter_add_to_cuda(const char* op, const at::Tensor& values, const at::Tensor& index,
                         const RowLayout& layout, const IndexRule& rule, const at::Tensor& sums) {
  add_in_any_order(op, values, index, layout, rule, /*fresh=*/false, sums);
}

// ---- In no given order, few entries beside many rows --------------------------------------------

namespace {

template <class Value>
void add_few(const Value* values, const few::Entries& entries, Value* result,
             const IndexErrorSite& errors) {
  const RowLayout& layout = entries.layout;
  const int64_t count = layout.batch * layout.entries, rows = layout.batch * layout.axis_size;
  const int64_t table_bytes = count * layout.inner * static_cast<int64_t>(sizeof(float));
  const int64_t owners_bytes = ceil_div(rows * static_cast<int64_t>(sizeof(uint32_t)), 256) * 256;
  const c10::DataPtr memory = c10::cuda::CUDACachingAllocator::get()->allocate(
      table_bytes + owners_bytes + count * sizeof(int32_t));
  // The owners first: the table's size is a multiple of no more than 4 bytes.
  auto* owners = static_cast<uint32_t*>(memory.get());
  auto* table = reinterpret_cast<float*>(static_cast<char*>(memory.get()) + owners_bytes);
  auto* slots = reinterpret_cast<int32_t*>(table + count * layout.inner);
  const auto stream = at::cuda::getCurrentCUDAStream();
  C10_CUDA_CHECK(cudaMemsetAsync(owners, 0, owners_bytes, stream));

  const unsigned blocks = grid_x(count, few::kThreads);
  TORCH_OPS_LAUNCH(few::claim_kernel<float>, blocks, few::kThreads, 0, entries, owners, table,
                   errors);
  TORCH_OPS_LAUNCH(few::find_slots_kernel, blocks, few::kThreads, 0, entries, owners, slots);

  RowLayout by_slot = layout;
  by_slot.batch = 1;
  by_slot.entries = by_slot.axis_size = count;
  by_slot.index_entry_stride = 1;
  // What has no slot is left out: an entry that is alone, and one that names no row, which was
  // recorded above.
  atomic_launch::add_in_any_order(values, IndexView{slots, sizeof(int32_t)}, table, by_slot,
                                  IndexRule(IndexMode::kRaise, count), /*fresh=*/false,
                                  IndexErrorSite{});

  constexpr int kWide = kVectorSize<Value>;
  const bool wide = layout.inner % kWide == 0 && is_aligned(values, kVectorBytes);
  auto* write = wide ? few::write_kernel<kWide, Value, float> : few::write_kernel<1, Value, float>;
  TORCH_OPS_LAUNCH(write, grid_x(count * layout.inner / (wide ? kWide : 1), few::kThreads),
                   few::kThreads, 0, entries, slots, values, table, result);
}

}  // namespace

void scatter_add_few_cuda(const char* op, const at::Tensor& values, const at::Tensor& index,
                          const RowLayout& layout, const IndexRule& rule,
                          const at::Tensor& result) {
  const c10::cuda::CUDAGuard guard(result.device());
  IndexErrorCall errors = before_launch(op, index, layout, rule.mode());
  AT_DISPATCH_REDUCED_FLOATING_TYPES(values.scalar_type(), "scatter_add", [&] {
    add_few(values.const_data_ptr<scalar_t>(), {view_index(index), layout, rule},
            result.mutable_data_ptr<scalar_t>(), errors);
  });
  errors.end();
}

// ---- Sorted -------------------------------------------------------------------------------------

namespace {

template <class Id, class Value, class Sum, class Result>
void scatter_add_sorted(const at::Tensor& values, const at::Tensor& index, const RowLayout& layout,
                        const IndexRule& rule, const Plan* plan, const at::Tensor& result,
                        const IndexErrorSite& errors) {
  const sorted::Shape<Id> shape{layout.batch, layout.outer, layout.entries, layout.axis_size,
                                layout.inner};
  const SortedEntries<Id> entries = entries_in_order(plan, index, layout, rule, shape, errors);
  const auto* from = static_cast<const Value*>(values.const_data_ptr());
  auto* to = static_cast<Result*>(result.mutable_data_ptr());
  constexpr int kWide = kVectorSize<Result>;  // a lane writes 16 bytes
  if (layout.inner % kWide == 0 && is_aligned(from, kWide * sizeof(Value))) {
    total_sorted<Sums<kWide, Sum>>(from, to, shape, entries, {}, Result(0));
  } else {
    total_sorted<Sums<1, Sum>>(from, to, shape, entries, {}, Result(0));
  }
}

template <class Id>
void fill_plan(const at::Tensor& index, const RowLayout& layout, const Plan& plan,
               const IndexErrorSite& errors) {
  const sorted::Shape<Id> shape{layout.batch, layout.outer, layout.entries, layout.axis_size,
                                layout.inner};
  const IndexRule rule(IndexMode::kRaise, layout.axis_size);
  const SortedEntries<Id> entries = sort_entries<Id>(index, layout, rule, shape, errors);
  const auto copy = [](const at::Tensor& to, const Id* from) {
    C10_CUDA_CHECK(cudaMemcpyAsync(to.mutable_data_ptr(), from, to.nbytes(),
                                   cudaMemcpyDeviceToDevice, at::cuda::getCurrentCUDAStream()));
  };
  copy(plan.rows, entries.keys);
  copy(plan.order, entries.positions);
}

}  // namespace

void sort_entries_cuda(const at::Tensor& index, const RowLayout& layout, const Plan& plan) {
  const c10::cuda::CUDAGuard guard(index.device());
  TORCH_CHECK(
      c10::cuda::currentStreamCaptureStatusMayInitCtx() == c10::cuda::CaptureStatus::None,
      "gather_plan: the current stream is capturing a CUDA graph, and to check the index it would "
      "have to wait for the device. Make the plan before the capture.");
  IndexErrorCall errors =
      before_launch("gather_plan", index, layout, IndexMode::kRaise, /*wait=*/true);
  if (index.numel() == 0) return;
  if (plan.rows.scalar_type() == at::kInt) {
    fill_plan<uint32_t>(index, layout, plan, errors);
  } else {
    fill_plan<uint64_t>(index, layout, plan, errors);
  }
  errors.end();
}

void scatter_add_sorted_cuda(const char* op, const at::Tensor& values, const at::Tensor& index,
                             const RowLayout& layout, const IndexRule& rule, const Plan* plan,
                             const at::Tensor& result) {
  const c10::cuda::CUDAGuard guard(result.device());
  IndexErrorCall errors = before_launch(op, index, layout, rule.mode());
  if (result.numel() == 0) return;
  const int64_t most =
      std::max({layout.slabs() * layout.entries, layout.slabs() * layout.axis_size, layout.inner});
  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kHalf, at::kBFloat16, values.scalar_type(), "scatter_add", [&] {
        using sum_t = at::acc_type<scalar_t, /*is_cuda=*/true>;
        const auto sum_to = [&](auto zero) {
          using Result = decltype(zero);
          auto* const sum = most < INT32_MAX
                                ? scatter_add_sorted<uint32_t, scalar_t, sum_t, Result>
                                : scatter_add_sorted<uint64_t, scalar_t, sum_t, Result>;
          sum(values, index, layout, rule, plan, result, errors);
        };
        result.scalar_type() == values.scalar_type() ? sum_to(scalar_t()) : sum_to(sum_t());
      });
  errors.end();
}

}  // namespace torch_ops
