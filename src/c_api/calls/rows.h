// Calls of gather and of scatter's reductions by an entry for each row, in the form for the kernels
// of src/gather and src/scatter.
#pragma once

#include "c_api/frame/run.h"
#include "c_api/frame/steps.h"
#include "gather/gather_launch.h"
#include "scatter/scatter_launch.h"

namespace torch_ops {

inline GatherCall<RowLayout> gather_call(const RowCall& call) {
  return {call.from,
          call.element_bytes,
          call.index_array(),
          call.layout(),
          {IndexRule(call.mode, call.axis_size), call.fill},
          call.to};
}

template <class Value, class Result>
ReduceCall<Value, Result> reduce_call(const RowCall& call, void* result,
                                      const PlanArrays& plan = {}) {
  return {static_cast<const Value*>(call.from), call.index_array(),           call.layout(),
          IndexRule(call.mode, call.axis_size), static_cast<Result*>(result), plan};
}

// Writes `count` elements, all with these bytes.
template <class On>
void fill_all(On on, void* to, int64_t count, int64_t element_bytes, const FillPattern& fill) {
  dispatch_size(element_bytes, [&](auto word) {
    using Word = decltype(word);
    if constexpr (sizeof(Word) <= sizeof(uint64_t)) {
      for_each(on, Fill<Word>{fill.word<Word>(), static_cast<Word*>(to)}, count);
    }
  });
}

template <class On, class... Errors>
void gather(On on, const RowCall& call, const Errors&... errors) {
  if (call.all_entries() == 0) return;
  const int64_t elements = call.all_entries() * call.inner;
  check_axis_not_empty(call.all_entries(), call.entry_kind());
  if (call.axis_size == 0) return fill_all(on, call.to, elements, call.element_bytes, call.fill);
  if (std::is_same_v<On, OnCuda> && elements == 0) return;
  checked(
      on, call.index_array(), call.entry_kind(),
      [&](const auto&... site) { return kernels::gather(on, gather_call(call), site...); },
      errors...);
}

// A reduction of a call's values.
struct ScatterCall {
  RowCall rows;
  torch_ops_reduce reduce = TORCH_OPS_REDUCE_SUM;
  bool repeatable = false;
  bool onto = false;  // adds to the result
  PlanArrays plan{};
};

void scatter(OnCpu on, const ScatterCall& call);
void scatter(OnCuda on, const ScatterCall& call, const IndexErrorSite& errors);

// Writes which entry of the index has the largest value, or the smallest, to `call.to`.
void scatter_arg(OnCpu on, const RowCall& call, bool largest);
void scatter_arg(OnCuda on, const RowCall& call, bool largest, const IndexErrorSite& errors);

// Does a reduction accept the dtype?
void check_reduce(torch_ops_reduce reduce, torch_ops_dtype dtype);

inline void set_flags(ScatterCall& call, int32_t flags) {
  check_flags(flags, TORCH_OPS_DETERMINISTIC | TORCH_OPS_ONTO_RESULT);
  call.repeatable = (flags & TORCH_OPS_DETERMINISTIC) != 0;
  call.onto = (flags & TORCH_OPS_ONTO_RESULT) != 0;
  if (call.onto && call.reduce != TORCH_OPS_REDUCE_SUM) {
    fail(TORCH_OPS_INVALID_ARGUMENT, "TORCH_OPS_ONTO_RESULT is for TORCH_OPS_REDUCE_SUM (",
         TORCH_OPS_REDUCE_SUM, "), but reduce is ", call.reduce);
  }
}

}  // namespace torch_ops
