// Calls on host pointers that a device computes. Data goes there in pieces, which overlap with the
// kernels and with the results' way back. Never more of it is there at a time than fits the device.
// docs/c_api.md says which method a call uses.
#include <algorithm>

#include "c_api/calls/activations.h"
#include "c_api/calls/rows.h"
#include "c_api/gpu/gpu.h"
#include "c_api/gpu/host_choice.h"
#include "c_api/gpu/pipeline.cuh"
#include "c_api/gpu/runtime.cuh"
#include "common/cuda/launch.cuh"
#include "common/indexing/index_error.cuh"
#include "common/indexing/index_view.cuh"
#include "gather/cuda/gather_part.cuh"

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

// scatter_add in two steps. Adds to `sums`, which are zeros at first; entries out of range are
// dropped, and recorded if the errors have a slot. Then rounds `size` of them to the call's dtype,
// if the sums are of another type.
void launch_add(const RowCall& call, void* sums, const IndexErrorSite& errors) {
  dispatch_summed(call.dtype, [&](auto value) {
    using Value = decltype(value);
    kernels::scatter_add_to<Value>(OnCuda{host_program()},
                                   reduce_call<Value, SumOf<Value>>(call, sums), errors);
  });
}

void launch_round(torch_ops_dtype dtype, const void* sums, void* result, int64_t size) {
  dispatch_summed(dtype, [&](auto value) {
    using Value = decltype(value);
    using Sum = SumOf<Value>;
    if constexpr (!std::is_same_v<Sum, Value>) {
      for_each(OnCuda{host_program()},
               RoundSums<Sum, Value>{static_cast<const Sum*>(sums), static_cast<Value*>(result)},
               size);
    }
  });
}

[[noreturn]] void fail_small_budget(int64_t budget) {
  fail(TORCH_OPS_OUT_OF_MEMORY, "the ", budget,
       " bytes of device memory that the call may take do not hold one row of it");
}

// Runs a call by attempt(pipeline, budget) within the available device memory. If another program
// took it in the meantime, tries again with less. A call that moves `nothing` is left to on_cpu().
template <class Otherwise, class Attempt>
void within_budget(bool nothing, torch_ops_stream stream, float* milliseconds, Otherwise&& on_cpu,
                   Attempt&& attempt) {
  translated(need_kernels);
  if (nothing) {
    if (milliseconds != nullptr) *milliseconds = 0;
    return on_cpu();
  }
  translated([&] {
    for (int64_t divisor = 1;; divisor *= 2) {
      try {
        const PipelineLease pipeline = lease_pipeline();
        const StreamScope scope(pipeline->run());
        pipeline->begin(static_cast<cudaStream_t>(stream), milliseconds != nullptr);
        attempt(*pipeline, memory_budget() / divisor);
        if (milliseconds != nullptr) *milliseconds = pipeline->milliseconds();
        return raise_recorded(Reports::kNow, pipeline->run());
      } catch (const CudaError& error) {
        if (error.code() != cudaErrorMemoryAllocation || divisor >= 64) throw;
      }
    }
  });
}

// ---- gather -------------------------------------------------------------------------------------

// Gathers from a table of which only the rows [first, first + call.axis_size) are there; `whole` is
// the size of the axis. Does not change the output of other entries. Errors are recorded with the
// first part.
void launch_gather_part(const RowCall& call, int64_t first, int64_t whole,
                        const IndexErrorSite& errors) {
  const IndexView view{call.index_array()};
  const int64_t words = call.entries * call.inner;
  dispatch_size(call.element_bytes, [&](auto word) {
    using Word = decltype(word);
    if constexpr (sizeof(Word) <= sizeof(uint64_t)) {
      TORCH_OPS_LAUNCH(gather_part_kernel<Word>, grid_x(words, kThreads), kThreads, 0,
                       static_cast<const Word*>(call.from), view, static_cast<Word*>(call.to),
                       call.entries, call.inner, first, first + call.axis_size, whole, errors);
    }
  });
}

// For a gather from a source that is read in place. Smaller than others, so that little of the
// index is uploaded before, and little of the result downloaded after, all the reading.
constexpr int64_t kInPlacePieceBytes = int64_t{2} << 20;

// Gathers from a source in the host's memory. A lane with a single word in flight takes less
// time there than one with four (4.3 ms for 2 Mi floats of 1 GiB, 5.3 to 5.8 with
// four, on an H200), so the kernel for parts of a table does it, one launch per batch.
void launch_in_place(const RowCall& call, int64_t first) {
  constexpr int64_t kWorthALaunch = 16384;
  if (call.entries * call.inner < kWorthALaunch) {
    return launch_gather(call, first);
  }
  const int64_t row = call.inner * call.element_bytes;
  for (int64_t b = 0; b < call.batch; ++b) {
    RowCall one = call;
    one.batch = 1;
    one.from = static_cast<const char*>(call.from) + b * call.axis_size * row;
    one.index = static_cast<const char*>(call.index) + b * call.entries * call.index_bytes;
    one.to = static_cast<char*>(call.to) + b * call.entries * row;
    launch_gather_part(one, 0, call.axis_size,
                       error_site(one.entry_kind(), Reports::kNow, first + b * call.entries));
  }
}

// How much of a gather is on the device at a time.
struct GatherPlan {
  int64_t span;         // entries of a span
  int64_t group;        // batches whose tables are there together; 0: a part of one
  int64_t part_rows;    // of such a part
  int64_t table_bytes;  // of a group or part
  int tables;           // of those at a time
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
  if (slab <= room) {
    // Groups of at least a piece's size; two, so that one is uploaded while the other is read.
    plan.group = std::clamp<int64_t>(kPieceBytes / slab, 1, std::min(call.batch, room / slab));
    plan.table_bytes = plan.group * slab;
    plan.tables = plan.group < call.batch && 2 * plan.table_bytes <= room ? 2 : 1;
    return plan;
  }
  // The whole table is uploaded for each span of entries: the spans are as large as possible.
  plan.span = span_within(budget / 2, budget);
  plan.part_rows = (budget - plan.span * entry) / 2 / row;
  plan.table_bytes = plan.part_rows * row;
  plan.tables = 2;
  return plan;
}

void gather_in_pieces(Pipeline& pipeline, const RowCall& call, int64_t budget) {
  const HostArray source(call.from), index(call.index), output(call.to);
  const bool in_place = source.pinned && is_sparse(call);
  const GatherPlan plan = plan_gather(call, in_place, budget - int64_t{256} * 2 * kRing * 2);
  if (plan.span < 1 || (plan.group == 0 && plan.part_rows < 1)) fail_small_budget(budget);
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

  const auto upload_index = [&](const Span& span) {
    const int slot = static_cast<int>(spans % kRing);
    pipeline.upload(indexes[slot], index, span.first(call) * call.index_bytes,
                    span.count() * call.index_bytes, ran[slot]);
  };
  const auto download_output = [&](const Span& span) {
    const int slot = static_cast<int>(spans++ % kRing);
    pipeline.download(output, span.first(call) * row, outputs[slot], span.count() * row, ran[slot],
                      left[slot]);
  };
  const auto on_device = [&](const Span& span, const void* table) {
    RowCall part = span.of(call);
    part.from = table;
    part.index = indexes[spans % kRing];
    part.to = outputs[spans % kRing];
    return part;
  };

  if (plan.group > 0) {
    for (int64_t batch = 0; batch < call.batch; batch += plan.group, ++loads) {
      const int64_t batches = std::min(plan.group, call.batch - batch);
      const int load = in_place ? 0 : static_cast<int>(loads % plan.tables);
      if (!in_place) {
        pipeline.upload(tables[load], source, batch * slab, batches * slab, table_read[load]);
      }
      const char* table = in_place ? source.on_device() : tables[load];
      for_each_span(call, batch, batches, plan.span, [&](const Span& span) {
        const int slot = static_cast<int>(spans % kRing);
        upload_index(span);
        const RowCall part = on_device(span, table + (span.batch - batch) * slab);
        pipeline.launch(left[slot], ran[slot], [&] {
          if (in_place) return launch_in_place(part, span.first(call));
          launch_gather(part, span.first(call));
        });
        download_output(span);
      });
      table_read[load].record(pipeline.run());
    }
    return pipeline.finish();
  }

  for_each_span(call, 0, call.batch, plan.span, [&](const Span& whole) {
    // A part of a table serves the entries of one batch.
    const int slot = static_cast<int>(spans % kRing);
    upload_index(whole);
    for (int64_t b = 0; b < whole.batches; ++b) {
      const Span span{whole.batch + b, 1, whole.entry, whole.entries};
      for (int64_t first = 0; first < call.axis_size; first += plan.part_rows, ++loads) {
        const int load = static_cast<int>(loads % plan.tables);
        RowCall part = on_device(span, tables[load]);
        part.index = indexes[slot] + b * whole.entries * call.index_bytes;
        part.to = outputs[slot] + b * whole.entries * row;
        part.axis_size = std::min(plan.part_rows, call.axis_size - first);
        pipeline.upload(tables[load], source, span.batch * slab + first * row, part.axis_size * row,
                        table_read[load]);
        const IndexErrorSite errors =
            error_site(call.entry_kind(), Reports::kNow, span.first(call));
        pipeline.launch(left[slot], table_read[load],
                        [&] { launch_gather_part(part, first, call.axis_size, errors); });
      }
    }
    ran[slot].record(pipeline.run());
    download_output(whole);
  });
  pipeline.finish();
}

// ---- scatter_add --------------------------------------------------------------------------------

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

// Writes the call's index, counted from the row `first` on, to `part`: entries outside of
// call.axis_size rows become call.axis_size. Errors are recorded with the first part.
void launch_localize(const RowCall& call, int64_t first, int64_t whole, int64_t* part,
                     const IndexErrorSite& errors) {
  TORCH_OPS_LAUNCH(localize_kernel, grid_x(call.entries, kThreads), kThreads, 0,
                   IndexView{call.index_array()}, call.entries, first, call.axis_size, whole, part,
                   errors);
}

struct ScatterPlan {
  int64_t span;      // entries of a span
  int64_t group;     // batches whose sums are there together; 0: a part of one's rows
  int64_t sum_rows;  // of the sums that are there
  int64_t out_rows;  // that are rounded and sent back at a time
};

void scatter_in_pieces(Pipeline& pipeline, const RowCall& call, int64_t budget) {
  const HostArray values(call.from), index(call.index), result(call.to);
  const int64_t row = call.inner * call.element_bytes;
  const bool in_place = call.element_bytes >= 4;
  const int64_t sum_row = in_place ? row : call.inner * static_cast<int64_t>(sizeof(uint32_t));
  const auto rows_of = [](int64_t bytes, int64_t each) {
    return std::max<int64_t>(bytes / each, 1);
  };

  // A quarter for the entries, at most an eighth for the way back, the rest for the sums.
  ScatterPlan plan{};
  const int64_t entry = kRing * (row + call.index_bytes) + static_cast<int64_t>(sizeof(int64_t));
  const int64_t rows = call.batch * call.axis_size;
  plan.span = std::min({budget / 4 / entry, rows_of(kPieceBytes, std::max(row, call.index_bytes)),
                        call.all_entries()});
  plan.out_rows = std::min({budget / 8 / kRing / row, rows_of(kPieceBytes, row), rows});
  const int64_t room = budget / 2 - int64_t{256} * 8;
  plan.group = std::min(call.batch, room / (call.axis_size * sum_row));
  plan.sum_rows = plan.group > 0 ? plan.group * call.axis_size : room / sum_row;
  if (plan.span < 1 || plan.out_rows < 1 || plan.sum_rows < 1) fail_small_budget(budget);

  const int64_t index_size = DeviceBlock::aligned(plan.span * call.index_bytes);
  const int64_t values_size = DeviceBlock::aligned(plan.span * row);
  const int64_t out_size = DeviceBlock::aligned(in_place ? 0 : plan.out_rows * row);
  const int64_t local_size = DeviceBlock::aligned(plan.group > 0 ? 0 : plan.span * int64_t{8});
  const int64_t sums_bytes = plan.sum_rows * sum_row;
  DeviceBlock block(
      kRing * (index_size + values_size + out_size) + local_size + DeviceBlock::aligned(sums_bytes),
      pipeline);
  char* indexes[kRing];
  char* pieces[kRing];
  char* outs[kRing];
  for (char*& each : indexes) each = block.take(index_size);
  for (char*& each : pieces) each = block.take(values_size);
  for (char*& each : outs) each = block.take(out_size);
  auto* local = block.take<int64_t>(local_size);
  char* sums = block.take(sums_bytes);

  const Event nothing;
  Event added[kRing], rounded[kRing], left[kRing], cleared, all_left;
  int64_t spans = 0, outs_done = 0;

  const auto clear = [&] {
    pipeline.launch(all_left, cleared, [&] {
      TORCH_OPS_CHECK_CUDA(cudaMemsetAsync(sums, 0, sums_bytes, pipeline.run()));
    });
  };
  // Uploads a span, and calls `add(part)` to add the part of it that is there.
  const auto add_span = [&](const Span& span, auto&& add) {
    const int slot = static_cast<int>(spans++ % kRing);
    pipeline.upload(indexes[slot], index, span.first(call) * call.index_bytes,
                    span.count() * call.index_bytes, added[slot]);
    pipeline.upload(pieces[slot], values, span.first(call) * row, span.count() * row, added[slot]);
    RowCall part = span.of(call);
    part.from = pieces[slot];
    part.index = indexes[slot];
    pipeline.launch(nothing, added[slot], [&] { add(part); });
  };
  // Sends `count` rows of sums to the result, from its row `first` on.
  const auto send = [&](int64_t first, int64_t count) {
    for (int64_t at = 0; at < count; at += plan.out_rows) {
      const int64_t some = std::min(plan.out_rows, count - at);
      const int slot = static_cast<int>(outs_done++ % kRing);
      const char* from = sums + at * sum_row;
      if (in_place) {
        rounded[slot].record(pipeline.run());
      } else {
        pipeline.launch(left[slot], rounded[slot],
                        [&] { launch_round(call.dtype, from, outs[slot], some * call.inner); });
        from = outs[slot];
      }
      pipeline.download(result, (first + at) * row, from, some * row, rounded[slot], left[slot]);
    }
    // The sums may be cleared once the last has left: downloads follow each other.
    if (outs_done > 0) all_left.record(pipeline.out());
  };

  if (plan.group > 0) {
    for (int64_t batch = 0; batch < call.batch; batch += plan.group) {
      const int64_t batches = std::min(plan.group, call.batch - batch);
      clear();
      for_each_span(call, batch, batches, plan.span, [&](const Span& span) {
        add_span(span, [&](const RowCall& part) {
          launch_add(part, sums + (span.batch - batch) * call.axis_size * sum_row,
                     error_site(part.entry_kind(), Reports::kNow, span.first(call)));
        });
      });
      send(batch * call.axis_size, batches * call.axis_size);
    }
    return pipeline.finish();
  }

  for (int64_t batch = 0; batch < call.batch; ++batch) {
    for (int64_t first = 0; first < call.axis_size; first += plan.sum_rows) {
      const int64_t rows_here = std::min(plan.sum_rows, call.axis_size - first);
      clear();
      for_each_span(call, batch, 1, plan.span, [&](const Span& span) {
        add_span(span, [&](RowCall part) {
          part.axis_size = rows_here;
          launch_localize(part, first, call.axis_size, local,
                          error_site(call.entry_kind(), Reports::kNow, span.first(call)));
          part.index = local;
          part.index_bytes = sizeof(*local);
          launch_add(part, sums, IndexErrorSite{});
        });
      });
      send(batch * call.axis_size + first, rows_here);
    }
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
    const PipelineLease pipeline = lease_pipeline();
    const StreamScope scope(pipeline->run());
    pipeline->begin(static_cast<cudaStream_t>(stream), milliseconds != nullptr);
    int64_t bytes = 0;
    for (const Array& each : arrays) bytes += DeviceBlock::aligned(each.bytes);
    const int64_t budget = memory_budget();
    if (bytes > budget) {
      fail(TORCH_OPS_OUT_OF_MEMORY, "the call needs ", bytes,
           " bytes of device memory for its arrays, but it may take ", budget);
    }
    DeviceBlock block(std::max<int64_t>(bytes, 1), *pipeline);
    Pointers at;
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

void scatter_add_host(const RowCall& call, torch_ops_stream stream, float* milliseconds) {
  within_budget(
      call.rows_bytes() == 0 || call.axis_size == 0, stream, milliseconds,
      [&] { scatter(OnCpu{host_program()}, {call}); },
      [&](Pipeline& pipeline, int64_t budget) { scatter_in_pieces(pipeline, call, budget); });
}

void apply_host(const ActivationCall& call, torch_ops_stream stream, float* milliseconds) {
  within_budget(
      call.size == 0, stream, milliseconds, [] {},
      [&](Pipeline& pipeline, int64_t budget) { apply_in_pieces(pipeline, call, budget); });
}

}  // namespace torch_ops::gpu
