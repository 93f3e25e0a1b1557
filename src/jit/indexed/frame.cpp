// The shapes of an indexed kernel's call. Sizes are symbolic, so that what traces a call checks and
// computes by the same lines.
#include <algorithm>

#include "common/torch/calls/checks.h"
#include "jit/indexed/indexed.h"

namespace torch_ops::jit::indexed {
namespace {

bool equal(const c10::SymInt& a, const c10::SymInt& b) {
  return a.sym_eq(b).guard_bool(__FILE__, __LINE__);
}
bool must_equal(const c10::SymInt& a, const c10::SymInt& b) {
  return a.sym_eq(b).expect_true(__FILE__, __LINE__);
}

class Framer {
 public:
  Framer(const Indexed& kernel, const Arguments& arguments, const Call& call)
      : kernel_(kernel), arguments_(arguments), call_(call) {}

  Frame make() {
    frame_.batch_dims = call_.batch_dims;
    check_indices();
    find_rank();
    find_sizes();
    broadcast();
    for (size_t k = 0; k < kernel_.out.size(); ++k) add_output(k);
    return std::move(frame_);
  }

 private:
  const std::string& name() const { return kernel_.name; }

  // The inputs that have a shape.
  template <class Visit>
  void each_tensor(Visit&& visit) const {
    for (size_t k = 0; k < arguments_.size(); ++k) {
      if (!kernel_.in[k].raw && !is_number(arguments_[k], kernel_.in[k])) {
        visit(k, *arguments_[k].tensor);
      }
    }
  }

  void check_indices() {
    const int64_t batch = call_.batch_dims;
    TORCH_CHECK_VALUE(batch >= 0, name(), ": batch_dims must not be negative, but it is ", batch,
                      ".");
    TORCH_CHECK(call_.indices.size() == kernel_.indices.size(), name(),
                ": the number of indices must be ", kernel_.indices.size(), ", but it is ",
                call_.indices.size(), ".");
    for (size_t k = 0; k < call_.indices.size(); ++k) {
      const Tensor& index = call_.indices[k];
      const std::string& role = kernel_.indices[k];
      const ScalarType type = index.scalar_type();
      TORCH_CHECK_TYPE(type == at::kInt || type == at::kLong, name(), ": ", role,
                       " must be int32 or int64, but it is ", dtype_name(type), ".");
      TORCH_CHECK_VALUE(index.dim() == batch + 1, name(), ": ", role, " must have ", batch + 1,
                        batch == 0 ? " axis, [E]" : " axes, those of the batch and the entries'",
                        " (batch_dims=", batch, "), but its shape is ", index.sym_sizes(), ".");
      for (int64_t d = 0; k > 0 && d <= batch; ++d) {
        TORCH_CHECK_VALUE(must_equal(index.sym_size(d), call_.indices[0].sym_size(d)), name(), ": ",
                          role, " must have the shape of ", kernel_.indices[0], ", ",
                          call_.indices[0].sym_sizes(), ", but it has ", index.sym_sizes(), ".");
      }
    }
    const auto sizes = call_.indices[0].sym_sizes();
    frame_.batch.assign(sizes.begin(), sizes.begin() + batch);
    frame_.entries = sizes[batch];
  }

  void find_rank() {
    rank_ = call_.batch_dims + 1;
    each_tensor([&](size_t k, const Tensor& tensor) {
      if (tensor.dim() > rank_ || (tensor.dim() == rank_ && !highest_)) {
        rank_ = tensor.dim();
        highest_ = k;
      }
    });
    for (size_t k = 0; k < kernel_.in.size(); ++k) {
      const Tensor* const tensor = arguments_[k].tensor;
      const bool is_scalar = tensor && tensor->dim() == 0 && !kernel_.in[k].raw;
      TORCH_CHECK_VALUE(kernel_.in_roles[k].index < 0 || !is_scalar, name(),
                        ": the number of axes of ", kernel_.in[k].name, ", which is read by ",
                        kernel_.indices[kernel_.in_roles[k].index], ", must be ", rank_, ", but ",
                        kernel_.in[k].name, " has none. Pass a number, or expand it.");
    }
    each_tensor([&](size_t k, const Tensor& tensor) {
      if (kernel_.in_roles[k].index < 0 || tensor.dim() == rank_) return;
      const auto own = tensor.sym_sizes();
      c10::SymDimVector wanted(own.begin(), own.end());
      while (static_cast<int64_t>(wanted.size()) < rank_) {
        wanted.insert(wanted.begin() + std::min<int64_t>(call_.batch_dims + 1, wanted.size()), 1);
      }
      TORCH_CHECK_VALUE(
          false, name(), ": the number of axes of ", kernel_.in[k].name, ", which is read by ",
          kernel_.indices[kernel_.in_roles[k].index], ", must be ", rank_,
          highest_ ? c10::str(", that of ", kernel_.in[*highest_].name, " with shape ",
                              arguments_[*highest_].tensor->sym_sizes())
                   : "",
          ", but its shape is ", own, ". One value for each row is of shape ",
          c10::SymIntArrayRef(wanted), ".");
    });
  }

  void find_sizes() {
    const int64_t batch = call_.batch_dims;
    frame_.sizes.assign(kernel_.indices.size(), -1);
    std::vector<std::string> from(kernel_.indices.size());
    const auto set = [&](int index, const c10::SymInt& size, const std::string& teller) {
      c10::SymInt& known = frame_.sizes[index];
      if (from[index].empty()) {
        known = size;
        from[index] = teller;
      } else {
        TORCH_CHECK_VALUE(must_equal(known, size), name(), ": the number of rows that ",
                          kernel_.indices[index], " counts is ", known, " by ", from[index],
                          ", but ", size, " by ", teller, ".");
      }
    };
    for (size_t k = 0; k < kernel_.indices.size() && k < call_.sizes.size(); ++k) {
      const c10::SymInt& size = call_.sizes[k];
      if (size.maybe_as_int() == -1) continue;
      TORCH_CHECK_VALUE(size.sym_ge(0).expect_true(__FILE__, __LINE__), name(), ": the size of ",
                        kernel_.indices[k], " must not be negative, but it is ", size, ".");
      set(static_cast<int>(k), size, call_.plans.empty() ? "sizes=" : "the plan or sizes=");
    }
    each_tensor([&](size_t k, const Tensor& tensor) {
      const int index = kernel_.in_roles[k].index;
      if (index < 0) return;
      for (int64_t d = 0; d < batch; ++d) {
        TORCH_CHECK_VALUE(must_equal(tensor.sym_size(d), frame_.batch[d]), name(), ": axis ", d,
                          " of ", kernel_.in[k].name, " with shape ", tensor.sym_sizes(),
                          " must be as long as that of ", kernel_.indices[index], " with shape ",
                          call_.indices[index].sym_sizes(), " (batch_dims=", batch, ").");
      }
      set(index, tensor.sym_size(batch), "the shape of " + kernel_.in[k].name);
    });
    for (size_t k = 0; k < kernel_.out.size(); ++k) {
      const int index = kernel_.out_roles[k].index;
      if (index < 0 || kernel_.out[k].like >= 0) continue;
      TORCH_CHECK_VALUE(!from[index].empty(), name(), ": the number of rows of ",
                        kernel_.out[k].name, " cannot be inferred: no input is read by ",
                        kernel_.indices[index], ". Pass sizes={\"", kernel_.indices[index],
                        "\": ...} or a plan.");
    }
  }

  void broadcast() {
    const int64_t batch = call_.batch_dims, features = rank_ - batch - 1;
    frame_.features.assign(features, 1);
    std::vector<size_t> from(features, 0);
    each_tensor([&](size_t k, const Tensor& tensor) {
      const auto sizes = tensor.sym_sizes();
      const int64_t shift = rank_ - tensor.dim();  // of its axes in the frame
      for (int64_t d = std::max(batch + 1, shift); d < rank_; ++d) {
        const c10::SymInt& size = sizes[d - shift];
        c10::SymInt& known = frame_.features[d - batch - 1];
        if (size.maybe_as_int() == 1) continue;
        if (known.maybe_as_int() == 1) {
          known = size;
          from[d - batch - 1] = k;
          continue;
        }
        if (!must_equal(size, known)) refuse(k, tensor, from[d - batch - 1]);
      }
      if (kernel_.in_roles[k].index >= 0) return;
      for (int64_t d = std::max<int64_t>(shift, 0); d <= batch; ++d) {
        const c10::SymInt& size = sizes[d - shift];
        const c10::SymInt& wanted = d < batch ? frame_.batch[d] : frame_.entries;
        if (size.maybe_as_int() == 1 || must_equal(size, wanted)) continue;
        TORCH_CHECK_VALUE(false, name(), ": axis ", d - shift, " of ", kernel_.in[k].name,
                          " with shape ", sizes, " must be 1 or the number of ",
                          d < batch ? "batches" : "entries", ", ", wanted,
                          ": what is read by no index has a row for each entry.");
      }
    });
  }

  [[noreturn]] void refuse(size_t k, const Tensor& tensor, size_t other) const {
    const auto sizes = tensor.sym_sizes();
    const auto advice = [&](size_t one, size_t beside) -> std::string {
      const Tensor& given = *arguments_[one].tensor;
      const bool is_flat =
          given.dim() == 1 && rank_ > 1 && equal(given.sym_size(0), frame_.entries);
      if (!is_flat) return "";
      std::string ones;
      for (int64_t d = 1; d < rank_; ++d) ones += ", 1";
      return c10::str(" Where ", kernel_.in[one].name, " has one number for each entry, beside ",
                      kernel_.in[beside].name, " its shape is [", frame_.entries, ones, "].");
    };
    std::string more = advice(k, other);
    if (more.empty()) more = advice(other, k);
    TORCH_CHECK_VALUE(false, name(), ": ", kernel_.in[k].name, " with shape ", sizes,
                      " does not broadcast with ", kernel_.in[other].name, " with shape ",
                      arguments_[other].tensor->sym_sizes(),
                      ": their axes after the entries' must be equal or 1.", more);
    std::abort();
  }

  void add_output(size_t k) {
    const Role& role = kernel_.out_roles[k];
    const auto features = static_cast<int64_t>(frame_.features.size());
    c10::SymDimVector sizes(frame_.batch.begin(), frame_.batch.end());
    std::vector<bool> summed(features);
    bool has_entries = role.index < 0;
    if (kernel_.out[k].like >= 0) {
      // The gradient of an input: its shape, and a sum over what it was broadcast along.
      const Argument& argument = arguments_[kernel_.out[k].like];
      TORCH_CHECK(argument.tensor, name(), ": ", kernel_.in[kernel_.out[k].like].name,
                  " is a number, which has no gradient.");
      const auto own = argument.tensor->sym_sizes();
      sizes.assign(own.begin(), own.end());
      const int64_t shift = rank_ - argument.tensor->dim();
      for (int64_t d = 0; d < features; ++d) {
        const int64_t at = d + call_.batch_dims + 1 - shift;
        summed[d] =
            frame_.features[d].maybe_as_int() != 1 && (at < 0 || own[at].maybe_as_int() == 1);
      }
      const int64_t at = call_.batch_dims - shift;
      has_entries = role.index < 0 && at >= 0 &&
                    (own[at].maybe_as_int() != 1 || frame_.entries.maybe_as_int() == 1);
    } else {
      sizes.push_back(role.index < 0 ? frame_.entries : frame_.sizes[role.index]);
      for (const int64_t axis : summed_axes(kernel_, k, features)) summed[features + axis] = true;
      for (int64_t d = 0; d < features; ++d) {
        if (!summed[d]) sizes.push_back(frame_.features[d]);
      }
    }
    frame_.outputs.push_back(std::move(sizes));
    frame_.is_summed.push_back(std::move(summed));
    frame_.has_entries.push_back(has_entries);
  }

  const Indexed& kernel_;
  const Arguments& arguments_;
  const Call& call_;
  Frame frame_;
  int64_t rank_ = 1;
  std::optional<size_t> highest_;  // an input of that rank
};

}  // namespace

std::vector<int64_t> summed_axes(const Indexed& kernel, size_t output, int64_t features) {
  std::vector<int64_t> axes;
  for (const int64_t axis : kernel.out_roles[output].features) {
    // Counted as the features' axes are.
    TORCH_CHECK_VALUE(axis >= -features && axis < features, kernel.name, ": features= names axis ",
                      axis, " of the features, but there are ", features, ".");
    axes.push_back(axis < 0 ? axis : axis - features);
    TORCH_CHECK_VALUE(std::count(axes.begin(), axes.end(), axes.back()) == 1, kernel.name,
                      ": features= names axis ", axis, " twice.");
  }
  return axes;
}

Frame frame_of(const Indexed& kernel, const Arguments& arguments, const Call& call) {
  return Framer(kernel, arguments, call).make();
}

}  // namespace torch_ops::jit::indexed
