#include "common/elementwise/elementwise_cpu.h"
#include "common/host/parallel.h"
#include "common/indexing/first_bad_entry.h"
#include "gather/cpu/along_kernels.h"
#include "gather/cpu/gather_kernels.h"
#include "gather/gather_launch.h"

namespace torch_ops::kernels {

int64_t gather(OnCpu on, const GatherCall<RowLayout>& call) {
  const HostScope scope(on.program);
  const RowLayout& layout = call.layout;
  const GatherPolicy& policy = call.policy;
  return dispatch_index(call.index, [&](const auto* entries) {
    if (layout.slabs() * layout.entries * layout.inner == 0) {
      // Nothing to copy, but the index must still be valid.
      return first_bad_entry(entries, layout, policy.rule);
    }
    return dispatch_size(call.element_bytes, [&](auto word) {
      using Word = decltype(word);
      const auto* from = static_cast<const Word*>(call.source);
      auto* to = static_cast<Word*>(call.output);
      return parallel_min(layout.slabs() * layout.entries, kElementsPerTask / layout.inner,
                          [&](int64_t begin, int64_t end) {
                            return gather_rows(cpu_simd(), from, entries, to, layout, policy, begin,
                                               end);
                          });
    });
  });
}

int64_t gather(OnCpu on, const GatherCall<ElementLayout>& call) {
  const HostScope scope(on.program);
  return dispatch_index(call.index, [&](const auto* entries) {
    return dispatch_size(call.element_bytes, [&](auto word) {
      using Word = decltype(word);
      const auto* from = static_cast<const Word*>(call.source);
      auto* to = static_cast<Word*>(call.output);
      return parallel_min(call.layout.count, kElementsPerTask, [&](int64_t begin, int64_t end) {
        return gather_along(from, entries, to, call.layout, call.policy, begin, end);
      });
    });
  });
}

}  // namespace torch_ops::kernels
