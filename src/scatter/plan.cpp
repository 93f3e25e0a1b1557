// The contract of gather_plan: schema, checks, allocation. What a plan is for stands in
// docs/architecture.md.
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "common/batching.h"
#include "common/indexing.h"
#include "common/op.h"
#include "scatter/scatter.h"

namespace torch_ops {
namespace {

using at::Tensor;
using Parts = std::tuple<Tensor, Tensor>;  // Plan's, as an op returns them

const auto& gather_plan_op() {
  static const auto op =
      find_op<Parts(const Tensor&, c10::SymInt, std::optional<int64_t>, int64_t)>("gather_plan");
  return op;
}

// ---- CPU, CUDA and Meta kernels -----------------------------------------------------------------

Plan allocate(const Tensor& index, const c10::SymInt& dim_size, std::optional<int64_t> dim,
              int64_t batch_dims) {
  indexing::check_index_dtype("gather_plan", index);
  TORCH_CHECK_VALUE(dim_size.sym_ge(0).expect_true(__FILE__, __LINE__),
                    "gather_plan: dim_size must not be negative, but it is ", dim_size, ".");
  TORCH_CHECK_VALUE(batch_dims >= 0 && batch_dims <= index.dim(),
                    "gather_plan: batch_dims must be between 0 and index.dim() = ", index.dim(),
                    ", but it is ", batch_dims, ".");
  // The source may have any number of axes, so nothing else can be said of dim yet.
  const int64_t given = dim.value_or(batch_dims);
  TORCH_CHECK_VALUE(given < 0 || given >= batch_dims, "gather_plan: dim must not be one of the ",
                    batch_dims, " batch axes (batch_dims=", batch_dims, "), but it is ", given,
                    ".");
  c10::SymInt batch = 1;
  for (int64_t axis = 0; axis < batch_dims; ++axis) batch *= index.sym_size(axis);
  // int32 where it holds the number of every row and of every entry. By a division: the number of
  // rows may exceed int64, since no tensor of that size need exist.
  const c10::SymInt count = index.sym_numel();
  const c10::SymInt most = INT32_MAX;
  const bool narrow = count.sym_le(most).guard_bool(__FILE__, __LINE__) &&
                      dim_size.sym_le(most / batch.max(1)).guard_bool(__FILE__, __LINE__);
  const auto options = index.options().dtype(narrow ? at::kInt : at::kLong);
  return {at::empty_symint({count}, options), at::empty_symint({count}, options)};
}

template <auto launch>
Parts gather_plan(const Tensor& index, c10::SymInt dim_size, std::optional<int64_t> dim,
                  int64_t batch_dims) {
  const Plan plan = allocate(index, dim_size, dim, batch_dims);
  // That of a gather whose source has no axes but those it must have.
  std::vector<int64_t> sizes(index.sizes().begin(), index.sizes().begin() + batch_dims);
  sizes.push_back(dim_size.expect_int());
  Tensor entries = index;
  const RowLayout layout =
      indexing::lay_out_contiguous(sizes, entries, {/*dim=*/batch_dims, batch_dims});
  launch(entries, layout, plan);
  return {plan.rows, plan.order};
}

Parts gather_plan_meta(const Tensor& index, c10::SymInt dim_size, std::optional<int64_t> dim,
                       int64_t batch_dims) {
  const Plan plan = allocate(index, dim_size, dim, batch_dims);
  return {plan.rows, plan.order};
}

// ---- torch.vmap ---------------------------------------------------------------------------------

Parts gather_plan_batched(const Tensor& index, c10::SymInt dim_size, std::optional<int64_t> dim,
                          int64_t batch_dims) {
  TORCH_CHECK(!at::functorch::isBatchedAtLevel(index, batching::current_level()),
              "gather_plan: torch.vmap cannot map over the index of a plan. Make one plan of the "
              "stacked indices, with batch_dims.");
  c10::impl::ExcludeDispatchKeyGuard guard(c10::DispatchKey::FuncTorchBatched);
  return gather_plan_op().call(index, dim_size, dim, batch_dims);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(torch_ops, m) {
  // On CUDA it waits for its kernels, which a graph cannot.
  m.def(
      "gather_plan(Tensor index, SymInt dim_size, *, int? dim=None, int batch_dims=0) "
      "-> (Tensor rows, Tensor order)",
      {at::Tag::pt2_compliant_tag, at::Tag::cudagraph_unsafe});
}

TORCH_LIBRARY_IMPL(torch_ops, CPU, m) { m.impl("gather_plan", gather_plan<sort_entries_cpu>); }

TORCH_LIBRARY_IMPL(torch_ops, CUDA, m) { m.impl("gather_plan", gather_plan<sort_entries_cuda>); }

TORCH_LIBRARY_IMPL(torch_ops, Meta, m) { m.impl("gather_plan", gather_plan_meta); }

TORCH_LIBRARY_IMPL(torch_ops, FuncTorchBatched, m) { m.impl("gather_plan", gather_plan_batched); }

}  // namespace torch_ops
