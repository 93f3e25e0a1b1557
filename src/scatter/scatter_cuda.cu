#include <ATen/AccumulateType.h>
#include <ATen/Dispatch.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>

#include "common/index_errors.h"
#include "common/indexing.h"
#include "common/launch.cuh"
#include "scatter/reduce.h"
#include "scatter/scatter.h"
#include "scatter/scatter_atomic.cuh"
#include "scatter/scatter_few.cuh"
#include "scatter/scatter_path.h"
#include "scatter/scatter_sorted_launch.cuh"

namespace torch_ops {
namespace {

// ---- In no given order --------------------------------------------------------------------------

// Where the table stays in the L2 cache, blocks of different batches run side by side: the rows
// that many entries of one batch name would hold up each other. `blocks` are those of a chunk.
dim3 shape_grid(atomic::AtomicCall& call, int64_t blocks, int64_t table_bytes) {
  const int64_t l2_bytes = at::cuda::getCurrentDeviceProperties()->l2CacheSize;
  call.chunks_in_x = table_bytes <= l2_bytes / 2 && blocks <= kMaxGridYZ;
  return call.chunks_in_x ? dim3(grid_x(call.grid.chunks, 1), static_cast<unsigned>(blocks))
                          : dim3(grid_x(blocks, 1), grid_y(call.grid.chunks));
}

// What the kernels are launched with: `words` of the grid a row.
atomic::AtomicCall make_call(const RowLayout& layout, const IndexRule& rule, int64_t words) {
  return {RowGrid(layout.batch, layout.outer, layout.entries, words), false,
          layout.slabs() * layout.axis_size * layout.inner > UINT32_MAX, rule};
}

bool are_adjacent(const at::Tensor& values, const at::Tensor& index, const RowLayout& layout) {
  const bool flat = layout.outer == 1 && layout.index_entry_stride == 1 &&
                    (layout.batch == 1 || layout.index_batch_stride == layout.entries);
  return flat && layout.entries % atomic::kUnroll == 0 &&
         view_index(index).is_aligned_for_load4() &&
         is_aligned(values.const_data_ptr(),
                    atomic::kUnroll * static_cast<int64_t>(values.element_size()));
}

template <int D, class Value, class Sum>
void add_entries(const Value* values, const at::Tensor& index, Sum* sums, const RowLayout& layout,
                 const IndexRule& rule, int64_t table_bytes, const IndexErrorSite& errors) {
  atomic::AtomicCall call = make_call(layout, rule, /*words=*/1);
  const int64_t blocks = ceil_div(call.grid.chunk_words(), atomic::kThreads * atomic::kUnroll);
  const dim3 grid = shape_grid(call, blocks, table_bytes);
  auto* kernel = atomic::add_entries_kernel<D, Value, Sum>;
  TORCH_OPS_LAUNCH(kernel, grid, atomic::kThreads, 0, values, view_index(index), sums, layout, call,
                   errors);
}

template <class Value, class Sum>
void add_values(const Value* values, const at::Tensor& index, Sum* sums, const RowLayout& layout,
                const IndexRule& rule, int64_t table_bytes, const IndexErrorSite& errors) {
  atomic::AtomicCall call = make_call(layout, rule, layout.inner);
  const int64_t blocks = ceil_div(call.grid.chunk_words(), atomic::kThreads * atomic::kUnroll);
  const dim3 grid = shape_grid(call, blocks, table_bytes);
  auto* kernel = atomic::add_values_kernel<Value, Sum>;
  TORCH_OPS_LAUNCH(kernel, grid, atomic::kThreads, 0, values, view_index(index), sums, layout, call,
                   errors);
}

template <class Value, class Sum>
void add_staged(const Value* values, const at::Tensor& index, Sum* sums, const RowLayout& layout,
                const IndexRule& rule, bool fresh, const IndexErrorSite& errors) {
  const auto bytes = static_cast<int>(layout.axis_size * sizeof(Sum));
  auto* kernel = atomic::add_staged_kernel<Value, Sum>;
  if (bytes > 48 * 1024) {  // more than a kernel has unasked
    C10_CUDA_CHECK(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  }
  // The larger the table, the fewer blocks share a multiprocessor.
  const int threads = bytes > 100 * 1024 ? 1024 : bytes > 24 * 1024 ? 512 : 256;
  // Parts of a slab where slabs alone do not fill the GPU, none so small that adding up the table
  // becomes a large part of its work.
  const int64_t wanted = 2 * at::cuda::getCurrentDeviceProperties()->multiProcessorCount;
  const int64_t parts =
      std::clamp<int64_t>(ceil_div(wanted, layout.slabs()), 1,
                          std::max<int64_t>(layout.entries / (4 * layout.axis_size), 1));
  const int64_t part = ceil_div(ceil_div(layout.entries, parts), 4) * 4;
  const dim3 grid(static_cast<unsigned>(ceil_div(layout.entries, part)), grid_y(layout.slabs()));
  TORCH_OPS_LAUNCH(kernel, grid, threads, bytes, values, view_index(index), sums, layout,
                   make_call(layout, rule, /*words=*/1), part, fresh, errors);
}

template <int V, int kSpanned = kSpan, class Value, class Sum>
void add_tiles(const Value* values, const IndexView& index, Sum* sums, const RowLayout& layout,
               const IndexRule& rule, int64_t table_bytes, const IndexErrorSite& errors) {
  atomic::AtomicCall call = make_call(layout, rule, /*words=*/1);
  const RowPieces split(layout.inner, V, /*most_lanes=*/32, atomic::kLeastLanes);
  const int64_t tile = split.groups(atomic::kThreads) * kSpanned;
  const int64_t blocks = ceil_div(call.grid.chunk_words(), tile) * split.pieces;
  const dim3 grid = shape_grid(call, blocks, table_bytes);
  auto* kernel = atomic::add_tiles_kernel<V, kSpanned, Value, Sum>;
  TORCH_OPS_LAUNCH(kernel, grid, atomic::kThreads, 0, values, index, sums, layout, call, split,
                   errors);
}

// Rows of any length, each by the widest words that fit them. Few entries are dealt out to more and
// shorter spans: the time of a small call is that of the loads of a span, which wait for each
// other.
template <class Value, class Sum>
void add_long_rows(const Value* values, const IndexView& index, Sum* sums, const RowLayout& layout,
                   const IndexRule& rule, int64_t table_bytes, const IndexErrorSite& errors) {
  constexpr int kWide = std::min(kVectorSize<Value>, 4);  // sums take registers
  const RowPieces split(layout.inner, kWide, /*most_lanes=*/32, atomic::kLeastLanes);
  const int64_t blocks = layout.slabs() * split.pieces *
                         ceil_div(layout.entries, split.groups(atomic::kThreads) * kSpan);
  const bool few = blocks < at::cuda::getCurrentDeviceProperties()->multiProcessorCount;
  const bool wide = layout.inner % kWide == 0 && is_aligned(values, kWide * sizeof(Value));
  if (wide && few) {
    add_tiles<kWide, kWindow>(values, index, sums, layout, rule, table_bytes, errors);
  } else if (wide) {
    add_tiles<kWide>(values, index, sums, layout, rule, table_bytes, errors);
  } else {
    add_tiles<1>(values, index, sums, layout, rule, table_bytes, errors);
  }
}

// `fresh`: the sums are zeros so far.
void add_in_any_order(const char* op, const at::Tensor& values, const at::Tensor& index,
                      const RowLayout& layout, const IndexRule& rule, bool fresh,
                      const at::Tensor& sums) {
  const c10::cuda::CUDAGuard guard(sums.device());
  const IndexErrorSite errors = before_launch(op, index, layout, rule.mode());
  if (values.numel() == 0 || sums.numel() == 0) return;
  const auto shared_bytes =
      static_cast<int64_t>(at::cuda::getCurrentDeviceProperties()->sharedMemPerBlockOptin);
  const AtomicPath path = choose_atomic_path(layout, static_cast<int64_t>(sums.element_size()),
                                             are_adjacent(values, index, layout), shared_bytes);
  const auto bytes = static_cast<int64_t>(sums.nbytes());
  TORCH_OPS_DISPATCH_VALUES(values.scalar_type(), [&] {
    const auto* from = static_cast<const value_t*>(values.const_data_ptr());
    auto* to = static_cast<sum_t*>(sums.mutable_data_ptr());
    switch (path) {
      case AtomicPath::kStaged:
        return add_staged(from, index, to, layout, rule, fresh, errors);
      case AtomicPath::kEntries:
        if (layout.inner == 1) return add_entries<1>(from, index, to, layout, rule, bytes, errors);
        if (layout.inner == 2) return add_entries<2>(from, index, to, layout, rule, bytes, errors);
        return add_entries<4>(from, index, to, layout, rule, bytes, errors);
      case AtomicPath::kValues:
        return add_values(from, index, to, layout, rule, bytes, errors);
      case AtomicPath::kTiles:
        return add_long_rows(from, view_index(index), to, layout, rule, bytes, errors);
    }
  });
  after_launch();
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
  C10_CUDA_CHECK(cudaMemsetAsync(owners, 0, owners_bytes + table_bytes, stream));

  const unsigned blocks = grid_x(count, few::kThreads);
  TORCH_OPS_LAUNCH(few::claim_kernel, blocks, few::kThreads, 0, entries, owners, errors);
  TORCH_OPS_LAUNCH(few::find_slots_kernel, blocks, few::kThreads, 0, entries, owners, slots);

  RowLayout by_slot = layout;
  by_slot.batch = 1;
  by_slot.entries = by_slot.axis_size = count;
  by_slot.index_entry_stride = 1;
  // An entry that names no row has no slot. It was recorded above.
  add_long_rows(values, IndexView{slots, sizeof(int32_t)}, table, by_slot,
                IndexRule(IndexMode::kRaise, count), table_bytes, IndexErrorSite{});

  constexpr int kWide = kVectorSize<Value>;
  const bool wide = layout.inner % kWide == 0;
  auto* round = wide ? few::round_kernel<kWide, Value, float> : few::round_kernel<1, Value, float>;
  TORCH_OPS_LAUNCH(round, grid_x(count * layout.inner / (wide ? kWide : 1), few::kThreads),
                   few::kThreads, 0, entries, slots, table, result);
}

}  // namespace

void scatter_add_few_cuda(const char* op, const at::Tensor& values, const at::Tensor& index,
                          const RowLayout& layout, const IndexRule& rule,
                          const at::Tensor& result) {
  const c10::cuda::CUDAGuard guard(result.device());
  const IndexErrorSite errors = before_launch(op, index, layout, rule.mode());
  AT_DISPATCH_REDUCED_FLOATING_TYPES(values.scalar_type(), "scatter_add", [&] {
    add_few(values.const_data_ptr<scalar_t>(), {view_index(index), layout, rule},
            result.mutable_data_ptr<scalar_t>(), errors);
  });
  after_launch();
}

// ---- Sorted -------------------------------------------------------------------------------------

namespace {

// The same from a plan, whose tensors serve as they are where rows and values are counted alike.
template <class Id>
SortedEntries<Id> planned_entries(const Plan& plan, const sorted::Shape<Id>& shape) {
  const bool alike = shape.batch == 1 || shape.outer == 1;
  if (alike && plan.rows.element_size() == sizeof(Id)) {
    return {static_cast<const Id*>(plan.rows.const_data_ptr()),
            static_cast<const Id*>(plan.order.const_data_ptr()),
            {}};
  }
  const int64_t count = shape.all_entries();
  c10::DataPtr memory = c10::cuda::CUDACachingAllocator::get()->allocate(2 * count * sizeof(Id));
  Id* keys = static_cast<Id*>(memory.get());
  TORCH_OPS_LAUNCH(sorted::spread_kernel<Id>, grid_x(count, sorted::kThreads), sorted::kThreads, 0,
                   view_index(plan.rows), view_index(plan.order), shape, keys, keys + count);
  return {keys, keys + count, std::move(memory)};
}

template <class Id, class Value, class Sum>
void scatter_add_sorted(const at::Tensor& values, const at::Tensor& index, const RowLayout& layout,
                        const IndexRule& rule, const Plan* plan, const at::Tensor& result,
                        const IndexErrorSite& errors) {
  const sorted::Shape<Id> shape{layout.batch, layout.outer, layout.entries, layout.axis_size,
                                layout.inner};
  const SortedEntries<Id> entries = plan != nullptr
                                        ? planned_entries<Id>(*plan, shape)
                                        : sort_entries<Id>(index, layout, rule, shape, errors);
  const auto* from = static_cast<const Value*>(values.const_data_ptr());
  auto* to = static_cast<Value*>(result.mutable_data_ptr());
  constexpr int kWide = kVectorSize<Value>;
  if (layout.inner % kWide == 0 && is_aligned(from, kVectorBytes)) {
    total_sorted<Sums<kWide, Sum>>(from, to, shape, entries, {}, Value(0));
  } else {
    total_sorted<Sums<1, Sum>>(from, to, shape, entries, {}, Value(0));
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
  const IndexErrorSite errors =
      before_launch("gather_plan", index, layout, IndexMode::kRaise, /*wait=*/true);
  if (index.numel() == 0) return;
  if (plan.rows.scalar_type() == at::kInt) {
    fill_plan<uint32_t>(index, layout, plan, errors);
  } else {
    fill_plan<uint64_t>(index, layout, plan, errors);
  }
  after_launch(/*wait=*/true);
}

void scatter_add_sorted_cuda(const char* op, const at::Tensor& values, const at::Tensor& index,
                             const RowLayout& layout, const IndexRule& rule, const Plan* plan,
                             const at::Tensor& result) {
  const c10::cuda::CUDAGuard guard(result.device());
  const IndexErrorSite errors = before_launch(op, index, layout, rule.mode());
  if (result.numel() == 0) return;
  const int64_t most =
      std::max({layout.slabs() * layout.entries, layout.slabs() * layout.axis_size, layout.inner});
  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kHalf, at::kBFloat16, values.scalar_type(), "scatter_add", [&] {
        using sum_t = at::acc_type<scalar_t, /*is_cuda=*/true>;
        auto* const sum = most < INT32_MAX ? scatter_add_sorted<uint32_t, scalar_t, sum_t>
                                           : scatter_add_sorted<uint64_t, scalar_t, sum_t>;
        sum(values, index, layout, rule, plan, result, errors);
      });
  after_launch();
}

}  // namespace torch_ops
