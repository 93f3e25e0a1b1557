// Launches for a part of a table, if the whole does not fit the device. On the current stream.
#pragma once

#include "c_api/frame/arguments.h"
#include "common/indexing/index_error.h"

namespace torch_ops::gpu {

// For a table of which only the rows [first, first + call.axis_size) are there; `whole` is the size
// of the axis. Does not change the output of other entries. Errors are recorded with the first
// part.
void launch_gather_part(const RowCall& call, int64_t first, int64_t whole,
                        const IndexErrorSite& errors);
// Writes the call's index, counted from the row `first` on, to `part`, int64: entries outside of
// call.axis_size rows become call.axis_size. Errors as above.
void launch_localize(const RowCall& call, int64_t first, int64_t whole, int64_t* part,
                     const IndexErrorSite& errors);

}  // namespace torch_ops::gpu
