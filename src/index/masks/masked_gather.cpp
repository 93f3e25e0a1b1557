// The contract of mask_positions, masked_gather and masked_scatter: schemas, checks, allocation.
#include <ATen/Dispatch.h>
#include <ATen/ops/cumsum.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/nonzero.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>

#include "common/gather_family/gather_ops.h"
#include "common/gather_family/index_mode_args.h"
#include "common/gather_family/indexing.h"
#include "common/gather_family/summable.h"
#include "common/torch/calls/call_kernels.h"
#include "common/torch/calls/new_output.h"
#include "common/torch/registration/batching.h"
#include "common/torch/registration/derive.h"
#include "common/torch/registration/layout_errors.h"
#include "index/masks/mask_launch.h"

namespace torch_ops {
namespace {

using at::Tensor;

void check_bools(const Tensor& mask, const char* op = "masked_gather") {
  check_dense(op, "mask", mask);
  TORCH_CHECK_TYPE(mask.scalar_type() == at::kBool, op, ": mask must be bool, but it is ",
                   dtype_name(mask.scalar_type()), ".");
}

// The first `size` positions where a mask is true. The number of its entries means none. int32 if
// that can hold it.
struct MaskPositions {
  static constexpr const char* kSchema = "mask_positions(Tensor mask, SymInt size) -> Tensor";

  template <class On>
  static Tensor kernel(const Tensor& mask, c10::SymInt size) {
    check_bools(mask);
    TORCH_CHECK_VALUE(size.sym_ge(0).expect_true(__FILE__, __LINE__),
                      "masked_gather: size must not be negative, but it is ", size, ".");
    const c10::SymInt count = mask.sym_numel();
    const Tensor positions = at::full_symint({size}, at::Scalar(count),
                                             mask.options().dtype(indexing::number_type(count)));
    if constexpr (!std::is_same_v<On, OnMeta>) {
      const Tensor entries = mask.contiguous();
      with_kernels<On>(positions, [&](auto on) {
        AT_DISPATCH_INDEX_TYPES(positions.scalar_type(), "mask_positions", [&] {
          kernels::mask_positions(on, entries.const_data_ptr<bool>(), entries.numel(),
                                  positions.mutable_data_ptr<index_t>(), positions.numel());
        });
      });
    }
    return positions;
  }

  static Tensor batch(const Tensor& mask, const c10::SymInt& size) {
    using batching::Batched;
    return batching::apply(
        [&](const Batched& from) -> Batched {
          if (!from.axis) return {op_of<MaskPositions>().call(from.value, size), std::nullopt};
          const Tensor masks = from.at(0);
          if (masks.sym_size(0) == 0) {
            const Tensor sample = masks.new_zeros_symint(masks.sym_sizes().slice(1));
            return {op_of<MaskPositions>().call(sample, size).unsqueeze(0).slice(0, 0, 0), 0};
          }
          std::vector<Tensor> positions;
          for (const Tensor& sample : masks.unbind(0)) {
            positions.push_back(op_of<MaskPositions>().call(sample, size));
          }
          return {at::stack(positions), 0};
        },
        mask);
  }
};

struct MaskedGather {
  static constexpr const char* kSchema =
      "masked_gather(Tensor source, Tensor mask, *, SymInt? size=None, Scalar fill_value=0) "
      "-> Tensor";

  static Tensor compose(const Tensor& source, const Tensor& mask, std::optional<c10::SymInt> size,
                        const at::Scalar& fill_value) {
    check_bools(mask);
    check_dense("masked_gather", "source", source);
    check_one_device("masked_gather", "source", source, "mask", mask);
    const at::ScalarType dtype = source.scalar_type();
    if (size || indexing::has_fill(dtype)) {  // without size nothing is filled
      indexing::check_fill_value("masked_gather", IndexMode::kFill, fill_value, dtype);
    }
    const int64_t axes = mask.dim();
    bool fits = axes <= source.dim();
    for (int64_t axis = 0; fits && axis < axes; ++axis) {
      fits = mask.sym_size(axis).sym_eq(source.sym_size(axis)).expect_true(__FILE__, __LINE__);
    }
    TORCH_CHECK_VALUE(fits,
                      "masked_gather: mask must have the shape of source's leading axes, but "
                      "its shape is ",
                      mask.sym_sizes(), " and source's is ", source.sym_sizes(), ".");
    const Tensor rows = axes == 0   ? source.unsqueeze(0)
                        : axes == 1 ? source
                                    : source.flatten(0, axes - 1);
    const Tensor flags = mask.flatten();
    if (!size) {
      return ops::gather().call(rows, at::nonzero(flags).select(1, 0), 0, /*batch_dims=*/0, "raise",
                                std::nullopt, std::nullopt);
    }
    return ops::gather().call(rows, op_of<MaskPositions>().call(flags, *size), 0, /*batch_dims=*/0,
                              "fill", fill_value, std::nullopt);
  }
};

// Row k to where the mask, of one axis, is true for the k-th time; zeros elsewhere. The transpose
// of masked_gather, which is its derivative: a composition would have a sum for one.
struct MaskedScatterRows {
  static constexpr const char* kSchema = "_masked_scatter(Tensor rows, Tensor mask) -> Tensor";
  static constexpr const char* kNode = "MaskedScatterBackward";

  template <class On>
  static Tensor kernel(const Tensor& rows, const Tensor& mask) {
    if constexpr (std::is_same_v<On, OnCuda>) {
      return pick(rows, mask);
    } else {
      c10::SymDimVector sizes(rows.sym_sizes().begin(), rows.sym_sizes().end());
      sizes[0] = mask.sym_size(0);
      if constexpr (std::is_same_v<On, OnMeta>) return at::empty_symint(sizes, rows.options());
      const Tensor from = rows.contiguous(), flags = mask.contiguous();
      const int64_t row_bytes = c10::multiply_integers(rows.sizes().slice(1)) * rows.element_size();
      const Tensor result = new_output(C10_AS_INTARRAYREF_SLOW(sizes), rows.options());
      with_kernels<On>(result, [&](auto on) {
        kernels::masked_scatter(on, flags.const_data_ptr<bool>(), flags.numel(),
                                static_cast<const char*>(from.const_data_ptr()), rows.size(0),
                                row_bytes, static_cast<char*>(result.mutable_data_ptr()));
      });
      return result;
    }
  }

  static auto keep(const Tensor& rows, const Tensor& mask) {
    return std::tuple(mask, rows.sym_size(0));
  }

  static Tensor backward(const Tensor& grad_output, const Tensor& mask, const c10::SymInt& size) {
    return op_of<MaskedGather>().call(grad_output, mask, size, 0);
  }

  static Tensor batch(const Tensor& rows, const Tensor& mask) { return pick(rows, mask); }

 private:
  static Tensor pick(const Tensor& rows, const Tensor& mask) {
    const bool narrow = indexing::number_type(mask.sym_numel()) == at::kInt &&
                        indexing::number_type(rows.sym_size(0)) == at::kInt;
    const Tensor numbers = at::cumsum(mask, 0, narrow ? at::kInt : at::kLong).sub_(1);
    const int64_t none = narrow ? INT32_MAX : INT64_MAX;
    const Tensor picks = numbers.masked_fill_(mask.logical_not(), none);
    return ops::gather().call(rows, picks, 0, /*batch_dims=*/0, "fill", 0, std::nullopt);
  }
};

struct MaskedScatter {
  static constexpr const char* kSchema =
      "masked_scatter(Tensor rows, Tensor mask, Tensor? base=None) -> Tensor";
  static constexpr const char* kName = "masked_scatter";

  static Tensor compose(const Tensor& rows, const Tensor& mask, const std::optional<Tensor>& base) {
    check_bools(mask, kName);
    check_one_device(kName, "rows", rows, "mask", mask);
    TORCH_CHECK_VALUE(rows.dim() > 0,
                      "masked_scatter: rows must have at least one axis, but it is ",
                      "0-dimensional.");
    c10::SymDimVector sizes(mask.sym_sizes().begin(), mask.sym_sizes().end());
    sizes.append(rows.sym_sizes().begin() + 1, rows.sym_sizes().end());
    const Tensor flags = mask.flatten();
    const Tensor scattered = op_of<MaskedScatterRows>().call(rows, flags).reshape_symint(sizes);
    if (!base) return scattered;
    const Tensor& out = *base;
    check_dense(kName, "out", out);
    check_one_device(kName, "rows", rows, "out", out);
    check_same_type(kName, "rows", rows, "out", out);
    TORCH_CHECK_VALUE(out.dim() == static_cast<int64_t>(sizes.size()),
                      "masked_scatter: out must have the axes of mask and of a row, but its shape "
                      "is ",
                      out.sym_sizes(), " and they are ", c10::SymIntArrayRef(sizes), ".");
    indexing::check_axes_match(kName, "out", out.sym_sizes(), 0, "the result", sizes, 0, out.dim(),
                               "out must have the axes of mask and of a row");
    const Tensor ones = mask.new_ones_symint({rows.sym_size(0)});  // a DTensor if it is one
    Tensor written = op_of<MaskedScatterRows>().call(ones, flags).reshape_symint(mask.sym_sizes());
    while (written.dim() < out.dim()) written = written.unsqueeze(-1);
    return from_bits(at::where(written, as_bits(scattered), as_bits(out)), out.scalar_type());
  }
};

}  // namespace

TORCH_LIBRARY_FRAGMENT(torch_ops, m) {
  register_op<MaskPositions>(m);
  register_op<MaskedGather>(m);
  register_op<MaskedScatterRows>(m);
  register_op<MaskedScatter>(m);
}

}  // namespace torch_ops
