// The entries of a call in the order of their rows: as a plan has them, or sorted here.
#pragma once

#include "scatter/scatter.h"
#include "scatter/scatter_sorted_launch.cuh"

namespace torch_ops {

// A plan's entries. Its tensors serve as they are where rows and values are counted alike.
template <class Id>
SortedEntries<Id> planned_entries(const Plan& plan, const sorted::Shape<Id>& shape) {
  const bool alike = shape.batch == 1 || shape.outer == 1;
  if (alike && plan.rows.element_size() == sizeof(Id)) {
    return {static_cast<const Id*>(plan.rows.const_data_ptr()),
            static_cast<const Id*>(plan.order.const_data_ptr()),
            {}};
  }
  const int64_t count = shape.all_entries();
  c10::DataPtr memory = c10::cuda::CUDACachingAllocator::get()->allocate(2 * count * sizeof(Id));
  Id* keys = static_cast<Id*>(memory.get());
  TORCH_OPS_LAUNCH(sorted::spread_kernel<Id>, grid_x(count, sorted::kThreads), sorted::kThreads, 0,
                   view_index(plan.rows), view_index(plan.order), shape, keys, keys + count);
  return {keys, keys + count, std::move(memory)};
}

// `plan` may be null.
template <class Id>
SortedEntries<Id> entries_in_order(const Plan* plan, const at::Tensor& index,
                                   const RowLayout& layout, const IndexRule& rule,
                                   const sorted::Shape<Id>& shape, const IndexErrorSite& errors) {
  return plan != nullptr ? planned_entries(*plan, shape)
                         : sort_entries(index, layout, rule, shape, errors);
}

}  // namespace torch_ops
