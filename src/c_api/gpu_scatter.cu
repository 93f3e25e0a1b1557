// scatter_add on the device, by atomics.
#include "c_api/dispatch.h"
#include "c_api/gpu.h"
#include "c_api/gpu_runtime.cuh"
#include "c_api/rows.h"
#include "common/cuda/vectorized.cuh"
#include "common/indexing/index_error.cuh"
#include "common/indexing/index_view.cuh"

namespace torch_ops::gpu {
namespace {

template <class Sum, class Value>
__global__ void round_kernel(const Sum* __restrict__ sums, Value* __restrict__ result,
                             int64_t size) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < size; i += step) {
    result[i] = static_cast<Value>(sums[i]);
  }
}

__global__ void localize_kernel(IndexView index, int64_t entries, int64_t first, int64_t rows,
                                int64_t whole, int64_t* __restrict__ part,
                                const __grid_constant__ IndexErrorSite errors) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t n = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; n < entries; n += step) {
    const int64_t entry = index[n];
    part[n] = entry >= first && entry < first + rows ? entry - first : rows;
    if (first == 0 && !in_range(entry, whole)) record_bad_entry(errors, n, entry);
  }
}

}  // namespace

bool sums_in_place(torch_ops_dtype dtype) { return element_bytes(dtype) >= 4; }

void launch_add(const RowCall& call, void* sums, const IndexErrorSite& errors) {
  // Whether an entry out of range is an error is for the site to say.
  dispatch_summed(call.dtype, [&](auto value, auto sum) {
    using Value = decltype(value);
    using Sum = decltype(sum);
    kernels::scatter_add_to<Value>(OnCuda{host_program()}, scatter_call<Value, Sum>(call, sums),
                                   errors);
  });
}

void launch_round(torch_ops_dtype dtype, const void* sums, void* result, int64_t size) {
  dispatch_summed(dtype, [&](auto value, auto sum) {
    using Value = decltype(value);
    using Sum = decltype(sum);
    if constexpr (sizeof(Value) < sizeof(Sum)) {
      auto* kernel = round_kernel<Sum, Value>;
      TORCH_OPS_LAUNCH(kernel, grid_x(size, kThreads), kThreads, 0, static_cast<const Sum*>(sums),
                       static_cast<Value*>(result), size);
    }
  });
}

void launch_localize(const RowCall& call, int64_t first, int64_t whole, int64_t* part,
                     const IndexErrorSite& errors) {
  TORCH_OPS_LAUNCH(localize_kernel, grid_x(call.entries, kThreads), kThreads, 0,
                   IndexView{call.index_array()}, call.entries, first, call.axis_size, whole, part,
                   errors);
}

namespace {

// Sums of another type than the result's: the caller's memory, or memory of the stream's own pool.
class Sums {
 public:
  Sums(void* workspace, int64_t workspace_bytes, int64_t bytes) : memory_(workspace) {
    if (workspace == nullptr) {
      TORCH_OPS_CHECK_CUDA(cudaMallocAsync(&memory_, bytes, current_stream()));
      own_ = true;
    } else if (workspace_bytes < bytes) {
      fail(TORCH_OPS_SMALL_WORKSPACE, "workspace must have ", bytes,
           " bytes (torch_ops_scatter_add_workspace), but it has ", workspace_bytes);
    } else if (!is_aligned(workspace, kVectorBytes)) {
      fail(TORCH_OPS_MISALIGNED_POINTER, "workspace must be at a multiple of ", kVectorBytes,
           " bytes, but it is at ", workspace);
    }
  }
  Sums(const Sums&) = delete;
  ~Sums() {
    if (own_) cudaFreeAsync(memory_, current_stream());
  }
  void* get() const { return memory_; }

 private:
  void* memory_;
  bool own_ = false;
};

void queue_scatter(const RowCall& call, void* workspace, int64_t workspace_bytes,
                   const IndexErrorSite& errors) {
  const int64_t size = call.batch * call.axis_size * call.inner;
  if (size == 0) return;
  if (sums_in_place(call.dtype)) {
    TORCH_OPS_CHECK_CUDA(cudaMemsetAsync(call.to, 0, call.table_bytes(), current_stream()));
    if (call.rows_bytes() > 0) launch_add(call, call.to, errors);
    return;
  }
  const int64_t bytes = size * static_cast<int64_t>(sizeof(uint32_t));
  const Sums sums(workspace, workspace_bytes, bytes);
  TORCH_OPS_CHECK_CUDA(cudaMemsetAsync(sums.get(), 0, bytes, current_stream()));
  if (call.rows_bytes() > 0) launch_add(call, sums.get(), errors);
  launch_round(call.dtype, sums.get(), call.to, size);
}

}  // namespace

void scatter_add(const RowCall& call, torch_ops_stream stream, void* workspace,
                 int64_t workspace_bytes, float* milliseconds) {
  queue({{"values", call.from, call.rows_bytes()},
         {"index", call.index, call.all_index_bytes()},
         {"result", call.to, call.table_bytes()}},
        stream, milliseconds, [&](Reports reports) {
          if (call.all_entries() > 0 && call.axis_size == 0) throw IndexFailure(0, 0, 0);
          queue_scatter(call, workspace, workspace_bytes, error_site(call, reports));
        });
}

}  // namespace torch_ops::gpu
