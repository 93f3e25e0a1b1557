// Plans: indices that are checked and sorted once, for many gathers and reductions.
#include <cstring>
#include <memory>

#include "c_api/calls/rows.h"

// On a host the entries are not sorted: the kernels for the CPU would not use the order.
struct torch_ops_plan {
  torch_ops_memory memory;
  torch_ops::RowCall rows;  // of one element, without values
  std::unique_ptr<char[]> on_host;
  torch_ops::gpu::PlanOnDevice on_device;

  ~torch_ops_plan() {
    try {
      torch_ops::gpu::free_plan(on_device);
    } catch (const std::exception&) {  // a lost context took the memory with it
    }
  }
};

namespace torch_ops {
namespace {

bool is_on_device(const torch_ops_plan& plan) {
  return plan.memory == TORCH_OPS_DEVICE || plan.memory == TORCH_OPS_HOST_GPU;
}

void fill_plan(torch_ops_plan& plan, const void* index, torch_ops_stream stream) {
  RowCall& rows = plan.rows;
  check_axis_not_empty(rows.all_entries(), rows.entry_kind());
  if (is_on_device(plan)) {
    gpu::make_plan(plan.on_device, rows, plan.memory == TORCH_OPS_HOST_GPU, stream);
    rows.index = plan.on_device.index;
  } else if (rows.all_entries() > 0) {
    const OnCpu on{host_program()};
    raise_if_bad(rows.index_array(),
                 kernels::find_bad_entry(on, rows.index_array(), rows.layout(),
                                         IndexRule(IndexMode::kRaise, rows.axis_size)),
                 rows.entry_kind());
    plan.on_host.reset(new char[rows.all_index_bytes()]);
    std::memcpy(plan.on_host.get(), index, rows.all_index_bytes());
    rows.index = plan.on_host.get();
  }
  rows.mode = IndexMode::kUnchecked;  // the index was checked, and is our own
}

const torch_ops_plan& check_plan(const torch_ops_plan* plan) {
  if (plan == nullptr) fail(TORCH_OPS_NULL_POINTER, "plan is NULL");
  return *plan;
}

// A call on the plan's index.
RowCall check_planned(const torch_ops_plan& plan, const char* from_name, const void* from,
                      const char* to_name, void* to, bool table_first, int64_t inner,
                      torch_ops_dtype dtype) {
  const RowCall& own = plan.rows;
  RowCall call =
      check_rows(from_name, from, own.index, to_name, to, table_first, own.batch, own.axis_size,
                 own.entries, inner, dtype,
                 own.index_bytes == 4 ? TORCH_OPS_INDEX_INT32 : TORCH_OPS_INDEX_INT64, plan.memory);
  call.mode = own.mode;
  return call;
}

// Like run(), for the plan's index: compute(on, call, errors...).
template <class Compute>
void run_planned(const torch_ops_plan& plan, const RowCall& call, Array::Access access,
                 torch_ops_stream stream, float* milliseconds, Compute&& compute) {
  Arrays arrays = call.arrays(access);
  arrays[1].name = "the plan";
  if (plan.memory == TORCH_OPS_HOST_GPU) arrays[1].bytes = 0;  // it is already there
  const auto go = [&] {
    run(arrays, call.entry_kind(), plan.memory, stream, milliseconds,
        [&](auto on, const Pointers& at, const auto&... errors) {
          RowCall there = call.at(at);
          there.index = call.index;
          compute(on, there, errors...);
        });
  };
  plan.memory == TORCH_OPS_HOST_GPU ? gpu::with_device(plan.on_device.device, go) : go();
}

}  // namespace
}  // namespace torch_ops

using namespace torch_ops;

extern "C" {

torch_ops_status torch_ops_plan_create(const void* index, int64_t batch, int64_t axis_size,
                                       int64_t entries, torch_ops_index_type index_type,
                                       torch_ops_memory memory, torch_ops_stream stream,
                                       torch_ops_plan** plan) {
  return guarded(__func__, [&] {
    if (plan == nullptr) fail(TORCH_OPS_NULL_POINTER, "plan is NULL");
    *plan = nullptr;
    const RowCall rows =
        check_rows("source", nullptr, index, "output", nullptr, /*table_first=*/true, batch,
                   axis_size, entries, /*inner=*/0, TORCH_OPS_UINT8, index_type, memory);
    checked_bytes("the array of all rows", 16, batch, axis_size);
    checked_bytes("the array of all entries", 16, batch, entries);
    std::unique_ptr<torch_ops_plan> made(new torch_ops_plan{memory, rows, nullptr, {}});
    made->rows.inner = 1;
    fill_plan(*made, index, stream);
    *plan = made.release();
  });
}

torch_ops_status torch_ops_plan_destroy(torch_ops_plan* plan) {
  return guarded(__func__, [&] { delete plan; });
}

torch_ops_status torch_ops_plan_gather(const torch_ops_plan* plan, const void* source, void* output,
                                       int64_t inner, torch_ops_dtype dtype,
                                       torch_ops_stream stream, float* milliseconds) {
  return guarded(__func__, [&] {
    const torch_ops_plan& by = check_plan(plan);
    const RowCall call = check_planned(by, "source", source, "output", output,
                                       /*table_first=*/true, inner, dtype);
    run_planned(by, call, Array::kWritten, stream, milliseconds,
                [&](auto on, const RowCall& there, const auto&... errors) {
                  gather(on, there, errors...);
                });
  });
}

torch_ops_status torch_ops_plan_scatter(const torch_ops_plan* plan, const void* values,
                                        void* result, int64_t inner, torch_ops_dtype dtype,
                                        torch_ops_reduce reduce, int32_t flags,
                                        torch_ops_stream stream, float* milliseconds) {
  return guarded(__func__, [&] {
    const torch_ops_plan& by = check_plan(plan);
    ScatterCall call{
        check_planned(by, "values", values, "result", result, /*table_first=*/false, inner, dtype)};
    check_reduce(reduce, dtype);
    call.reduce = reduce;
    set_flags(call, flags);
    call.repeatable = true;
    call.plan = by.on_device.sorted;
    run_planned(by, call.rows, call.onto ? Array::kReadAndWritten : Array::kWritten, stream,
                milliseconds, [&](auto on, const RowCall& there, const auto&... errors) {
                  ScatterCall here = call;
                  here.rows = there;
                  scatter(on, here, errors...);
                });
  });
}

}  // extern "C"
