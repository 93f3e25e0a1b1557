// Plans on a device.
#include <algorithm>
#include <limits>

#include "c_api/gpu/gpu.h"
#include "c_api/gpu/runtime.cuh"

namespace torch_ops::gpu {

void make_plan(PlanOnDevice& plan, const RowCall& index, bool from_host, torch_ops_stream stream) {
  translated([&] {
    need_device();
    const int64_t index_bytes = index.all_index_bytes(), entries = index.all_entries();
    const int here = device_of({});
    plan.device = from_host ? here : device_of({{"index", index.index, index_bytes, Array::kRead}});
    const DeviceScope device_scope(plan.device);
    need_kernels();
    const auto on = static_cast<cudaStream_t>(stream);
    const StreamScope stream_scope(on);
    cudaStreamCaptureStatus capturing = cudaStreamCaptureStatusNone;
    TORCH_OPS_CHECK_CUDA(cudaStreamIsCapturing(on, &capturing));
    if (capturing != cudaStreamCaptureStatusNone) {
      fail(TORCH_OPS_INVALID_ARGUMENT,
           "stream is capturing a CUDA graph, and a plan waits for the device to check the index: "
           "make it before the capture");
    }
    if (entries == 0) return;

    // Numbers of 4 bytes if they can count all entries and rows.
    constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
    const bool narrow = std::max(entries, index.batch * index.axis_size) <= kMost;
    const int64_t id_bytes = narrow ? 4 : 8;
    const auto aligned = [](int64_t bytes) { return (bytes + 255) / 256 * 256; };
    plan.bytes = aligned(index_bytes) + 2 * aligned(entries * id_bytes);
    TORCH_OPS_CHECK_CUDA(cudaMalloc(&plan.memory, plan.bytes));
    auto* const first = static_cast<char*>(plan.memory);
    char* const rows = first + aligned(index_bytes);
    char* const order = rows + aligned(entries * id_bytes);
    plan.index = first;
    plan.sorted = {{rows, static_cast<int>(id_bytes)}, {order, static_cast<int>(id_bytes)}};
    TORCH_OPS_CHECK_CUDA(cudaMemcpyAsync(first, index.index, index_bytes, cudaMemcpyDefault, on));
    const auto sort = [&](auto zero) {
      using Id = decltype(zero);
      const IndexArray entry_array{first, static_cast<int>(index.index_bytes)};
      kernels::sort_entries(OnCuda{host_program()}, entry_array, index.layout(),
                            reinterpret_cast<Id*>(rows), reinterpret_cast<Id*>(order),
                            error_site(index.entry_kind(), Reports::kNow));
    };
    narrow ? sort(uint32_t()) : sort(uint64_t());
    TORCH_OPS_CHECK_CUDA(cudaStreamSynchronize(on));
    raise_recorded(Reports::kNow, on);
  });
}

void free_plan(const PlanOnDevice& plan) {
  // In a child of fork() the memory is the parent's.
  if (plan.memory == nullptr || device_count() == 0) return;
  translated([&] {
    const DeviceScope scope(plan.device);
    TORCH_OPS_CHECK_CUDA(cudaFree(plan.memory));
  });
}

}  // namespace torch_ops::gpu
