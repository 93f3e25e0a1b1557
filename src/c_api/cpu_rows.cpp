// gather and scatter_add on the CPU: the loops of src/gather and src/scatter over the threads of
// thread_pool.cpp.
#include <cstring>

#include "c_api/cpu.h"
#include "c_api/dispatch.h"
#include "common/elementwise_cpu.h"
#include "common/first_bad_entry.h"
#include "common/parallel.h"
#include "gather/gather_kernels.h"
#include "scatter/scatter_cpu_call.h"

namespace torch_ops::cpu {
namespace {

void raise_if_bad(const RowCall& call, int64_t position) {
  if (position == kNoBadEntry) return;
  const int64_t value = dispatch_index(call.index_bytes, [&](auto entry) {
    return static_cast<int64_t>(static_cast<const decltype(entry)*>(call.index)[position]);
  });
  throw IndexFailure(position, value, call.axis_size);
}

// Of a call that moves nothing: the index must be right all the same.
int64_t check_index(const RowCall& call) {
  return dispatch_index(call.index_bytes, [&](auto entry) {
    const IndexRule rule(IndexMode::kRaise, call.axis_size);
    return first_bad_entry(static_cast<const decltype(entry)*>(call.index), call.layout(), rule, 0,
                           call.all_entries());
  });
}

template <class Word>
int64_t gather_words(const RowCall& call) {
  const RowLayout layout = call.layout();
  const GatherPolicy policy{IndexRule(IndexMode::kRaise, call.axis_size), {}};
  return dispatch_index(call.index_bytes, [&](auto entry) {
    using Index = decltype(entry);
    return parallel_min(
        call.all_entries(), kElementsPerTask / call.inner, [&](int64_t begin, int64_t end) {
          return gather_rows(cpu_simd(), static_cast<const Word*>(call.from),
                             static_cast<const Index*>(call.index), static_cast<Word*>(call.to),
                             layout, policy, begin, end);
        });
  });
}

int64_t gather_any(const RowCall& call) {
  switch (call.element_bytes) {
    case 1:
      return gather_words<uint8_t>(call);
    case 2:
      return gather_words<uint16_t>(call);
    case 4:
      return gather_words<uint32_t>(call);
    default:
      return gather_words<uint64_t>(call);
  }
}

}  // namespace

void gather(const RowCall& call) {
  if (call.all_entries() == 0) return;
  raise_if_bad(call, call.inner == 0 || call.axis_size == 0 ? check_index(call) : gather_any(call));
}

void scatter_add(const RowCall& call) {
  if (call.rows_bytes() == 0) {
    if (call.table_bytes() > 0) std::memset(call.to, 0, call.table_bytes());
    return raise_if_bad(call, check_index(call));
  }
  if (call.axis_size == 0) return raise_if_bad(call, check_index(call));
  const IndexRule rule(IndexMode::kRaise, call.axis_size);
  int64_t bad = kNoBadEntry;
  dispatch_summed(call.dtype, [&](auto value, auto) {
    using Value = decltype(value);
    bad = dispatch_index(call.index_bytes, [&](auto entry) {
      using Index = decltype(entry);
      return ScatterAdd<Value, Index>(static_cast<const Value*>(call.from),
                                      static_cast<const Index*>(call.index), call.layout(), rule,
                                      static_cast<Value*>(call.to))
          .run();
    });
  });
  raise_if_bad(call, bad);
}

}  // namespace torch_ops::cpu
