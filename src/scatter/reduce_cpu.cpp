#include <ATen/Dispatch.h>
#include <ATen/ops/ones.h>

#include "common/elementwise_cpu.h"
#include "common/first_bad_entry.h"
#include "common/indexing.h"
#include "common/parallel.h"
#include "common/scratch.h"
#include "scatter/reduce.h"
#include "scatter/reduce_kernels.h"
#include "scatter/scatter.h"

namespace torch_ops {
namespace {

// Raises IndexError where an entry is an error.
void check_entries(const char* op, const at::Tensor& index, const RowLayout& layout,
                   const IndexRule& rule) {
  indexing::check_axis_not_empty(op, index, layout.axis_size, rule.mode());
  if (!rule.raises()) return;
  TORCH_OPS_DISPATCH_INDEX(index, "scatter", [&] {
    const index_t* entries = index.const_data_ptr<index_t>();
    const int64_t bad = parallel_min(layout.batch * layout.entries, kElementsPerTask,
                                     [&](int64_t begin, int64_t end) {
                                       return first_bad_entry(entries, layout, rule, begin, end);
                                     });
    if (bad == kNoBadEntry) return;
    indexing::raise_out_of_range(op, index, bad, layout.axis_size,
                                 rule.mode() == IndexMode::kFromEnd);
  });
}

// Calls use(part, run) for all entries of a call, by several threads.
template <class Use>
void reduce(const at::Tensor& index, const RowLayout& layout, const IndexRule& rule, Use&& use) {
  if (layout.slabs() * layout.entries * layout.inner == 0 || layout.axis_size == 0) return;
  const ReduceParts parts(layout, at::get_num_threads());
  TORCH_OPS_DISPATCH_INDEX(index, "scatter", [&] {
    const index_t* entries = index.const_data_ptr<index_t>();
    at::parallel_for(0, parts.count, 1, [&](int64_t begin, int64_t end) {
      for (int64_t number = begin; number < end; ++number) {
        const ReducePart part = parts.part(number, layout);
        for_each_part_run(entries, layout, rule, part,
                          [&](const ReduceRun& run) { use(part, run); });
      }
    });
  });
}

}  // namespace

void scatter_arg_cpu(const at::Tensor& values, const at::Tensor& index, const RowLayout& layout,
                     const IndexRule& rule, bool largest, const at::Tensor& positions) {
  check_entries("scatter", index, layout, rule);
  positions.fill_(layout.entries);
  auto* to = positions.mutable_data_ptr<int64_t>();
  TORCH_OPS_DISPATCH_ORDERED(values.scalar_type(), [&] {
    const auto* from = as_storage(values.const_data_ptr<value_t>());
    using Best = ComputeType<std::remove_const_t<std::remove_pointer_t<decltype(from)>>>;
    const Scratch<Best> found(positions.numel());
    const BestValues<Best> best{found.get(), to, layout.entries};
    reduce(index, layout, rule, [&](const ReducePart& part, const ReduceRun& run) {
      largest ? keep_best<true>(cpu_simd(), layout, part, run, from, best)
              : keep_best<false>(cpu_simd(), layout, part, run, from, best);
    });
  });
}

void scatter_prod_cpu(const at::Tensor& values, const at::Tensor& index, const RowLayout& layout,
                      const IndexRule& rule, const at::Tensor& products) {
  check_entries("scatter", index, layout, rule);
  const at::ScalarType wide = sum_type(products.scalar_type());
  const at::Tensor unrounded = at::ones(products.sizes(), products.options().dtype(wide));
  TORCH_OPS_DISPATCH_VALUES(values.scalar_type(), [&] {
    const auto* from = static_cast<const value_t*>(values.const_data_ptr());
    auto* to = static_cast<sum_t*>(unrounded.mutable_data_ptr());
    const auto multiply = [=](int64_t value, int64_t result, int64_t columns) {
      for (int64_t d = 0; d < columns; ++d) to[result + d] *= static_cast<sum_t>(from[value + d]);
    };
    reduce(index, layout, rule, [&](const ReducePart& part, const ReduceRun& run) {
      for_each_row(layout, part, run, multiply);
    });
  });
  products.copy_(unrounded);
}

}  // namespace torch_ops
