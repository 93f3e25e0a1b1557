#include "common/host/parallel.h"
#include "gather/cpu/along_kernels.h"
#include "gather/gather_launch.h"

namespace torch_ops::kernels {

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
