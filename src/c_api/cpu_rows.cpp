// gather and scatter_add on the CPU: the kernels of src/gather and src/scatter.
#include "c_api/cpu.h"
#include "c_api/dispatch.h"
#include "c_api/rows.h"

namespace torch_ops::cpu {
namespace {

void raise_if_bad(const RowCall& call, int64_t position) {
  if (position == kNoBadEntry) return;
  const int64_t value = dispatch_index(call.index_bytes, [&](auto entry) {
    return static_cast<int64_t>(static_cast<const decltype(entry)*>(call.index)[position]);
  });
  throw IndexFailure(position, value, call.axis_size);
}

}  // namespace

void gather(const RowCall& call) {
  if (call.all_entries() == 0) return;
  raise_if_bad(call, kernels::gather(OnCpu{host_program()}, gather_call(call)));
}

void scatter_add(const RowCall& call) {
  int64_t bad = kNoBadEntry;
  dispatch_summed(call.dtype, [&](auto value, auto) {
    using Value = decltype(value);
    bad = kernels::scatter_add(OnCpu{host_program()}, scatter_call<Value, Value>(call, call.to));
  });
  raise_if_bad(call, bad);
}

}  // namespace torch_ops::cpu
