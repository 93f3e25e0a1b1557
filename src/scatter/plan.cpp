// The contract of gather_plan: schema, checks, allocation. docs/internals/kernels/sorted.md says
// what a plan is for.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/sort.h>

#include "common/gather_family/indexing.h"
#include "common/torch/registration/batching.h"
#include "common/torch/registration/register.h"
#include "scatter/scatter.h"

namespace torch_ops {
namespace {

using at::Tensor;
using Parts = std::tuple<Tensor, Tensor>;  // Plan's, as an op returns them

Plan allocate(const Tensor& index, const c10::SymInt& dim_size, std::optional<int64_t> dim,
              int64_t batch_dims) {
  indexing::check_index_dtype("gather_plan", index);
  TORCH_CHECK_VALUE(dim_size.sym_ge(0).expect_true(__FILE__, __LINE__),
                    "gather_plan: dim_size must not be negative, but it is ", dim_size, ".");
  indexing::check_batch_dims("gather_plan", index.dim(), batch_dims);
  // The source may have any number of axes, so dim cannot be checked further yet.
  const int64_t given = dim.value_or(batch_dims);
  TORCH_CHECK_VALUE(given < 0 || given >= batch_dims,
                    "gather_plan: dim must not be a batch axis (batch_dims=", batch_dims,
                    "), but it is ", given, ".");
  const c10::SymInt batch = c10::multiply_integers(index.sym_sizes().slice(0, batch_dims));
  // int32 if it can hold the number of every row and of every entry. By a division: the number of
  // rows may exceed int64, since no tensor of that size need exist.
  const c10::SymInt count = index.sym_numel();
  const c10::SymInt most = INT32_MAX;
  const c10::SymBool fits = count.sym_le(most).sym_and(dim_size.sym_le(most / batch.max(1)));
  const bool narrow = indexing::holds_or_assert(fits);
  const auto options = index.options().dtype(narrow ? at::kInt : at::kLong);
  return {at::empty_symint({count}, options), at::empty_symint({count}, options)};
}

// Raises IndexError if an entry of the index is out of range; on CUDA here only if it `waits` for
// its kernels.
void sort_entries(OnCpu, const Tensor& index, const RowLayout& layout, const Plan& plan,
                  bool /*waits*/) {
  const IndexRule rule(IndexMode::kRaise, layout.axis_size);
  call_indexed<OnCpu>("gather_plan", index, layout, rule.mode(), plan.rows, [&](auto on) {
    return kernels::find_bad_entry(on, index_array(index), layout, rule);
  });
  const Tensor first_rows = at::arange(layout.batch, plan.rows.options()) * layout.axis_size;
  const Tensor named = index.reshape({layout.batch, layout.entries}) + first_rows.unsqueeze(1);
  const auto [rows, order] = at::sort(named.flatten().to(plan.rows.scalar_type()),
                                      std::optional<bool>(/*stable=*/true), /*dim=*/0);
  plan.rows.copy_(rows);
  plan.order.copy_(order);
}

void sort_entries(OnCuda, const Tensor& index, const RowLayout& layout, const Plan& plan,
                  bool waits) {
  const c10::DeviceGuard guard(index.device());
  TORCH_CHECK(
      !waits || !torch_cuda().is_capturing(),
      "gather_plan: the current stream is capturing a CUDA graph, and to check the index it would "
      "have to wait for the device. Make the plan before the capture.");
  const auto sort = [&](auto on, const auto&... errors) {
    const auto write = [&](auto zero) {
      using Id = decltype(zero);
      kernels::sort_entries(on, index_array(index), layout,
                            static_cast<Id*>(plan.rows.mutable_data_ptr()),
                            static_cast<Id*>(plan.order.mutable_data_ptr()), errors...);
    };
    plan.rows.scalar_type() == at::kInt ? write(uint32_t()) : write(uint64_t());
  };
  call_indexed<OnCuda>("gather_plan", index, layout, IndexMode::kRaise, plan.rows, sort, waits);
}

struct GatherPlan {
  // If it does not wait, entries out of range come after all rows, and the next call raises.
  static constexpr const char* kSchema =
      "gather_plan(Tensor index, SymInt dim_size, *, int? dim=None, int batch_dims=0, "
      "bool wait=True) -> (Tensor rows, Tensor order)";

  template <class On>
  static Parts kernel(const Tensor& index, c10::SymInt dim_size, std::optional<int64_t> dim,
                      int64_t batch_dims, bool wait) {
    const Plan plan = allocate(index, dim_size, dim, batch_dims);
    if constexpr (!std::is_same_v<On, OnMeta>) {
      // That of a gather whose source has only the necessary axes.
      std::vector<int64_t> sizes(index.sizes().begin(), index.sizes().begin() + batch_dims);
      sizes.push_back(dim_size.expect_int());
      Tensor entries = index;
      const RowLayout layout =
          indexing::lay_out_contiguous(sizes, entries, {/*dim=*/batch_dims, batch_dims});
      sort_entries(On{torch_program()}, entries, layout, plan, wait);
    }
    return {plan.rows, plan.order};
  }

  template <class... Rest>
  static Parts batch(const Tensor& index, const Rest&... rest) {
    TORCH_CHECK(!at::functorch::isBatchedAtLevel(index, batching::current_level()),
                "gather_plan: torch.vmap cannot map over the index of a plan. Make one plan of the "
                "stacked indices, with batch_dims.");
    c10::impl::ExcludeDispatchKeyGuard guard(c10::DispatchKey::FuncTorchBatched);
    return op_of<GatherPlan>().call(index, rest...);
  }
};

}  // namespace

TORCH_LIBRARY_FRAGMENT(torch_ops, m) {
  // On CUDA it waits for its kernels, which is impossible in a graph.
  register_op<GatherPlan>(m, {at::Tag::pt2_compliant_tag, at::Tag::cudagraph_unsafe});
}

}  // namespace torch_ops
