// The entries of an index sorted by it, where no plan has them: for one call.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/where.h>

#include <algorithm>
#include <memory>

#include "common/gather_family/indexing.h"
#include "common/torch/new_output.h"
#include "jit/indexed/problem.h"

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

// Nothing waits for the device: entries out of range come before or behind all rows, where no row's
// offsets reach. A pass of its own tells of them.
Planned sorted_cuda(const Problem& problem, size_t index) {
  const int64_t size = problem.sizes[index], rows = problem.batch * size;
  Tensor keys = problem.indices[index].reshape({problem.batch, problem.entries});
  if (problem.batch > 1) {
    const Tensor first = at::arange(problem.batch, keys.options().dtype(at::kLong)) * size;
    const Tensor is_row = keys.ge(0).logical_and(keys.lt(size));
    keys = at::where(is_row, keys + first.unsqueeze(1), at::Scalar(-1));
  }
  const auto [sorted, order] =
      at::sort(keys.flatten(), std::optional<bool>(/*stable=*/true), /*dim=*/0);
  Planned made;
  made.order = order;
  made.offsets = at::searchsorted(sorted, at::arange(rows + 1, sorted.options()));
  return made;
}

}  // namespace

Planned sorted_by(const Indexed& kernel, const Problem& problem, size_t index, c10::Device device) {
  return device.is_cuda() ? sorted_cuda(problem, index) : sorted_host(kernel, problem, index);
}

}  // namespace torch_ops::jit::indexed
