#include <ATen/Dispatch.h>
#include <ATen/ops/ones.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "common/elementwise_cpu.h"
#include "common/first_bad_entry.h"
#include "common/indexing.h"
#include "common/new_output.h"
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
    const int64_t grain = kElementsPerTask / (layout.entries * layout.inner / parts.strips + 1) + 1;
    at::parallel_for(0, parts.count, grain, [&](int64_t begin, int64_t end) {
      for (int64_t number = begin; number < end; ++number) {
        const ReducePart part = parts.part(number, layout);
        for_each_part_run(entries, layout, rule, part,
                          [&](const ReduceRun& run) { use(part, run); });
      }
    });
  });
}

// The order of a dtype's numbers, of which a Key has the bits.
template <class Key>
KeyOrder<Key> order_of(at::ScalarType dtype, bool largest) {
  if (!at::isFloatingType(dtype)) {
    const auto kind = dtype == at::kByte ? NumberKind::kUnsigned : NumberKind::kSigned;
    return {kind, largest, Key()};
  }
  const uint64_t infinity = dtype == at::kHalf       ? 0x7c00
                            : dtype == at::kBFloat16 ? 0x7f80
                            : dtype == at::kFloat    ? 0x7f800000
                                                     : 0x7ff0000000000000;
  return {NumberKind::kFloat, largest, static_cast<Key>(infinity)};
}

// Which rows, of [batch, axis_size], have entries.
template <class Index>
std::vector<char> find_named(const Index* entries, const RowLayout& layout, const IndexRule& rule) {
  std::vector<char> named(layout.batch * layout.axis_size);
  with_rule(rule, [&](auto row_of) {
    for (int64_t b = 0; b < layout.batch; ++b) {
      for (int64_t n = 0; n < layout.entries; ++n) {
        const auto row = static_cast<int64_t>(
            row_of(entries[b * layout.index_batch_stride + n * layout.index_entry_stride]));
        if (in_range(row, layout.axis_size)) named[b * layout.axis_size + row] = 1;
      }
    }
  });
  return named;
}

template <class Key>
struct ByName {
  Key some, none;
  Key operator()(char has) const { return has != 0 ? some : none; }
};

// Sets the rows that have entries to `some`, and the others to `none`.
template <class Key>
void fill_by_name(const at::Tensor& index, const RowLayout& layout, const IndexRule& rule, Key some,
                  Key none, Key* result) {
  std::vector<char> named;
  TORCH_OPS_DISPATCH_INDEX(
      index, "scatter", [&] { named = find_named(index.const_data_ptr<index_t>(), layout, rule); });
  const int64_t rows = layout.slabs() * layout.axis_size, columns = layout.inner;
  at::parallel_for(
      0, rows, kElementsPerTask / std::max<int64_t>(columns, 1) + 1,
      [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end;) {
          const int64_t slab = row / layout.axis_size, last = (slab + 1) * layout.axis_size;
          const char* const has = named.data() + slab / layout.outer * layout.axis_size -
                                  slab * layout.axis_size;  // its row 0 is that of all slabs
          const int64_t stop = std::min(last, end);
          if (columns == 1) {
            map_range(cpu_simd(), ByName<Key>{some, none}, row, stop, result, has);
          } else {
            for (int64_t r = row; r < stop; ++r) {
              std::fill_n(result + r * columns, columns, has[r] ? some : none);
            }
          }
          row = stop;
        }
      });
}

// Is there a number of these bits?
template <class Key>
bool contains(const Key* bits, int64_t size, Key wanted) {
  constexpr int64_t kPart = 1024;  // after which it may end
  const int64_t found =
      parallel_min(size, kElementsPerTask, [&](int64_t begin, int64_t end) -> int64_t {
        for (int64_t first = begin; first < end; first += kPart) {
          int any = 0;
          for (int64_t n = first; n < std::min(first + kPart, end); ++n) {
            any |= bits[n] == wanted;
          }
          if (any != 0) return first;
        }
        return INT64_MAX;
      });
  return found != INT64_MAX;
}

// The values that stand at the positions which scatter_arg_cpu finds.
template <class Key>
void pick_best(const at::Tensor& values, const at::Tensor& index, const RowLayout& layout,
               const IndexRule& rule, bool largest, const at::Tensor& result) {
  const at::Tensor positions = new_output(result.sizes(), result.options().dtype(at::kLong));
  scatter_arg_cpu(values, index, layout, rule, largest, /*plan=*/nullptr, positions);
  const auto* at = positions.const_data_ptr<int64_t>();
  const auto* from = static_cast<const Key*>(values.const_data_ptr());
  auto* to = static_cast<Key*>(result.mutable_data_ptr());
  const int64_t slab_size = layout.axis_size * layout.inner;
  at::parallel_for(0, result.numel(), kElementsPerTask, [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) {
      const int64_t row = n / slab_size * layout.entries + at[n];
      to[n] = at[n] == layout.entries ? Key() : from[row * layout.inner + n % layout.inner];
    }
  });
}

template <class Key>
void find_best(const at::Tensor& values, const at::Tensor& index, const RowLayout& layout,
               const IndexRule& rule, bool largest, const at::Tensor& result) {
  const auto order = order_of<Key>(values.scalar_type(), largest);
  const auto* from = static_cast<const Key*>(values.const_data_ptr());
  auto* to = static_cast<Key*>(result.mutable_data_ptr());
  if (result.numel() == 0) return;
  // -0 is as large as 0, and of what is alike the first counts; keys are apart.
  constexpr Key kNegativeZero = std::numeric_limits<Key>::min();
  if (values.is_floating_point() && contains(from, values.numel(), kNegativeZero)) {
    return pick_best<Key>(values, index, layout, rule, largest, result);
  }
  const Simd simd = cpu_simd();
  constexpr Key kNone = KeyOrder<Key>::kNone;
  // kNone is the key of the worst integer too. Where there is one, rows without entries must be
  // told apart before; with the key of zero they become zeros as well.
  const Key zero = order.key(Key());
  const bool has_none =
      values.is_floating_point() || !contains(from, values.numel(), order.bits(kNone));
  if (has_none) {
    at::parallel_for(0, result.numel(), kElementsPerTask,
                     [&](int64_t begin, int64_t end) { std::fill(to + begin, to + end, kNone); });
  } else {
    fill_by_name(index, layout, rule, kNone, zero, to);
  }
  reduce(index, layout, rule, [&](const ReducePart& part, const ReduceRun& run) {
    keep_best_keys(simd, layout, part, run, order, from, to);
  });
  if (order.is_identity() && !has_none) return;
  at::parallel_for(0, result.numel(), kElementsPerTask, [&](int64_t begin, int64_t end) {
    map_range(simd, FromKey<Key>{order, has_none ? kNone : zero}, begin, end, to,
              static_cast<const Key*>(to));
  });
}

}  // namespace

void scatter_best_cpu(const at::Tensor& values, const at::Tensor& index, const RowLayout& layout,
                      const IndexRule& rule, bool largest, const at::Tensor& result) {
  check_entries("scatter", index, layout, rule);
  switch (values.element_size()) {
    case 1:
      return find_best<int8_t>(values, index, layout, rule, largest, result);
    case 2:
      return find_best<int16_t>(values, index, layout, rule, largest, result);
    case 4:
      return find_best<int32_t>(values, index, layout, rule, largest, result);
    case 8:
      return find_best<int64_t>(values, index, layout, rule, largest, result);
  }
  TORCH_INTERNAL_ASSERT(false, "no number of ", values.element_size(), " bytes");
}

void scatter_arg_cpu(const at::Tensor& values, const at::Tensor& index, const RowLayout& layout,
                     const IndexRule& rule, bool largest, const Plan* /*plan*/,
                     const at::Tensor& positions) {
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
                      const IndexRule& rule, const Plan* /*plan*/, const at::Tensor& products) {
  check_entries("scatter", index, layout, rule);
  const at::ScalarType wide = sum_type(products.scalar_type());
  const at::Tensor unrounded = at::ones(products.sizes(), products.options().dtype(wide));
  TORCH_OPS_DISPATCH_VALUES(values.scalar_type(), [&] {
    const auto* from = static_cast<const value_t*>(values.const_data_ptr());
    auto* to = static_cast<sum_t*>(unrounded.mutable_data_ptr());
    const auto multiply = [=](int64_t value, int64_t result, auto columns) {
      for (int64_t d = 0; d < columns; ++d) to[result + d] *= static_cast<sum_t>(from[value + d]);
    };
    reduce(index, layout, rule, [&](const ReducePart& part, const ReduceRun& run) {
      for_each_row(layout, part, run, multiply);
    });
  });
  products.copy_(unrounded);
}

}  // namespace torch_ops
