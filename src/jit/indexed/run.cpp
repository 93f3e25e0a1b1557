// A call of an indexed kernel: its arguments are laid out, and its outputs sorted into passes over
// the entries.
#include <ATen/ExpandUtils.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/sum.h>
#include <c10/core/DeviceGuard.h>

#include <algorithm>

#include "common/torch/calls/new_output.h"
#include "jit/indexed/problem.h"
#ifdef TORCH_OPS_WITH_CUDA
#include "common/gather_family/index_errors.h"
#endif

namespace torch_ops::jit::indexed {
namespace {

std::vector<int64_t> ints(c10::SymIntArrayRef sizes) {
  return C10_AS_INTARRAYREF_SLOW(sizes).vec();
}

// Which of the batch axes a tensor has, where its own axes begin `shift` axes after the frame's.
struct BatchAxes {
  BatchAxes(const Frame& frame, const Tensor& tensor, int64_t shift) {
    for (int64_t d = 0; d < frame.batch_dims; ++d) {
      const bool own = d >= shift && tensor.size(d - shift) != 1;
      any |= own;
      all &= own || frame.batch[d].maybe_as_int() == 1;
    }
  }
  bool any = false, all = true;
};

Operand operand_of(const Problem& problem, const Frame& frame, const Tensor& given, int index) {
  Operand operand;
  operand.tensor = given;
  const int64_t batch_dims = frame.batch_dims;
  const auto features = static_cast<int64_t>(problem.features.size());
  const int64_t rank = batch_dims + 1 + features;
  const int64_t shift = rank - operand.tensor.dim();
  Tensor& tensor = operand.tensor;
  bool has_rows = shift <= batch_dims;
  if (index >= 0) {
    operand.by = index;
    if (batch_dims > 0) tensor = tensor.flatten(0, batch_dims);
  } else if (has_rows) {
    const bool has_entries = tensor.size(batch_dims - shift) != 1;
    const auto [any, all] = BatchAxes(frame, tensor, shift);
    if (any && !all) {  // some of several: a copy for all
      std::vector<int64_t> sizes = ints(frame.batch);
      for (int64_t d = batch_dims - shift; d < tensor.dim(); ++d) sizes.push_back(tensor.size(d));
      tensor = tensor.expand(sizes).contiguous();
    }
    operand.by = any ? (has_entries ? kByEntry : kByBatch)
                     : (!has_entries         ? kByNone
                        : problem.batch == 1 ? kByEntry
                                             : kInBatch);
    if (any) {
      tensor = tensor.flatten(0, batch_dims);
    } else {
      while (tensor.dim() > features + 1) tensor = tensor.select(0, 0);
    }
  }
  operand.item = tensor.element_size();
  operand.data = static_cast<char*>(const_cast<void*>(tensor.const_data_ptr()));
  has_rows = tensor.dim() > features;
  if (operand.by != kByNone) operand.row_stride = tensor.stride(0) * operand.item;
  const int64_t missing = features - tensor.dim();  // negative: it has rows
  for (int64_t d = 0; d < features; ++d) {
    const int64_t at = has_rows ? d + 1 : d - missing;
    const bool is_broadcast = at < 0 || tensor.size(at) == 1;
    operand.strides.push_back(is_broadcast ? 0 : tensor.stride(at) * operand.item);
  }
  return operand;
}

// ---- The call -----------------------------------------------------------------------------------

void check_reductions(const Indexed& kernel, const Types& types) {
  for (size_t k = 0; k < kernel.out.size(); ++k) {
    const Role& role = kernel.out_roles[k];
    const bool sums =
        role.reduce == Reduce::kSum || role.reduce == Reduce::kMean || !role.features.empty();
    TORCH_CHECK_TYPE(!sums || types.out[k] != at::kBool, kernel.name, ": output ",
                     kernel.out[k].name,
                     " is bool, which has no sum. Declare an integer, or reduce it by amax.");
    TORCH_CHECK_TYPE(!role.is_best() || !c10::isComplexType(types.out[k]), kernel.name, ": output ",
                     kernel.out[k].name, " is complex, so it has no largest value.");
  }
}

// Of an output that is reduced to nothing that an index names.
Target target_of(const Indexed& kernel, const Arguments& arguments, const Frame& frame,
                 const Problem& problem, size_t output, bool& needs_sum) {
  Target target;
  target.is_summed = frame.is_summed[output];
  if (kernel.out_roles[output].index >= 0) {
    target.walk = 'r';
    target.index = kernel.out_roles[output].index;
    return target;
  }
  if (kernel.out[output].like < 0 || problem.batch == 1) {
    target.walk = frame.has_entries[output] ? 'e' : 'u';
    return target;
  }
  const Tensor& like = *arguments[kernel.out[output].like].tensor;
  const int64_t features = static_cast<int64_t>(frame.features.size());
  const int64_t shift = frame.batch_dims + 1 + features - like.dim();
  const auto [any, all] = BatchAxes(frame, like, shift);
  needs_sum = any && !all;
  if (frame.has_entries[output]) {
    target.walk = any ? 'e' : 'u';
    target.uniform = any ? 'a' : 'e';
  } else {
    target.walk = 'u';
    target.uniform = any ? 'b' : 'a';
  }
  return target;
}

using Passes = std::vector<std::pair<Target, std::vector<size_t>>>;

// An output for each entry is written on the way where a pass by rows comes to all entries: that of
// the index by which most is read, as what belongs to its row is read once.
template <class HasOrder>
void join_passes(Indexed& kernel, Problem& problem, Passes& passes,
                 const std::vector<int64_t>& reads, const HasOrder& has_order, c10::Device device) {
  problem.is_folded.resize(kernel.out.size());
  for (size_t k = 0; k < passes.size(); ++k) {
    const auto& [entries, outputs] = passes[k];
    if (entries.walk != 'e') continue;
    bool sums_all = true;
    for (size_t d = 0; d < problem.features.size(); ++d) {
      sums_all &= entries.is_summed[d] || problem.features[d] == 1;
    }
    auto best = passes.end();
    for (auto pass = passes.begin(); pass != passes.end(); ++pass) {
      const Target& rows = pass->first;
      if (rows.walk != 'r' || !has_order(rows)) continue;
      if (rows.is_summed != entries.is_summed &&
          !(sums_all && can_fold(kernel, problem, rows, pass->second, device))) {
        continue;
      }
      if (best == passes.end() || reads[rows.index] > reads[best->first.index]) best = pass;
    }
    if (best == passes.end()) continue;
    for (const size_t output : outputs) {
      problem.is_folded[output] = best->first.is_summed != entries.is_summed;
    }
    best->second.insert(best->second.end(), outputs.begin(), outputs.end());
    passes.erase(passes.begin() + static_cast<int64_t>(k));
    --k;
  }
}

// In the order of the index by which most is read, neighbours read the same rows. But narrow rows
// that lie in the order of the entries are then far apart: the order is for rows of so many bytes
// and more, or so many where what is written is their sum. On an H100, 4 to 256 floats: rows of 16
// bytes take up to 7 times as long in it, of 128 bytes as long, and wider ones up to 1.5 times as
// long without it; 1.7 times where sums are written.
constexpr int64_t kLeastOrdered = 128, kLeastOrderedForSums = 64;

Planned order_of_entries(const Problem& problem, const Target& target, const Call& call,
                         const std::vector<int64_t>& reads) {
  int64_t widest = 0;
  for (const Operand& operand : problem.operands) {
    int64_t bytes = operand.by >= 0 ? operand.item : 0;
    for (size_t d = 0; d < problem.features.size(); ++d) {
      if (operand.strides[d] != 0) bytes *= problem.features[d];
    }
    widest = std::max(widest, bytes);
  }
  const bool sums =
      std::find(target.is_summed.begin(), target.is_summed.end(), true) != target.is_summed.end();
  if (widest < (sums ? kLeastOrderedForSums : kLeastOrdered)) return {};
  size_t best = 0;
  for (size_t k = 1; k < reads.size(); ++k) {
    if (reads[k] >= reads[best]) best = k;
  }
  const Planned order = planned(call.plans, best, reads.size());
  const bool is_complete =
      order.is_known() && std::all_of(order.rows.begin(), order.rows.end(), [&](const Tensor& t) {
        return t.numel() == problem.positions();
      });
  return is_complete && reads[best] > 0 ? order : Planned{};
}

}  // namespace

Planned planned(const std::vector<Tensor>& plans, size_t index, size_t indices) {
  Planned found;
  if (plans.empty()) return found;
  const auto first = plans.begin() + static_cast<int64_t>(index) * Planned::count(indices);
  found.order = first[0];
  found.offsets = first[1];
  for (size_t k = 0; k < indices; ++k) found.rows.push_back(first[2 + static_cast<int64_t>(k)]);
  return found;
}

std::vector<Tensor> allocate(const Indexed& kernel, const Types& types, const Frame& frame,
                             c10::Device device, bool winners) {
  check_reductions(kernel, types);
  std::vector<Tensor> outputs;
  const auto make = [&](const c10::SymDimVector& sizes, ScalarType type) {
    const auto options = at::TensorOptions().dtype(type).device(device);
    outputs.push_back(device.is_meta() ? at::empty_symint(sizes, options)
                                       : new_output(C10_AS_INTARRAYREF_SLOW(sizes), options));
  };
  for (size_t k = 0; k < kernel.out.size(); ++k) make(frame.outputs[k], types.out[k]);
  for (size_t k = 0; winners && k < kernel.out.size(); ++k) {
    if (kernel.out_roles[k].is_best()) make(frame.outputs[k], at::kLong);
  }
  return outputs;
}

// What is not checked here of a plan is what it holds.
static void check_plans(const Indexed& kernel, const Call& call, const Problem& problem) {
  if (call.plans.empty()) return;
  const size_t count = kernel.indices.size();
  TORCH_CHECK_VALUE(call.plans.size() == count * static_cast<size_t>(Planned::count(count)),
                    kernel.name, ": the number of tensors of a plan must be ",
                    count * static_cast<size_t>(Planned::count(count)), ", but it is ",
                    call.plans.size(), ".");
  for (size_t k = 0; k < count; ++k) {
    const Planned plan = planned(call.plans, k, count);
    if (!plan.is_known()) continue;
    const ScalarType type = plan.order.scalar_type();
    const auto fits = [&](const Tensor& part, int64_t size) {
      return part.dim() == 1 && part.size(0) == size && part.is_contiguous() &&
             part.scalar_type() == type;
    };
    bool is_right = (type == at::kInt || type == at::kLong) &&
                    fits(plan.order, problem.positions()) &&
                    fits(plan.offsets, problem.batch * problem.sizes[k] + 1);
    for (const Tensor& rows : plan.rows) {
      is_right &= rows.numel() == 0 || fits(rows, problem.positions());
    }
    TORCH_CHECK_VALUE(is_right, kernel.name, ": the plan of ", kernel.indices[k],
                      " was made for other indices or another number of rows: the number of its "
                      "entries must be ",
                      problem.positions(), ", and that of its rows ",
                      problem.batch * problem.sizes[k], ". Make it by torch_ops.jit.index_plan.");
  }
}

void check_devices(const Indexed& kernel, const Arguments& arguments, const Call& call) {
  const c10::Device device = call.indices[0].device();
  const auto check = [&](const Tensor& tensor, const std::string& name) {
    TORCH_CHECK(tensor.device() == device, kernel.name,
                ": tensors and indices must be on one device, but ", name, " is on ",
                tensor.device(), " and ", kernel.indices[0], " is on ", device, ".");
  };
  for (size_t k = 0; k < arguments.size(); ++k) {
    if (!is_number(arguments[k], kernel.in[k])) check(*arguments[k].tensor, kernel.in[k].name);
  }
  for (size_t k = 0; k < call.indices.size(); ++k) check(call.indices[k], kernel.indices[k]);
  for (const Tensor& part : call.plans) {
    if (part.sym_numel().maybe_as_int() != 0) check(part, "the plan");
  }
}

std::vector<Tensor> run(Indexed& kernel, const Arguments& arguments, const Call& call,
                        bool winners) {
  if (needs_rounding(kernel, arguments)) {
    return run(kernel, RoundedArguments(kernel, arguments).arguments, call, winners);
  }
  const Frame frame = frame_of(kernel, arguments, call);
  check_devices(kernel, arguments, call);
  const c10::Device device = call.indices[0].device();
  TORCH_CHECK(device.is_cpu() || device.is_cuda(), kernel.name,
              ": tensors must be on the CPU or a CUDA device, but they are on ", device, ".");
  const c10::OptionalDeviceGuard guard(device);
  const Types types = resolve_types(kernel, arguments, {});

  Problem problem;
  problem.batch = c10::multiply_integers(ints(frame.batch));
  problem.entries = frame.entries.expect_int();
  problem.features = ints(frame.features);
  problem.sizes = ints(frame.sizes);
  for (size_t k = 0; k < call.indices.size(); ++k) {
    // An index that nothing reads, and nothing is reduced to, has no size.
    TORCH_CHECK_INDEX(problem.sizes[k] != 0 || problem.positions() == 0, kernel.name,
                      ": the number of entries of ", kernel.indices[k], " is ", problem.positions(),
                      ", but the axis has size 0: no entry is allowed.");
    problem.indices.push_back(call.indices[k].contiguous());
    problem.longest.push_back(k < call.longest.size() ? call.longest[k].expect_int() : -1);
  }
  check_plans(kernel, call, problem);
  std::vector<Tensor> results = allocate(kernel, types, frame, device, winners);
  problem.outputs.assign(results.begin(),
                         results.begin() + static_cast<int64_t>(kernel.out.size()));
  problem.winners.resize(kernel.out.size());
  for (size_t k = 0, at = kernel.out.size(); winners && k < kernel.out.size(); ++k) {
    if (kernel.out_roles[k].is_best()) problem.winners[k] = results[at++];
  }
  for (const ScalarType type : types.out) problem.add_output(type, type);
  problem.add_inputs(kernel, arguments, types, {}, [&](size_t k, const Tensor& tensor) {
    problem.operands.push_back(operand_of(problem, frame, tensor, kernel.in_roles[k].index));
  });

  if (std::find(problem.features.begin(), problem.features.end(), 0) != problem.features.end()) {
    for (const Tensor& result : results) result.zero_();  // sums of nothing
    return results;
  }

#ifdef TORCH_OPS_WITH_CUDA
  std::optional<IndexErrorCall> errors;
  if (device.is_cuda()) {
    errors.emplace(/*wait=*/false);
    errors->record();
    problem.errors = &*errors;
  }
#endif
  // Outputs by what they are reduced to.
  Passes passes;
  std::vector<std::pair<size_t, Tensor>> summed_later;
  for (size_t k = 0; k < kernel.out.size(); ++k) {
    bool needs_sum = false;
    const Target target = target_of(kernel, arguments, frame, problem, k, needs_sum);
    if (needs_sum) {  // over some of several batch axes
      std::vector<int64_t> sizes = ints(frame.batch);
      const auto own = problem.outputs[k].sizes();
      const int64_t behind = 1 + static_cast<int64_t>(problem.features.size());
      sizes.insert(sizes.end(), own.end() - behind, own.end());
      summed_later.emplace_back(k, problem.outputs[k]);
      problem.outputs[k] = new_output(sizes, problem.outputs[k].options());
    }
    const auto found = std::find_if(passes.begin(), passes.end(),
                                    [&](const auto& pass) { return pass.first == target; });
    if (found == passes.end()) {
      passes.push_back({target, {k}});
    } else {
      found->second.push_back(k);
    }
  }
  const size_t count = kernel.indices.size();
  const auto has_order = [&](const Target& target) {
    return device.is_cpu() ||
           planned(call.plans, static_cast<size_t>(target.index), count).is_known();
  };
  std::vector<int64_t> reads(count);  // of rows, by index
  for (const Operand& operand : problem.operands) {
    if (operand.by >= 0) ++reads[operand.by];
  }
  join_passes(kernel, problem, passes, reads, has_order, device);
  std::vector<Planned> orders(count);
  for (const auto& [target, outputs] : passes) {
    Planned order;
    if (target.walk == 'r') {
      const auto index = static_cast<size_t>(target.index);
      if (!orders[index].is_known()) {
        orders[index] = planned(call.plans, index, count);
        if (!orders[index].is_known()) {
          orders[index] = sorted_by(kernel, problem, index, device);
        }
      }
      order = orders[index];
    } else if (target.walk == 'e' && !call.plans.empty()) {
      order = order_of_entries(problem, target, call, reads);
    }
    run_pass(kernel, problem, target, outputs, order, device);
  }
#ifdef TORCH_OPS_WITH_CUDA
  if (errors) errors->end();
#endif
  for (const auto& [k, result] : summed_later) {
    result.copy_(at::sum_to(problem.outputs[k], result.sizes()));
  }
  return results;
}

}  // namespace torch_ops::jit::indexed