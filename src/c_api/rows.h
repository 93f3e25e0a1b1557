// Calls of gather and scatter_add, as the kernels of src/gather and src/scatter take them.
#pragma once

#include "c_api/arguments.h"
#include "gather/gather_launch.h"
#include "scatter/scatter_launch.h"

namespace torch_ops {

inline GatherCall<RowLayout> gather_call(const RowCall& call) {
  return {call.from,
          call.element_bytes,
          call.index_array(),
          call.layout(),
          {IndexRule(IndexMode::kRaise, call.axis_size), {}},
          call.to};
}

template <class Value, class Result>
ReduceCall<Value, Result> scatter_call(const RowCall& call, void* result) {
  return {static_cast<const Value*>(call.from),         call.index_array(),           call.layout(),
          IndexRule(IndexMode::kRaise, call.axis_size), static_cast<Result*>(result), {}};
}

}  // namespace torch_ops
