// gather on the device: the kernels of src/gather.
#include "c_api/dispatch.h"
#include "c_api/gpu.h"
#include "c_api/gpu_runtime.cuh"
#include "c_api/rows.h"
#include "common/indexing/index_view.cuh"
#include "gather/cuda/gather_part.cuh"
#include "gather/gather_launch.h"

namespace torch_ops::gpu {

void launch_gather(const RowCall& call, const IndexErrorSite& errors) {
  kernels::gather(OnCuda{host_program()}, gather_call(call), errors);
}

void launch_gather_part(const RowCall& call, int64_t first, int64_t whole,
                        const IndexErrorSite& errors) {
  const IndexView view{call.index_array()};
  const int64_t words = call.entries * call.inner;
  const auto launch = [&](auto word) {
    using Word = decltype(word);
    TORCH_OPS_LAUNCH(gather_part_kernel<Word>, grid_x(words, kThreads), kThreads, 0,
                     static_cast<const Word*>(call.from), view, static_cast<Word*>(call.to),
                     call.entries, call.inner, first, first + call.axis_size, whole, errors);
  };
  switch (call.element_bytes) {
    case 1:
      return launch(uint8_t());
    case 2:
      return launch(uint16_t());
    case 4:
      return launch(uint32_t());
    default:
      return launch(uint64_t());
  }
}

void gather(const RowCall& call, torch_ops_stream stream, float* milliseconds) {
  queue({{"source", call.from, call.table_bytes()},
         {"index", call.index, call.all_index_bytes()},
         {"output", call.to, call.rows_bytes()}},
        stream, milliseconds, [&](Reports reports) {
          if (call.all_entries() > 0 && call.axis_size == 0) throw IndexFailure(0, 0, 0);
          if (call.rows_bytes() > 0) launch_gather(call, error_site(call, reports));
        });
}

}  // namespace torch_ops::gpu
