// The ways of a sum on CUDA, of which run.cu chooses one (choose.h): each is launched
// on the current stream and writes its whole result. Values and result are not empty. No torch.
#pragma once

#include "scatter/scatter_launch.h"
#include "scatter/sum/small_cut.h"

namespace torch_ops {

// Zeros. Of 16 bits in three quarters of the time that torch's kernel takes (docs/gather.md). The
// next kernel may begin beside this one. `leave_shared`: it needs much shared memory.
void zero(void* memory, int64_t bytes, bool leave_shared = false);

// Few entries per slab, in one kernel; by a sparse cut for the 16-bit floats.
template <class Value>
void sum_small(const ReduceCall<Value, Value>& call, const SmallCut& cut,
               const IndexErrorSite& errors);

// In fixed point, where choose_binning() says that it pays. Value is a float of 2 or 4 bytes.
template <class Value>
void sum_binned(const ReduceCall<Value, Value>& call, const IndexErrorSite& errors);

// Sorted entries. Value is a float.
template <class Value, class Result>
void sum_sorted(const ReduceCall<Value, Result>& call, const IndexErrorSite& errors);

// Few entries to many rows (has_few_entries), by atomics on a table of floats for the rows that
// have entries alone. Value is a 16-bit float.
template <class Value>
void sum_few(const ReduceCall<Value, Value>& call, const IndexErrorSite& errors);

// Adds by atomics to what the result holds; neither index nor rows are empty. `fresh`: zero() has
// just made it, nothing was launched since, and the kernel may begin before it has ended.
template <class Value>
void add_in_any_order(const ReduceCall<Value, SumOf<Value>>& call, bool fresh,
                      const IndexErrorSite& errors);

}  // namespace torch_ops
