// A call of a reduction: axes are sorted into kept and reduced ones, each output's elements cut
// into parts, and the parts' results combined. How they are cut follows from sizes and strides
// alone, so that the bits are the same on each run, on any number of threads.
#include "jit/reduction.h"

#include <ATen/ExpandUtils.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/Parallel.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>

#include "jit/library.h"
#include "jit/plan.h"
#include "jit/python_arguments.h"

namespace torch_ops::jit {
namespace {

namespace py = pybind11;

constexpr int64_t kGrain = 32768;    // elements below which no second task is worth it
constexpr int64_t kHostPart = 4096;  // elements that one task of the CPU reduces
constexpr int64_t kThreads = 256;    // a block; headers/reduce.h has it too
constexpr int64_t kBlocks = 8192;    // what a grid should have to fill a GPU
constexpr int64_t kLeastPerThread = 16;

// One axis of the plan, as output and inputs step along it, in bytes.
struct Axis {
  int64_t size;
  c10::SmallVector<int64_t, 4> strides;  // the output's first
};
using Axes = c10::SmallVector<Axis, 4>;

// Joins neighbours that one stride walks for all tensors; the innermost axis stands first.
void coalesce(Axes& axes) {
  Axes joined;
  for (Axis& axis : axes) {
    if (axis.size == 1) continue;
    if (!joined.empty()) {
      Axis& last = joined.back();
      bool fits = true;
      for (size_t k = 0; k < axis.strides.size(); ++k) {
        fits &= axis.strides[k] == last.strides[k] * last.size;
      }
      if (fits) {
        last.size *= axis.size;
        continue;
      }
    }
    joined.push_back(std::move(axis));
  }
  axes = std::move(joined);
}

int64_t product(const Axes& axes) {
  int64_t result = 1;
  for (const Axis& axis : axes) result *= axis.size;
  return result;
}

// The stride of the innermost axis that the inputs walk.
int64_t inner_stride(const Axes& axes) {
  int64_t least = INT64_MAX;
  if (axes.empty()) return least;
  for (size_t k = 1; k < axes[0].strides.size(); ++k) {
    if (axes[0].strides[k] != 0) least = std::min(least, axes[0].strides[k]);
  }
  return least;
}

void put_axes(Words& words, const Axes& axes) {
  for (const Axis& axis : axes) {
    words.put(axis.size);
    for (const int64_t stride : axis.strides) words.put(stride);
  }
}

struct Call {
  Axes kept, reduced;
  c10::SmallVector<ScalarType, 8> stored, computed;  // output, then inputs; Undefined: a number
  c10::SmallVector<const Tensor*, 8> operands;       // the output, and inputs that are no numbers
  c10::SmallVector<Tensor, 8> views;                 // the inputs, broadcast
  c10::SmallVector<int8_t, 4> raw_ranks;
  Words tail;
};

ReductionCode find_code(Reduction& kernel, const Call& call, std::optional<int> device) {
  std::string key(1, static_cast<char>(device ? *device + 1 : 0));
  for (const ScalarType type : call.stored) key.push_back(static_cast<char>(type));
  for (const ScalarType type : call.computed) key.push_back(static_cast<char>(type));
  for (const int8_t rank : call.raw_ranks) key.push_back(rank);
  key.push_back(static_cast<char>(call.kept.size()));
  key.push_back(static_cast<char>(call.reduced.size()));
  return kernel.codes.get(key, [&] {
    const py::gil_scoped_acquire gil;
    const py::tuple made = kernel.compile(
        device ? py::object(py::int_(*device)) : py::object(py::none()), names_of(call.stored),
        names_of(call.computed), ranks_of(call.raw_ranks), call.kept.size(), call.reduced.size());
    return ReductionCode{reinterpret_cast<const void*>(made[0].cast<intptr_t>()),
                         reinterpret_cast<const void*>(made[1].cast<intptr_t>())};
  });
}

// The words that both kinds of processor get; headers/reduce.h declares them.
Words plan_words(Call& call, int64_t outputs, int64_t elements, int64_t part, int64_t parts,
                 void* partials) {
  Words words;
  words.put(outputs);
  words.put(elements);
  words.put(part);
  words.put(parts);
  words.put(partials);
  for (const Tensor* operand : call.operands) words.put(operand->data_ptr());
  for (size_t w = 0; w < call.tail.size(); ++w) words.put(call.tail[w]);
  return words;
}

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

int64_t power_of_two_up_to(int64_t value) {
  int64_t power = 1;
  while (power * 2 <= value) power *= 2;
  return power;
}

Tensor scratch(int64_t bytes, const Tensor& like) {
  return at::empty({bytes}, like.options().dtype(at::kByte));
}

void run_cpu(Reduction& kernel, Call& call, const Tensor& out, int64_t outputs, int64_t elements) {
  const ReductionCode code = find_code(kernel, call, std::nullopt);
  using Function = void (*)(const int64_t*, int64_t, int64_t);
  const auto partial = reinterpret_cast<Function>(const_cast<void*>(code.partial));
  const auto finish = reinterpret_cast<Function>(const_cast<void*>(code.finish));
  const int64_t parts = std::max<int64_t>(ceil_div(elements, kHostPart), 1);
  const Tensor partials = scratch(parts > 1 ? outputs * parts * 8 : 0, out);
  Words words = plan_words(call, outputs, elements, kHostPart, parts, partials.data_ptr());
  put_axes(words, call.kept);
  put_axes(words, call.reduced);
  const int64_t grain =
      std::max<int64_t>(kGrain / std::max<int64_t>(std::min(elements, kHostPart), 1), 1);
  at::parallel_for(0, outputs * parts, grain,
                   [&](int64_t begin, int64_t end) { partial(words.data(), begin, end); });
  if (parts == 1) return;
  at::parallel_for(0, outputs, std::max<int64_t>(kGrain / parts, 1),
                   [&](int64_t begin, int64_t end) { finish(words.data(), begin, end); });
}

void run_cuda(Reduction& kernel, Call& call, const Tensor& out, int64_t outputs, int64_t elements) {
  const ReductionCode code = find_code(kernel, call, out.device().index());
  // The threads of one output are neighbours where its elements are, else the outputs are.
  const bool along = inner_stride(call.reduced) <= inner_stride(call.kept);
  int64_t lanes = std::min(kThreads, power_of_two_up_to(std::max<int64_t>(elements / 4, 1)));
  if (!along) lanes = std::min<int64_t>(lanes, outputs >= 32 ? 8 : kThreads / 4);
  const int64_t per_block = kThreads / lanes;
  const int64_t blocks = ceil_div(outputs, per_block);
  const int64_t wanted = std::max<int64_t>(kBlocks / blocks, 1);
  const int64_t possible = std::max<int64_t>(elements / (lanes * kLeastPerThread), 1);
  const int64_t parts = std::min(wanted, possible);
  const int64_t part = std::max<int64_t>(ceil_div(ceil_div(elements, parts), lanes) * lanes, 1);
  const int64_t used = std::max<int64_t>(ceil_div(elements, part), 1);
  const Tensor partials = scratch(used > 1 ? outputs * used * 8 : 0, out);
  Words words = plan_words(call, outputs, elements, part, used, partials.data_ptr());
  words.put(lanes);
  words.put(int64_t{along});
  put_axes(words, call.kept);
  put_axes(words, call.reduced);
  void* parameters[] = {words.data()};
  void* const stream = current_stream(out.device().index());
  const auto launch = [&](const void* function, int64_t grid_x, int64_t grid_y) {
    const LaunchShape shape{{static_cast<uint32_t>(grid_x), static_cast<uint32_t>(grid_y), 1},
                            {static_cast<uint32_t>(kThreads), 1, 1}};
    launch_kernel(function, out.device().index(), shape, stream, parameters);
  };
  launch(code.partial, std::min<int64_t>(blocks, INT32_MAX), used);
  if (used > 1) launch(code.finish, std::min<int64_t>(outputs, INT32_MAX), 1);
}

}  // namespace

Reduction::~Reduction() {
  const py::gil_scoped_acquire gil;
  compile = py::object();
}

Tensor reduce(Reduction& kernel, const Arguments& arguments, std::optional<at::IntArrayRef> dims,
              bool keepdim, const Tensor& out) {
  c10::SmallVector<Tensor, 1> outs;
  if (out.defined()) outs.push_back(out);
  const c10::Device device = device_of(kernel, arguments, outs);
  const c10::OptionalDeviceGuard guard(device);
  const Types types = resolve_types(kernel, arguments, outs);

  at::DimVector shape;
  bool any = false;
  for (size_t k = 0; k < arguments.size(); ++k) {
    if (!arguments[k].tensor || kernel.in[k].raw) continue;
    any = true;
    shape = at::infer_size_dimvector(shape, arguments[k].tensor->sizes());
  }
  TORCH_CHECK_TYPE(any, kernel.name, ": a reduction takes a tensor at least that is not raw.");
  const auto rank = static_cast<int64_t>(shape.size());
  std::vector<bool> is_reduced(std::max<int64_t>(rank, 1), !dims);
  if (dims) {
    for (const int64_t dim : *dims) {
      TORCH_CHECK_INDEX(dim >= -std::max<int64_t>(rank, 1) && dim < std::max<int64_t>(rank, 1),
                        kernel.name, ": dim ", dim, " is out of range for a tensor of ", rank,
                        " axes.");
      const int64_t axis = dim < 0 ? dim + std::max<int64_t>(rank, 1) : dim;
      TORCH_CHECK_VALUE(!is_reduced[axis], kernel.name, ": dim ", axis, " is named twice.");
      is_reduced[axis] = true;
    }
  }
  at::DimVector kept_shape;
  for (int64_t d = 0; d < rank; ++d) {
    if (!is_reduced[d]) {
      kept_shape.push_back(shape[d]);
    } else if (keepdim) {
      kept_shape.push_back(1);
    }
  }
  Tensor result = out;
  if (out.defined()) {
    TORCH_CHECK_VALUE(out.sizes() == at::IntArrayRef(kept_shape), kernel.name, ": out has shape ",
                      out.sizes(), ", but the result has ", at::IntArrayRef(kept_shape),
                      ". An output is never resized.");
    at::assert_no_internal_overlap(out);
    for (const Argument& argument : arguments) {
      if (argument.tensor) at::assert_no_overlap(out, *argument.tensor);
    }
  } else {
    result = at::empty(kept_shape, at::TensorOptions().dtype(types.out[0]).device(device));
  }

  Call call;
  call.operands.push_back(&result);
  call.stored.push_back(result.scalar_type());
  call.computed.push_back(types.out[0]);
  call.views.reserve(arguments.size());
  c10::SmallVector<const Tensor*, 4> raw;
  for (size_t k = 0; k < arguments.size(); ++k) {
    const Tensor* tensor = arguments[k].tensor;
    call.computed.push_back(types.in[k]);
    if (kernel.in[k].raw) {
      TORCH_CHECK_TYPE(tensor, kernel.name, ": ", kernel.in[k].name,
                       " is a raw parameter and takes a tensor, not a number.");
      raw.push_back(tensor);
      call.stored.push_back(tensor->scalar_type());
    } else if (is_number(arguments[k], kernel.in[k])) {
      call.stored.push_back(ScalarType::Undefined);
      call.tail.put(tensor ? tensor->item() : arguments[k].number, types.in[k]);
    } else {
      call.stored.push_back(tensor->scalar_type());
      call.views.push_back(tensor->expand(shape));
      call.operands.push_back(&call.views.back());
    }
  }
  for (const Tensor* tensor : raw) {
    const auto axes = static_cast<int8_t>(tensor->dim());
    call.raw_ranks.push_back(tensor->is_contiguous() ? axes : static_cast<int8_t>(-1 - axes));
    call.tail.put_raw(*tensor);
  }
  // Axes from the innermost on; the reduced ones in the order of the first input's strides.
  int64_t out_axis = static_cast<int64_t>(kept_shape.size()) - 1;
  for (int64_t d = rank - 1; d >= 0; --d) {
    Axis axis{shape[d], {}};
    const bool has_out_axis = !is_reduced[d];
    axis.strides.push_back(has_out_axis ? result.stride(out_axis) * result.element_size() : 0);
    if (has_out_axis || keepdim) --out_axis;
    for (const Tensor& view : call.views)
      axis.strides.push_back(view.stride(d) * view.element_size());
    (has_out_axis ? call.kept : call.reduced).push_back(std::move(axis));
  }
  const int64_t outputs = product(call.kept), elements = product(call.reduced);
  TORCH_CHECK_VALUE(elements > 0 || kernel.has_identity || outputs == 0, kernel.name,
                    ": there is no element to reduce (shape ", at::IntArrayRef(shape),
                    "), and the kernel has no identity.");
  const auto by_stride = [](const Axis& a, const Axis& b) {
    return a.strides.size() > 1 && a.strides[1] < b.strides[1];
  };
  std::stable_sort(call.reduced.begin(), call.reduced.end(), by_stride);
  std::stable_sort(call.kept.begin(), call.kept.end(), by_stride);
  if (elements == 0) call.reduced.clear();
  coalesce(call.kept);
  coalesce(call.reduced);
  if (outputs == 0) return result;
  if (device.is_cuda()) {
    run_cuda(kernel, call, result, outputs, elements);
  } else {
    run_cpu(kernel, call, result, outputs, elements);
  }
  return result;
}

}  // namespace torch_ops::jit
