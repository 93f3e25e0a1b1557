// The entries of an index in the order of their rows: sorted, or from a plan. The only place that
// sorts, since CUB's kernels take long to compile.
#include <cub/device/device_radix_sort.cuh>

#include "common/indexing/index_error.cuh"
#include "common/indexing/index_mode.h"
#include "common/indexing/index_view.cuh"
#include "scatter/cuda/sorted/sorted_launch.cuh"

namespace torch_ops {
namespace {

template <class Id>
__global__ void keys_kernel(IndexView index, sorted::Shape<Id> shape, int64_t batch_stride,
                            int64_t entry_stride, IndexRule rule, Id* __restrict__ keys,
                            Id* __restrict__ positions,
                            const __grid_constant__ IndexErrorSite errors) {
  const Id count = static_cast<Id>(shape.all_entries());
  const Id per_batch = static_cast<Id>(shape.entries);
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    const Id b = static_cast<Id>(i) / per_batch;
    const Id n = static_cast<Id>(i) - b * per_batch;
    int64_t entry = index[b * batch_stride + n * entry_stride];
    if (rule.rewrites()) entry = rule.resolve(entry);
    const bool good = in_range(entry, shape.axis_size);
    const int64_t first_slice = static_cast<int64_t>(b) * shape.outer;
    const int64_t position = first_slice * shape.entries + n;
    if (!good) record_bad_entry(errors, position, entry);
    keys[i] = good ? static_cast<Id>(first_slice * shape.axis_size + entry) : shape.no_row;
    positions[i] = static_cast<Id>(position);
  }
}

// Keys and positions from a plan, which counts rows over [batch, axis_size] and entries over
// [batch, entries]: each further by the slices of the batches before that are not the first.
template <class Id>
__global__ void spread_kernel(IndexView rows, IndexView order, sorted::Shape<Id> shape,
                              Id* __restrict__ keys, Id* __restrict__ positions) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < shape.all_entries();
       i += step) {
    const int64_t row = rows[i];
    const Id b = static_cast<Id>(row) / static_cast<Id>(shape.axis_size);
    const int64_t slices = static_cast<int64_t>(b) * (shape.outer - 1);
    // A key of no row has a position that can be read all the same.
    const bool is_row = row < shape.batch * shape.axis_size;
    keys[i] = is_row ? static_cast<Id>(row + slices * shape.axis_size) : shape.no_row;
    positions[i] = is_row ? static_cast<Id>(order[i] + slices * shape.entries) : 0;
  }
}

}  // namespace

template <class Id>
SortedEntries<Id> sort_entries(const IndexArray& index, const RowLayout& layout,
                               const IndexRule& rule, const sorted::Shape<Id>& shape,
                               const IndexErrorSite& errors) {
  const int64_t count = shape.all_entries();
  cub::DoubleBuffer<Id> keys, positions;
  size_t sort_bytes = 0;
  const auto sort = [&](void* memory) {
    TORCH_OPS_CUDA_CALL(cub::DeviceRadixSort::SortPairs(memory, sort_bytes, keys, positions, count,
                                                        0, shape.key_bits(), current_stream()));
  };
  sort(nullptr);  // only tells how much memory it needs
  const int64_t array_bytes = round_up(count * sizeof(Id), 256);
  DeviceScratch memory(4 * array_bytes + sort_bytes);
  char* const begin = static_cast<char*>(memory.get());
  const auto array = [&](int number) {
    return reinterpret_cast<Id*>(begin + number * array_bytes);
  };
  keys = {array(0), array(1)};
  positions = {array(2), array(3)};

  TORCH_OPS_LAUNCH(keys_kernel<Id>, grid_x(count, sorted::kThreads), sorted::kThreads, 0,
                   IndexView{index}, shape, layout.index_batch_stride, layout.index_entry_stride,
                   rule, keys.Current(), positions.Current(), errors);
  sort(begin + 4 * array_bytes);
  return {keys.Current(), positions.Current(), std::move(memory)};
}

template <class Id>
SortedEntries<Id> planned_entries(const PlanArrays& plan, const sorted::Shape<Id>& shape) {
  const bool alike = shape.batch == 1 || shape.outer == 1;
  if (alike && plan.rows.entry_bytes == sizeof(Id)) {
    return {static_cast<const Id*>(plan.rows.data), static_cast<const Id*>(plan.order.data), {}};
  }
  const int64_t count = shape.all_entries();
  DeviceScratch memory(2 * count * sizeof(Id));
  Id* keys = static_cast<Id*>(memory.get());
  TORCH_OPS_LAUNCH(spread_kernel<Id>, grid_x(count, sorted::kThreads), sorted::kThreads, 0,
                   IndexView{plan.rows}, IndexView{plan.order}, shape, keys, keys + count);
  return {keys, keys + count, std::move(memory)};
}

#define INSTANTIATE(Id)                                                                          \
  template SortedEntries<Id> sort_entries(const IndexArray&, const RowLayout&, const IndexRule&, \
                                          const sorted::Shape<Id>&, const IndexErrorSite&);      \
  template SortedEntries<Id> planned_entries(const PlanArrays&, const sorted::Shape<Id>&);
INSTANTIATE(uint32_t)
INSTANTIATE(uint64_t)

namespace kernels {

template <class Id>
void sort_entries(OnCuda on, const IndexArray& index, const RowLayout& layout, Id* rows, Id* order,
                  const IndexErrorSite& errors) {
  const HostScope scope(on.program);
  const sorted::Shape<Id> shape(layout);
  if (shape.all_entries() == 0) return;
  const IndexRule rule(IndexMode::kRaise, layout.axis_size);
  const SortedEntries<Id> entries = torch_ops::sort_entries(index, layout, rule, shape, errors);
  const auto copy = [&](Id* to, const Id* from) {
    TORCH_OPS_CUDA_CALL(cudaMemcpyAsync(to, from, shape.all_entries() * sizeof(Id),
                                        cudaMemcpyDeviceToDevice, current_stream()));
  };
  copy(rows, entries.keys);
  copy(order, entries.positions);
}
template void sort_entries(OnCuda, const IndexArray&, const RowLayout&, uint32_t*, uint32_t*,
                           const IndexErrorSite&);
template void sort_entries(OnCuda, const IndexArray&, const RowLayout&, uint64_t*, uint64_t*,
                           const IndexErrorSite&);

}  // namespace kernels
}  // namespace torch_ops
