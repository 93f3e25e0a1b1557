// A call of an elementwise kernel: its types, its plan (torch's TensorIterator), its launch.
#include "jit/elementwise/elementwise.h"

#include <ATen/ExpandUtils.h>
#include <ATen/Parallel.h>
#include <ATen/TensorIterator.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>
#include <c10/core/DeviceGuard.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>

#include "common/host/ceil_div.h"
#include "common/torch/calls/new_output.h"
#include "jit/call/plan.h"
#include "jit/call/python_arguments.h"
#include "jit/elementwise/host_loop.h"

namespace torch_ops::jit {
namespace {

constexpr int64_t kGrain = at::internal::GRAIN_SIZE;
constexpr int kVectorBytes = 16;
constexpr int kMostElements = 8;  // a vector
constexpr int kMostDims = 25;     // TensorIterator's limit on a GPU
constexpr int kUnrolledDims = 4;  // code of its own for each rank up to it
// Where the operand that counts elements begins; any address but the null one does.
char* const kIndexBase = reinterpret_cast<char*>(uintptr_t{1} << 12);

// ---- Compiled code ------------------------------------------------------------------------------

// What generated code depends on.
struct Form : Layout {
  c10::Device device;
  std::string modes;  // of operands on CUDA: c(ontiguous), b(roadcast), s
  int dims = 0;
  int vector = 0;
  char index = 'n';  // n(one), l(inear), o(perand)
  bool load_outputs = false;

  explicit Form(c10::Device device) : device(device) {}
};

Variant find_variant(Elementwise& kernel, const Form& form) {
  const auto read = [](const Compiled& made) {
    return Variant{made.function(0), made.number(1), made.number(2)};
  };
  return find_code(kernel.variants, kernel.compile, form.device, form, read, form.modes, form.dims,
                   form.vector, form.index, form.load_outputs);
}

// ---- The plan -----------------------------------------------------------------------------------

struct Call {
  Elementwise& kernel;
  Form form;
  c10::SmallVector<Tensor, 4> outs;             // of all outputs, raw ones too
  c10::SmallVector<const Tensor*, 8> operands;  // inputs that the plan walks
  Tensor index;                                 // counts elements, where operands' order does not
  int64_t numel = 0;
};

// Does memory follow the row-major index of the shape?
bool in_order(const at::TensorIteratorBase& iter) {
  for (int k = 0; k < iter.ntensors(); ++k) {
    const at::TensorBase& tensor = iter.tensor_base(k);
    if (!tensor.is_contiguous() || tensor.numel() != iter.numel()) return false;
  }
  return iter.ndim() <= 1;
}

at::TensorIterator plan(Call& call, c10::Device device, std::optional<at::IntArrayRef> size,
                        bool static_shape) {
  at::TensorIteratorConfig config;
  config.check_all_same_dtype(false).resize_outputs(false);
  ScalarType allocate = at::kByte;
  for (size_t k = 0; k < call.outs.size(); ++k) {
    if (call.kernel.out[k].raw) continue;
    config.add_output(call.outs[k]);
    if (!call.outs[k].defined()) allocate = call.form.stored[k];
  }
  for (const Tensor* operand : call.operands) config.add_const_input(*operand);
  if (call.index.defined()) config.add_const_input(call.index);
  config.declare_static_dtype_and_device(allocate, device);
  if (static_shape) config.declare_static_shape(size.value_or(at::IntArrayRef()));
  return config.build();
}

// The shape that inputs, or else outputs, have together.
at::DimVector shape_of(const Call& call) {
  for (size_t k = 0; call.operands.empty() && k < call.outs.size(); ++k) {
    if (!call.kernel.out[k].raw) return at::DimVector(call.outs[k].sizes());
  }
  at::DimVector shape;
  for (const Tensor* operand : call.operands) {
    shape = at::infer_size_dimvector(shape, operand->sizes());
  }
  return shape;
}

void check_outputs(const Call& call, at::TensorList outs) {
  if (outs.empty()) return;
  const at::DimVector shape = shape_of(call);
  for (size_t k = 0; k < outs.size(); ++k) {
    TORCH_CHECK_VALUE(call.kernel.out[k].raw || outs[k].sizes() == at::IntArrayRef(shape),
                      call.kernel.name, ": output ", call.kernel.out[k].name, " has shape ",
                      outs[k].sizes(), ", but the result has ", at::IntArrayRef(shape),
                      ". An output is never resized.");
  }
}

// Adds an operand of one byte an element, in row-major order: its addresses are the elements'
// indices, in whatever order and parts the plan walks.
void count_elements(Call& call, c10::Device device, at::IntArrayRef shape) {
  call.index = at::for_blob(kIndexBase, shape)
                   .options(at::TensorOptions().dtype(at::kByte).device(device))
                   .target_device(device)
                   .make_tensor();
}

// The outputs that the plan has made. It knows one dtype for them; others are made beside it.
bool take_outputs(Call& call, const at::TensorIterator& iter) {
  bool complete = true;
  int at = 0;
  for (size_t k = 0; k < call.outs.size(); ++k) {
    if (call.kernel.out[k].raw) continue;
    const Tensor& made = iter.output(at++);
    if (call.outs[k].defined()) continue;
    if (made.scalar_type() == call.form.stored[k]) {
      call.outs[k] = in_huge_pages(made);
    } else {
      const auto options = made.options().dtype(call.form.stored[k]);
      call.outs[k] = new_output(options, [&](const auto& chosen) {
        return at::empty_strided(made.sizes(), made.strides(), chosen);
      });
      complete = false;
    }
  }
  return complete;
}

// Operands that the code has a pointer to.
int pointers(const Call& call, const at::TensorIteratorBase& iter) {
  return iter.ntensors() - (call.index.defined() && call.form.index != 'o' ? 1 : 0);
}

// What both kinds of processor get: sizes, pointers, numbers, raw parameters.
Words first_words(Call& call, const at::TensorIteratorBase& iter) {
  Words words;
  words.put(iter.numel());
  words.put(call.numel);
  const int counting = call.index.defined() ? iter.ntensors() - 1 : -1;
  for (int k = 0; k < pointers(call, iter); ++k) {
    words.put(static_cast<char*>(iter.data_ptr(k)) - (k == counting ? kIndexBase : nullptr));
  }
  words.append(call.form.tail);
  return words;
}

// ---- CPU ----------------------------------------------------------------------------------------

void run_cpu(Call& call, const at::TensorIterator& iter) {
  const auto outputs = static_cast<int>(std::count_if(
      call.kernel.out.begin(), call.kernel.out.end(), [](const Parameter& p) { return !p.raw; }));
  const HostLoop loop(iter, first_words(call, iter), pointers(call, iter), outputs,
                      call.form.load_outputs, call.form.index == 'o', call.kernel.has_loop_parts);
  const auto function = reinterpret_cast<HostLoop::Function>(
      const_cast<void*>(find_variant(call.kernel, call.form).function));
  at::parallel_for(0, iter.numel(), kGrain, [&](int64_t begin, int64_t end) {
    loop.run(call.kernel, function, begin, end);
  });
}

// ---- CUDA ---------------------------------------------------------------------------------------

// Division by multiplication, as src/common/cuda/fast_divisor.cuh has it: its three numbers.
void put_divisor(Words& words, uint32_t divisor) {
  uint32_t shift = 0;
  while ((uint64_t{1} << shift) < divisor) ++shift;
  const uint64_t gap = (uint64_t{1} << shift) - divisor;
  words.put_pair(divisor, static_cast<uint32_t>((gap << 32) / divisor + 1));
  words.put_pair(shift, 0);
}

// How the elements of a thread lie: the widest vectors that sizes, strides and pointers allow.
void choose_form(Call& call, const at::TensorIteratorBase& iter) {
  const int operands = iter.ntensors();
  const int walked = operands - (call.index.defined() ? 1 : 0);
  Form& form = call.form;
  const int dims = std::max(iter.ndim(), 1);
  const int64_t inner = iter.ndim() > 0 ? iter.shape()[0] : 1;
  form.modes.assign(operands, 'c');
  int64_t smallest = kVectorBytes;
  bool strided = false;
  for (int k = 0; k < operands; ++k) {
    const int64_t size = k < walked ? iter.element_size(k) : 1;
    const int64_t stride = iter.ndim() > 0 && inner > 1 ? iter.strides(k)[0] : size;
    if (stride == 0) {
      form.modes[k] = 'b';
    } else if (stride != size) {
      strided = true;
    } else if (k < walked) {
      smallest = std::min(smallest, size);
    }
  }
  form.vector = 1;
  if (!strided && call.operands.size() + call.outs.size() > 0) {
    int vector = static_cast<int>(std::min<int64_t>(kVectorBytes / smallest, kMostElements));
    if (dims > 1 && inner % vector != 0) vector = 1;
    for (int k = 0; k < walked && vector > 1; ++k) {
      const int64_t size = iter.element_size(k);
      const int64_t bytes =
          form.modes[k] == 'b' ? size : std::min<int64_t>(kVectorBytes, vector * size);
      if (reinterpret_cast<uintptr_t>(iter.data_ptr(k)) % bytes != 0) vector = 1;
      for (int d = 1; d < iter.ndim(); ++d) {
        if (iter.strides(k)[d] % bytes != 0) vector = 1;
      }
    }
    form.vector = vector;
  }
  if (form.vector == 1 && (dims > 1 || strided)) form.modes.assign(operands, 's');
  form.dims = dims <= kUnrolledDims ? dims : kMostDims;
}

void launch(Call& call, at::TensorIteratorBase& iter) {
  choose_form(call, iter);
  const Form& form = call.form;
  const bool flat = form.dims == 1 && form.modes.find('s') == std::string::npos;
  if (!flat && !iter.can_use_32bit_indexing()) {
    for (auto& part : iter.with_32bit_indexing()) launch(call, part);
    return;
  }
  TORCH_CHECK(iter.ndim() <= kMostDims, call.kernel.name, ": on a GPU the operands must not have ",
              "more than ", kMostDims, " axes that no common stride joins, but they have ",
              iter.ndim(), ". Make them contiguous.");
  const Variant variant = find_variant(call.kernel, form);
  const int operands = iter.ntensors();
  Words words = first_words(call, iter);
  if (!flat) {
    words.put(int64_t{iter.ndim()});
    for (int d = 0; d < form.dims; ++d) {
      const int64_t size = d < iter.ndim() ? iter.shape()[d] : 1;
      put_divisor(words, static_cast<uint32_t>(d == 0 ? size / form.vector : size));
    }
    c10::SmallVector<uint32_t, 32> strides;
    for (int d = 0; d < form.dims; ++d) {
      for (int k = 0; k < operands; ++k) {
        const int64_t stride = d < iter.ndim() ? iter.strides(k)[d] : 0;
        strides.push_back(static_cast<uint32_t>(d == 0 ? stride * form.vector : stride));
      }
    }
    strides.push_back(0);
    for (size_t s = 0; s + 1 < strides.size(); s += 2) words.put_pair(strides[s], strides[s + 1]);
  }
  const int64_t vectors = ceil_div(iter.numel(), form.vector);
  const int64_t per_block = variant.threads * variant.unroll;
  Launcher(form.device, words)(variant.function, ceil_div(vectors, per_block), 1, variant.threads);
}

}  // namespace

// ---- The call -----------------------------------------------------------------------------------

std::vector<Tensor> run(Elementwise& kernel, const Arguments& arguments, at::TensorList outs,
                        std::optional<at::IntArrayRef> size) {
  const c10::Device device = device_of(kernel, arguments, outs);
  const c10::OptionalDeviceGuard guard(device);
  const Types types = resolve_types(kernel, arguments, outs);
  if (needs_rounding(kernel, arguments)) {
    return run(kernel, RoundedArguments(kernel, arguments).arguments, outs, size);
  }
  check_shapes(kernel, arguments);
  Call call{kernel, Form(device)};
  Form& form = call.form;

  bool walks = false;      // does a tensor tell the shape?
  bool is_single = false;  // by having no axes, where size= does not tell another
  for (size_t k = 0; k < kernel.in.size(); ++k) {
    if (!arguments[k].tensor || kernel.in[k].raw) continue;
    (arguments[k].tensor->dim() > 0 ? walks : is_single) = true;
  }
  // Outputs.
  c10::SmallVector<const Tensor*, 4> raw;
  call.outs.reserve(kernel.out.size());
  for (size_t k = 0; k < kernel.out.size(); ++k) {
    const Parameter& parameter = kernel.out[k];
    Tensor out = outs.empty() ? Tensor() : outs[k];
    if (parameter.raw && !out.defined()) {
      TORCH_CHECK_VALUE(parameter.like >= 0, kernel.name, ": the raw output ", parameter.name,
                        " has no shape of its own: pass a tensor for it in out=.");
      const Tensor& like = *arguments[parameter.like].tensor;
      out = at::zeros(like.sizes(), like.options().dtype(types.out[k]));
    }
    TORCH_CHECK_TYPE(!out.defined() || !kernel.reads_outputs || !out.is_complex() ||
                         at::isComplexType(types.out[k]),
                     kernel.name, ": output ", parameter.name, " is read and computed in ",
                     dtype_name(types.out[k]), ", but the tensor given for it is ",
                     dtype_name(out.scalar_type()), ", which cannot be cast to that.");
    walks |= !outs.empty() && !parameter.raw;
    form.add_output(out.defined() ? out.scalar_type() : types.out[k], types.out[k]);
    call.outs.push_back(std::move(out));
    if (parameter.raw) raw.push_back(&call.outs.back());
  }
  form.load_outputs = kernel.reads_outputs && !outs.empty();
  // Inputs. A plan of a given shape takes all operands to have it.
  std::vector<Tensor> expanded;
  expanded.reserve(kernel.in.size());
  form.add_inputs(kernel, arguments, types, raw, [&](size_t, const Tensor& tensor) {
    const bool expands = size && tensor.dim() == 0;
    call.operands.push_back(expands ? &expanded.emplace_back(tensor.expand(*size)) : &tensor);
  });
  TORCH_CHECK_VALUE(!size || !walks, kernel.name,
                    ": size= is for calls in which no tensor but raw ones tells the shape.");
  TORCH_CHECK_VALUE(size || walks || is_single || form.raw_ranks.empty(), kernel.name,
                    ": only raw parameters are given, and numbers, which tell no shape. "
                    "Pass size=.");

  check_outputs(call, outs);
  const bool none_to_walk =
      call.operands.empty() &&
      std::all_of(kernel.out.begin(), kernel.out.end(), [](const Parameter& p) { return p.raw; });
  if (none_to_walk) count_elements(call, device, size.value_or(at::IntArrayRef()));
  const bool static_shape = size.has_value() || !walks;
  at::TensorIterator iter = plan(call, device, size, static_shape);
  if (!take_outputs(call, iter)) iter = plan(call, device, size, static_shape);
  call.numel = iter.numel();
  form.index = none_to_walk ? (device.is_cuda() ? 'o' : 'l') : kernel.uses_index ? 'l' : 'n';
  if (form.index == 'l' && !in_order(iter)) {
    count_elements(call, device, shape_of(call));
    form.index = 'o';
    iter = plan(call, device, size, static_shape);
  }
  if (call.numel > 0) device.is_cuda() ? launch(call, iter) : run_cpu(call, iter);
  return std::vector<Tensor>(call.outs.begin(), call.outs.end());
}

}  // namespace torch_ops::jit
