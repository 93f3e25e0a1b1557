// The entries of an index sorted by it, where no plan has them: for one call.
#include <ATen/ops/arange.h>
#include <ATen/ops/searchsorted.h>

#include <algorithm>
#include <memory>

#include "common/gather_family/call_indexed.h"
#include "common/torch/calls/new_output.h"
#include "jit/indexed/problem.h"
#include "scatter/scatter_launch.h"

namespace torch_ops::jit::indexed {

[[noreturn]] void raise_bad_entry(const Indexed& kernel, const Problem& problem, size_t index,
                                  int64_t position) {
  const Tensor& tensor = problem.indices[index];
  const int64_t value = tensor.view({-1})[position].item().toLong();
  const std::string entry =
      c10::str(kernel.indices[index], at::IntArrayRef(indexing::unravel(tensor.sizes(), position)));
  TORCH_CHECK_INDEX(
      false, indexing::out_of_range_text(kernel.name.c_str(), entry, value, problem.sizes[index]));
}

namespace {

template <class Id, class Entry>
void sort_host(const Indexed& kernel, const Problem& problem, size_t index, const Entry* entries,
               Id* order, Id* offsets) {
  const int64_t size = problem.sizes[index], rows = problem.batch * size;
  std::fill_n(offsets, rows + 1, Id{0});
  for (int64_t b = 0, at = 0; b < problem.batch; ++b) {
    Id* const counts = offsets + b * size + 1;
    for (int64_t e = 0; e < problem.entries; ++e, ++at) {
      const auto row = static_cast<int64_t>(entries[at]);
      if (row < 0 || row >= size) raise_bad_entry(kernel, problem, index, at);
      ++counts[row];
    }
  }
  for (int64_t row = 0; row < rows; ++row) offsets[row + 1] += offsets[row];
  const std::unique_ptr<Id[]> next(new Id[rows]);
  std::copy_n(offsets, rows, next.get());
  for (int64_t b = 0, at = 0; b < problem.batch; ++b) {
    Id* const places = next.get() + b * size;
    for (int64_t e = 0; e < problem.entries; ++e, ++at) {
      order[places[entries[at]]++] = static_cast<Id>(at);
    }
  }
}

Planned sorted_host(const Indexed& kernel, const Problem& problem, size_t index) {
  const int64_t rows = problem.batch * problem.sizes[index];
  const bool narrow = problem.positions() <= INT32_MAX && rows < INT32_MAX;
  const auto options = problem.indices[index].options().dtype(narrow ? at::kInt : at::kLong);
  Planned made;
  made.order = new_output({problem.positions()}, options);
  made.offsets = new_output({rows + 1}, options);
  const auto sort = [&](const auto* entries) {
    if (narrow) {
      sort_host(kernel, problem, index, entries, made.order.mutable_data_ptr<int32_t>(),
                made.offsets.mutable_data_ptr<int32_t>());
    } else {
      sort_host(kernel, problem, index, entries, made.order.mutable_data_ptr<int64_t>(),
                made.offsets.mutable_data_ptr<int64_t>());
    }
  };
  const Tensor& entries = problem.indices[index];
  entries.scalar_type() == at::kInt ? sort(entries.const_data_ptr<int32_t>())
                                    : sort(entries.const_data_ptr<int64_t>());
  return made;
}

#ifdef TORCH_OPS_WITH_CUDA
// Nothing waits for the device: entries out of range are recorded, and come after all rows.
Planned sorted_cuda(const Indexed& kernel, const Problem& problem, size_t index) {
  const Tensor& entries = problem.indices[index];
  const int64_t size = problem.sizes[index], rows = problem.batch * size;
  const bool narrow = problem.positions() <= INT32_MAX && rows < INT32_MAX;
  const auto options = entries.options().dtype(narrow ? at::kInt : at::kLong);
  const Tensor sorted = new_output({problem.positions()}, options);
  Planned made;
  made.order = new_output({problem.positions()}, options);
  const RowLayout layout =
      RowLayout::contiguous(problem.batch, /*outer=*/1, size, problem.entries, /*inner=*/1);
  const auto sort = [&](auto zero) {
    using Id = decltype(zero);
    kernels::sort_entries(OnCuda{torch_program()}, index_array(entries), layout,
                          static_cast<Id*>(sorted.mutable_data_ptr()),
                          static_cast<Id*>(made.order.mutable_data_ptr()),
                          error_site(kernel, problem, index));
  };
  narrow ? sort(uint32_t()) : sort(uint64_t());
  made.offsets = at::searchsorted(sorted, at::arange(rows + 1, options), /*out_int32=*/narrow);
  return made;
}
#endif

}  // namespace

#ifdef TORCH_OPS_WITH_CUDA
IndexErrorSite error_site(const Indexed& kernel, const Problem& problem, size_t index) {
  IndexErrorSite site = problem.errors->site;
  site.axis_size = problem.sizes[index];
  name_entries(site, kernel.error_names[index]->c_str(), problem.indices[index].sizes(),
               /*outer=*/1, problem.entries);
  return site;
}
#endif

Planned sorted_by(const Indexed& kernel, const Problem& problem, size_t index,
                  [[maybe_unused]] c10::Device device) {
#ifdef TORCH_OPS_WITH_CUDA
  if (device.is_cuda()) return sorted_cuda(kernel, problem, index);
#endif
  return sorted_host(kernel, problem, index);
}

}  // namespace torch_ops::jit::indexed
