// Calls on host pointers that a device computes. Of gathers and activations data goes there in
// pieces, which overlap with the kernels and with the results' way back, and of which no more are
// there at a time than fit the device. docs/c_api.md says which method a call uses.
#include <algorithm>

#include "c_api/calls/activations.h"
#include "c_api/calls/rows.h"
#include "c_api/gpu/gpu.h"
#include "c_api/gpu/host_choice.h"
#include "c_api/gpu/pipeline.cuh"
#include "c_api/gpu/runtime.cuh"
#include "common/indexing/index_error.cuh"
#include "common/indexing/index_view.cuh"

namespace torch_ops::gpu {
namespace {

constexpr int kRing = 2;  // pieces on the device: one moves while the other is processed

// Some entries of a call: whole batches, or a part of one.
struct Span {
  int64_t batch, batches;
  int64_t entry, entries;

  int64_t count() const { return batches * entries; }
  // The first, counted over all entries of the call.
  int64_t first(const RowCall& call) const { return batch * call.entries + entry; }
  RowCall of(const RowCall& call) const {
    RowCall part = call;
    part.batch = batches;
    part.entries = entries;
    return part;
  }
};

// Calls use(span) for spans of at most `most` entries that make up the batches [batch, batch + n).
template <class Use>
void for_each_span(const RowCall& call, int64_t batch, int64_t n, int64_t most, Use&& use) {
  if (call.entries <= most) {
    const int64_t whole = std::max<int64_t>(most / call.entries, 1);
    for (int64_t b = 0; b < n; b += whole) {
      use(Span{batch + b, std::min(whole, n - b), 0, call.entries});
    }
    return;
  }
  for (int64_t b = 0; b < n; ++b) {
    for (int64_t entry = 0; entry < call.entries; entry += most) {
      use(Span{batch + b, 1, entry, std::min(most, call.entries - entry)});
    }
  }
}

void launch_gather(const RowCall& call, int64_t first) {
  gather(OnCuda{host_program()}, call, error_site(call.entry_kind(), Reports::kNow, first));
}

[[noreturn]] void fail_small_budget(int64_t budget) {
  fail(TORCH_OPS_OUT_OF_MEMORY, "the ", budget,
       " bytes of device memory that the call may take do not hold what it needs there at a time");
}

// Runs a call by attempt(pipeline, budget) within the available device memory. A call that moves
// `nothing` is left to on_cpu().
template <class Otherwise, class Attempt>
void within_budget(bool nothing, torch_ops_stream stream, float* milliseconds, Otherwise&& on_cpu,
                   Attempt&& attempt) {
  translated(need_kernels);
  if (nothing) {
    if (milliseconds != nullptr) *milliseconds = 0;
    return on_cpu();
  }
  translated([&] {
    const PipelineLease pipeline;
    const StreamScope scope(pipeline->run());
    pipeline->begin(static_cast<cudaStream_t>(stream), milliseconds != nullptr);
    attempt(*pipeline.operator->(), memory_budget());
    if (milliseconds != nullptr) *milliseconds = pipeline->milliseconds();
    raise_recorded(Reports::kNow, pipeline->run());
  });
}

// ---- gather -------------------------------------------------------------------------------------

// For a gather from a source that is read in place. Smaller than others, so that little of the
// index is uploaded before, and little of the result downloaded after, all the reading.
constexpr int64_t kInPlacePieceBytes = int64_t{2} << 20;

// Gathers from one batch of a source in the host's memory. A lane with a single word in flight
// takes less time there than one with four, as in other kernels (4.3 ms for 2 Mi floats of 1
// GiB, 5.3 to 5.8 with four, on an H200).
template <class Word>
__global__ void gather_in_place_kernel(const Word* __restrict__ source, IndexView index,
                                       Word* __restrict__ output, int64_t entries, int64_t inner,
                                       int64_t axis_size,
                                       const __grid_constant__ IndexErrorSite errors) {
  const int64_t words = entries * inner;
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t word = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; word < words; word += step) {
    const int64_t n = inner == 1 ? word : word / inner;
    const int64_t entry = index[n];
    if (in_range(entry, axis_size)) {
      output[word] = source[entry * inner + (word - n * inner)];
    } else {
      record_bad_entry(errors, n, entry);
    }
  }
}

void launch_in_place(const RowCall& call, int64_t first) {
  constexpr int64_t kWorthALaunch = 16384;
  const int64_t words = call.entries * call.inner;
  if (words < kWorthALaunch) return launch_gather(call, first);
  const IndexView index{call.index_array()};
  dispatch_size(call.element_bytes, [&](auto word) {
    using Word = decltype(word);
    if constexpr (sizeof(Word) <= sizeof(uint64_t)) {
      for (int64_t b = 0; b < call.batch; ++b) {
        TORCH_OPS_LAUNCH(gather_in_place_kernel<Word>, grid_x(words, kThreads), kThreads, 0,
                         static_cast<const Word*>(call.from) + b * call.axis_size * call.inner,
                         index.from(b * call.entries), static_cast<Word*>(call.to) + b * words,
                         call.entries, call.inner, call.axis_size,
                         error_site(call.entry_kind(), Reports::kNow, first + b * call.entries));
      }
    }
  });
}

// How much of a gather is on the device at a time.
struct GatherPlan {
  int64_t span;         // entries of a span
  int64_t group;        // batches whose tables are there together
  int64_t table_bytes;  // of a group
  int tables;           // groups at a time
};

GatherPlan plan_gather(const RowCall& call, bool in_place, int64_t budget) {
  const int64_t row = call.inner * call.element_bytes;
  const int64_t slab = call.axis_size * row;
  const int64_t entry = kRing * (row + call.index_bytes);
  GatherPlan plan{};
  const auto span_within = [&](int64_t bytes, int64_t piece) {
    return std::min({bytes / entry, std::max<int64_t>(piece / std::max(row, call.index_bytes), 1),
                     call.all_entries()});
  };
  if (in_place) {
    plan.span = span_within(budget, kInPlacePieceBytes);
    plan.group = call.batch;
    return plan;
  }
  plan.span = span_within(budget / 2, kPieceBytes);
  const int64_t room = budget - plan.span * entry;
  if (slab > room) return plan;
  // Groups of at least a piece's size; two, so that one is uploaded while the other is read.
  plan.group = std::clamp<int64_t>(kPieceBytes / slab, 1, std::min(call.batch, room / slab));
  plan.table_bytes = plan.group * slab;
  plan.tables = plan.group < call.batch && 2 * plan.table_bytes <= room ? 2 : 1;
  return plan;
}

void gather_in_pieces(Pipeline& pipeline, const RowCall& call, int64_t budget) {
  const HostArray source(call.from), index(call.index), output(call.to);
  const bool in_place = source.pinned && is_sparse(call);
  const GatherPlan plan = plan_gather(call, in_place, budget - int64_t{256} * 2 * kRing * 2);
  if (plan.span < 1 || plan.group < 1) fail_small_budget(budget);
  const int64_t row = call.inner * call.element_bytes;
  const int64_t slab = call.axis_size * row;

  const int64_t index_size = DeviceBlock::aligned(plan.span * call.index_bytes);
  const int64_t output_size = DeviceBlock::aligned(plan.span * row);
  const int64_t table_size = DeviceBlock::aligned(plan.table_bytes);
  DeviceBlock block(kRing * (index_size + output_size) + plan.tables * table_size, pipeline);
  char* indexes[kRing];
  char* outputs[kRing];
  char* tables[2] = {};
  for (char*& each : indexes) each = block.take(index_size);
  for (char*& each : outputs) each = block.take(output_size);
  for (int i = 0; i < plan.tables; ++i) tables[i] = block.take(table_size);

  Event ran[kRing], left[kRing], table_read[2];
  int64_t spans = 0, loads = 0;

  for (int64_t batch = 0; batch < call.batch; batch += plan.group, ++loads) {
    const int64_t batches = std::min(plan.group, call.batch - batch);
    const int load = in_place ? 0 : static_cast<int>(loads % plan.tables);
    if (!in_place) {
      pipeline.upload(tables[load], source, batch * slab, batches * slab, table_read[load]);
    }
    const char* table = in_place ? source.on_device() : tables[load];
    for_each_span(call, batch, batches, plan.span, [&](const Span& span) {
      const int slot = static_cast<int>(spans++ % kRing);
      pipeline.upload(indexes[slot], index, span.first(call) * call.index_bytes,
                      span.count() * call.index_bytes, ran[slot]);
      RowCall part = span.of(call);
      part.from = table + (span.batch - batch) * slab;
      part.index = indexes[slot];
      part.to = outputs[slot];
      pipeline.launch(left[slot], ran[slot], [&] {
        in_place ? launch_in_place(part, span.first(call)) : launch_gather(part, span.first(call));
      });
      pipeline.download(output, span.first(call) * row, outputs[slot], span.count() * row,
                        ran[slot], left[slot]);
    });
    table_read[load].record(pipeline.run());
  }
  pipeline.finish();
}

// ---- Activations --------------------------------------------------------------------------------

void apply_in_pieces(Pipeline& pipeline, const ActivationCall& call, int64_t budget) {
  const HostArray inputs[2] = {HostArray(call.inputs[0]), HostArray(call.inputs[1])};
  const HostArray output(call.output);
  const int arrays = call.inputs_count() + 1;
  const int64_t room = budget / kRing / arrays - 256;
  const int64_t most =
      std::min({std::max<int64_t>(room, 0), kPieceBytes, call.size * call.element_bytes}) /
      call.element_bytes;
  if (most < 1) fail_small_budget(budget);
  const int64_t size = DeviceBlock::aligned(most * call.element_bytes);
  DeviceBlock block(kRing * arrays * size, pipeline);
  char* pieces[kRing][3];
  for (auto& slot : pieces) {
    for (int i = 0; i < arrays; ++i) slot[i] = block.take(size);
  }
  Event ran[kRing], left[kRing];
  int64_t number = 0;
  for (int64_t first = 0; first < call.size; first += most, ++number) {
    const int slot = static_cast<int>(number % kRing);
    ActivationCall part = call;
    part.size = std::min(most, call.size - first);
    const int64_t offset = first * call.element_bytes, bytes = part.size * call.element_bytes;
    for (int i = 0; i + 1 < arrays; ++i) {
      pipeline.upload(pieces[slot][i], inputs[i], offset, bytes, ran[slot]);
      part.inputs[i] = pieces[slot][i];
    }
    part.output = pieces[slot][arrays - 1];
    pipeline.launch(left[slot], ran[slot], [&] { apply(OnCuda{host_program()}, part); });
    pipeline.download(output, offset, part.output, bytes, ran[slot], left[slot]);
  }
  pipeline.finish();
}

}  // namespace

// All arrays are on the device together; other memory is left to the kernels.
void run_copied(const Arrays& arrays, const EntryKind& kind, torch_ops_stream stream,
                float* milliseconds, const Launch& launch) {
  translated([&] {
    need_kernels();
    const PipelineLease pipeline;
    const StreamScope scope(pipeline->run());
    pipeline->begin(static_cast<cudaStream_t>(stream), milliseconds != nullptr);
    int64_t bytes = 0;
    for (const Array& each : arrays) bytes += DeviceBlock::aligned(each.bytes);
    const int64_t budget = memory_budget();
    if (bytes > budget) {
      fail(TORCH_OPS_OUT_OF_MEMORY, "the call needs ", bytes,
           " bytes of device memory for its arrays, but it may take ", budget);
    }
    DeviceBlock block(std::max<int64_t>(bytes, 1), *pipeline.operator->());
    std::vector<void*> at;
    const Event nothing;
    Event computed, left;
    for (const Array& each : arrays) {
      at.push_back(block.take(each.bytes));
      if ((each.access & Array::kRead) == 0) continue;
      pipeline->upload(at.back(), HostArray(each.pointer), 0, each.bytes, nothing);
    }
    pipeline->launch(nothing, computed, [&] { launch(at, error_site(kind, Reports::kNow)); });
    for (size_t i = 0; i < arrays.size(); ++i) {
      if ((arrays[i].access & Array::kWritten) == 0) continue;
      pipeline->download(HostArray(arrays[i].pointer), 0, at[i], arrays[i].bytes, computed, left);
    }
    pipeline->finish();
    if (milliseconds != nullptr) *milliseconds = pipeline->milliseconds();
    raise_recorded(Reports::kNow, pipeline->run());
  });
}

void gather_host(const RowCall& call, torch_ops_stream stream, float* milliseconds) {
  within_budget(
      call.rows_bytes() == 0 || call.axis_size == 0, stream, milliseconds,
      [&] { gather(OnCpu{host_program()}, call); },  // checks the index
      [&](Pipeline& pipeline, int64_t budget) { gather_in_pieces(pipeline, call, budget); });
}

void apply_host(const ActivationCall& call, torch_ops_stream stream, float* milliseconds) {
  within_budget(
      call.size == 0, stream, milliseconds, [] {},
      [&](Pipeline& pipeline, int64_t budget) { apply_in_pieces(pipeline, call, budget); });
}

}  // namespace torch_ops::gpu
