// The functions of torch_ops.h with an entry for each row.
#include "c_api/calls/rows.h"

#include "c_api/gpu/host_choice.h"
#include "c_api/own_program.h"

namespace torch_ops {
namespace {

void run_gather(const RowCall& call, torch_ops_memory memory, torch_ops_stream stream,
                float* milliseconds) {
  run(call.arrays(), call.entry_kind(), memory, stream, milliseconds,
      [&](auto on, const Pointers& at, const auto&... errors) {
        gather(on, call.at(at), errors...);
      });
}

// If memory is the host's, CPU or GPU computes, whichever is faster.
void run_fastest_gather(const RowCall& call, torch_ops_memory memory, torch_ops_stream stream,
                        float* milliseconds) {
  const bool in_pieces =
      memory == TORCH_OPS_HOST_GPU ||
      (memory == TORCH_OPS_HOST && gather_on_device(call, gpu::is_pinned) && gpu::is_usable());
  in_pieces ? gpu::gather_host(call, stream, milliseconds)
            : run_gather(call, memory, stream, milliseconds);
}

void run_scatter(const ScatterCall& call, torch_ops_memory memory, torch_ops_stream stream,
                 float* milliseconds, const own::Workspace& workspace = {}) {
  run(call.rows.arrays(call.onto ? Array::kReadAndWritten : Array::kWritten),
      call.rows.entry_kind(), memory, stream, milliseconds,
      [&](auto on, const Pointers& at, const auto&... errors) {
        const own::WorkspaceScope scope(workspace);
        ScatterCall there = call;
        there.rows = call.rows.at(at);
        scatter(on, there, errors...);
      });
}

// The most that a call of scatter_add needs if it adds by atomics.
int64_t workspace_bytes(int64_t batch, int64_t axis_size, int64_t inner, torch_ops_dtype dtype) {
  const int64_t sums = checked_bytes("the workspace", 4, batch, axis_size, inner);
  return element_bytes(dtype) < 4 ? sums : 0;
}

void check_workspace(const RowCall& call, const own::Workspace& workspace) {
  if (workspace.memory == nullptr) return;
  const int64_t need = workspace_bytes(call.batch, call.axis_size, call.inner, call.dtype);
  if (workspace.bytes < need) {
    fail(TORCH_OPS_SMALL_WORKSPACE, "workspace must have ", need,
         " bytes (torch_ops_scatter_add_workspace), but it has ", workspace.bytes);
  }
  if (reinterpret_cast<uintptr_t>(workspace.memory) % own::kWorkspaceAlignment != 0) {
    fail(TORCH_OPS_MISALIGNED_POINTER, "workspace must be at a multiple of ",
         own::kWorkspaceAlignment, " bytes, but it is at ", workspace.memory);
  }
}

// The plain forms return the negated status; other functions return the status.
float plain_gather(const char* function, const float* source, const int* index, float* res,
                   int64_t N, int64_t M, int64_t B) {
  float milliseconds = 0;
  const torch_ops_status status = guarded(function, [&] {
    check_size("B", B);
    check_size("N", N);
    check_size("M", M);
    const RowCall call =
        check_rows("source", source, index, "res", res, /*table_first=*/true, B, M, N, /*inner=*/1,
                   TORCH_OPS_FLOAT32, TORCH_OPS_INDEX_INT32, TORCH_OPS_HOST);
    run_fastest_gather(call, TORCH_OPS_HOST, nullptr, &milliseconds);
  });
  return status == TORCH_OPS_SUCCESS ? milliseconds : -static_cast<float>(status);
}

}  // namespace
}  // namespace torch_ops

using namespace torch_ops;

extern "C" {

torch_ops_status torch_ops_gather(const void* source, const void* index, void* output,
                                  int64_t axis_size, int64_t entries, int64_t inner,
                                  torch_ops_dtype dtype, torch_ops_index_type index_type,
                                  torch_ops_memory memory, torch_ops_stream stream,
                                  float* milliseconds) {
  return guarded(__func__, [&] {
    run_fastest_gather(
        check_rows("source", source, index, "output", output, /*table_first=*/true, /*batch=*/1,
                   axis_size, entries, inner, dtype, index_type, memory),
        memory, stream, milliseconds);
  });
}

torch_ops_status torch_ops_batch_gather(const void* source, const void* index, void* output,
                                        int64_t batch, int64_t axis_size, int64_t entries,
                                        int64_t inner, torch_ops_dtype dtype,
                                        torch_ops_index_type index_type, torch_ops_memory memory,
                                        torch_ops_stream stream, float* milliseconds) {
  return guarded(__func__, [&] {
    run_fastest_gather(check_rows("source", source, index, "output", output, /*table_first=*/true,
                                  batch, axis_size, entries, inner, dtype, index_type, memory),
                       memory, stream, milliseconds);
  });
}

torch_ops_status torch_ops_gather_rows(const void* source, const void* index, void* output,
                                       int64_t batch, int64_t axis_size, int64_t entries,
                                       int64_t inner, torch_ops_dtype dtype,
                                       torch_ops_index_type index_type, torch_ops_mode mode,
                                       const void* fill, torch_ops_memory memory,
                                       torch_ops_stream stream, float* milliseconds) {
  return guarded(__func__, [&] {
    RowCall call = check_rows("source", source, index, "output", output, /*table_first=*/true,
                              batch, axis_size, entries, inner, dtype, index_type, memory);
    call.mode = index_mode(mode);
    call.fill = fill_pattern(fill, call.element_bytes);
    run_gather(call, memory, stream, milliseconds);
  });
}

torch_ops_status torch_ops_scatter_add(const void* values, const void* index, void* result,
                                       int64_t batch, int64_t axis_size, int64_t entries,
                                       int64_t inner, torch_ops_dtype dtype,
                                       torch_ops_index_type index_type, torch_ops_memory memory,
                                       torch_ops_stream stream, void* workspace,
                                       int64_t workspace_bytes, float* milliseconds) {
  return guarded(__func__, [&] {
    check_size("workspace_bytes", workspace_bytes);
    const RowCall call =
        check_rows("values", values, index, "result", result, /*table_first=*/false, batch,
                   axis_size, entries, inner, dtype, index_type, memory);
    const auto in_pieces = [&] {
      return memory == TORCH_OPS_HOST_GPU ||
             (memory == TORCH_OPS_HOST &&
              stream_on_device(call.rows_bytes() + call.table_bytes(), gpu::is_pinned, values,
                               result) &&
              gpu::is_usable());
    };
    if (in_pieces()) return gpu::scatter_add_host(call, stream, milliseconds);
    const own::Workspace given{workspace, workspace_bytes};
    const bool on_device = memory == TORCH_OPS_DEVICE;
    if (on_device) check_workspace(call, given);
    run_scatter({call}, memory, stream, milliseconds, on_device ? given : own::Workspace{});
  });
}

torch_ops_status torch_ops_scatter_add_workspace(int64_t batch, int64_t axis_size, int64_t inner,
                                                 torch_ops_dtype dtype, torch_ops_memory memory,
                                                 int64_t* bytes) {
  return guarded(__func__, [&] {
    check_memory(memory);
    check_size("batch", batch);
    check_size("axis_size", axis_size);
    check_size("inner", inner);
    const int64_t need = workspace_bytes(batch, axis_size, inner, dtype);
    if (bytes == nullptr) fail(TORCH_OPS_NULL_POINTER, "bytes is NULL");
    *bytes = memory == TORCH_OPS_DEVICE ? need : 0;
  });
}

torch_ops_status torch_ops_scatter(const void* values, const void* index, void* result,
                                   int64_t batch, int64_t axis_size, int64_t entries, int64_t inner,
                                   torch_ops_dtype dtype, torch_ops_index_type index_type,
                                   torch_ops_reduce reduce, torch_ops_mode mode, int32_t flags,
                                   torch_ops_memory memory, torch_ops_stream stream,
                                   float* milliseconds) {
  return guarded(__func__, [&] {
    ScatterCall call{check_rows("values", values, index, "result", result, /*table_first=*/false,
                                batch, axis_size, entries, inner, dtype, index_type, memory)};
    check_reduce(reduce, dtype);
    call.rows.mode = index_mode(mode);
    call.reduce = reduce;
    set_flags(call, flags);
    run_scatter(call, memory, stream, milliseconds);
  });
}

torch_ops_status torch_ops_scatter_arg(const void* values, const void* index, int64_t* positions,
                                       int64_t batch, int64_t axis_size, int64_t entries,
                                       int64_t inner, torch_ops_dtype dtype,
                                       torch_ops_index_type index_type, torch_ops_reduce reduce,
                                       torch_ops_mode mode, torch_ops_memory memory,
                                       torch_ops_stream stream, float* milliseconds) {
  return guarded(__func__, [&] {
    RowCall call = check_rows("values", values, index, "positions", positions,
                              /*table_first=*/false, batch, axis_size, entries, inner, dtype,
                              index_type, memory);
    check_reduce(reduce, dtype);
    if (reduce < TORCH_OPS_REDUCE_AMAX) {
      fail(TORCH_OPS_INVALID_ARGUMENT, "reduce must be TORCH_OPS_REDUCE_AMAX (",
           TORCH_OPS_REDUCE_AMAX, ") or TORCH_OPS_REDUCE_AMIN (", TORCH_OPS_REDUCE_AMIN,
           "), but it is ", reduce);
    }
    call.mode = index_mode(mode);
    Arrays arrays = call.arrays();
    arrays[2].bytes = checked_bytes("positions", sizeof(int64_t), batch, axis_size, inner);
    check_pointer("positions", positions, arrays[2].bytes, sizeof(int64_t));
    run(arrays, call.entry_kind(), memory, stream, milliseconds,
        [&](auto on, const Pointers& at, const auto&... errors) {
          scatter_arg(on, call.at(at), reduce == TORCH_OPS_REDUCE_AMAX, errors...);
        });
  });
}

float torch_ops_gather_host(const float* source, const int* index, float* res, int N, int M) {
  return plain_gather(__func__, source, index, res, N, M, 1);
}

float torch_ops_batch_gather_host(const float* source, const int* index, float* res, int N, int M,
                                  int B) {
  return plain_gather(__func__, source, index, res, N, M, B);
}

}  // extern "C"
