// A call of a reduction: axes are sorted into kept and reduced ones, each output's elements cut
// into parts, and the parts' results combined. How they are cut follows from sizes and strides, on
// CUDA also from alignment, of columns from the number of multiprocessors: the bits are the same on
// each run, on any number of threads.
#include "jit/reduction/reduction.h"

#include <ATen/ExpandUtils.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/Parallel.h>
#include <ATen/WrapDimUtils.h>
#include <c10/core/DeviceGuard.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>

#include "common/host/ceil_div.h"
#include "common/torch/calls/new_output.h"
#include "jit/call/axes.h"
#include "jit/call/host_call.h"
#include "jit/call/plan.h"
#include "jit/call/python_arguments.h"

namespace torch_ops::jit {
namespace {

constexpr int64_t kReductionGrain = 32768;  // elements below which no second task is worth it
constexpr int64_t kHostPart = 4096;         // elements that one task of the CPU reduces
// The same of columns: outputs side by side, at least and at most (headers/reduce/cpu.h has
// that too); rows of a part, a multiple of the first and at most the second; and tasks, where there
// is work.
constexpr int64_t kHostColumns = 16;
constexpr int64_t kHostWidth = 8192;
constexpr int64_t kHostRows = 64;
constexpr int64_t kHostMostRows = 512;
constexpr int64_t kHostTasks = 64;
// Outputs of so few elements are taken side by side however they lie: fewer than the running
// results that they would have (lanes in headers/reduce/cpu.h), and so combined in the same order.
constexpr int64_t kHostShortRow = 31;
constexpr int64_t kHostShortWidth = 2048;  // elements of these, which an L1 cache holds
constexpr int64_t kThreads = 256;          // a block; headers/reduce/cuda.h has it too
constexpr int64_t kBlocks = 8192;          // what a grid should have to fill a GPU
constexpr int64_t kLeastPerThread = 16;
constexpr int64_t kReductionVectorBytes = 16;
constexpr int64_t kLeastWords = 4;  // of a row that is not whole words, for it to be read in words
// Of rows: words, or else elements, that a lane has at least: a block pays for combining its lanes.
// It has fewer where there would be fewer threads than a GPU runs.
constexpr int64_t kWordsOfLane = 5;
constexpr int64_t kElementsOfLane = 32;
constexpr int64_t kRowThreads = 32768;
// Up to so much an output's elements stay one part, for a second launch takes the host longer:
// words, or else elements, of a thread; a row's elements, or the vectors of all columns.
constexpr int64_t kWordsOfOnePart = 64;
constexpr int64_t kOnePart = 65536;
// Of columns: as many as a multiprocessor has room for at a time, so that all end together, the
// start and the end of a block do not count beside what it reads, and the second pass has little to
// read.
constexpr int64_t kColumnBlocks = 4;
constexpr int64_t kColumnUnroll = 4;  // rows of a thread whose loads are in flight together

void coalesce(Axes& axes) {
  Axes joined;
  for (Axis& axis : axes) add_axis(joined, std::move(axis));
  axes = std::move(joined);
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

struct ReductionCall : Layout {
  int64_t outputs = 0, elements = 0;            // elements of an output
  Axes kept, reduced;                           // strides in bytes, the output's first
  c10::SmallVector<const Tensor*, 8> operands;  // the output, and inputs that are no numbers
  c10::SmallVector<Tensor, 8> views;            // the inputs, broadcast
  int64_t vector = 0;  // outputs that one thread of CUDA has, 1 on the CPU; 0: not columns
  std::string modes;   // of operands then: see torch_ops/jit/headers/operands.h
  // Of rows on CUDA: elements of a word. These have modes too: the output's says whether all rows
  // are whole words.
  int64_t word = 1;

  const Tensor& out() const { return *operands[0]; }
};

ReductionCode find_code(Reduction& kernel, const ReductionCall& call) {
  const auto read = [](const Compiled& made) {
    return ReductionCode{made.function(0), made.function(1), made.number(2)};
  };
  return find_code(kernel.codes, kernel.compile, call.out().device(), call, read, call.kept.size(),
                   call.reduced.size(), call.vector, call.modes);
}

// The words that both kinds of processor get; headers/reduce/reduce.h declares them.
// `more` is what the loop needs besides.
Words plan_words(const ReductionCall& call, int64_t part, int64_t parts, const Tensor& partials,
                 std::initializer_list<int64_t> more) {
  Words words;
  words.put(call.outputs);
  words.put(call.elements);
  words.put(part);
  words.put(parts);
  words.put(partials.data_ptr());
  for (const Tensor* operand : call.operands) words.put(operand->data_ptr());
  words.append(call.tail);
  for (const int64_t number : more) words.put(number);
  put_axes(words, call.kept, call.operands.size());
  put_axes(words, call.reduced, call.operands.size());
  return words;
}

// For results of parts, in the type that they are computed in; empty where there is one part.
Tensor scratch(const ReductionCall& call, const ReductionCode& code, int64_t parts) {
  const int64_t results = parts > 1 ? call.outputs * parts : 0;
  const int64_t size = std::max<int64_t>(8, code.result_bytes);
  return new_output({results * size}, call.out().options().dtype(at::kByte));
}

// Are the outputs what lies together in memory, and not each output's elements?
bool are_columns(const ReductionCall& call) {
  return call.elements > 0 && inner_stride(call.reduced) > inner_stride(call.kept);
}

// How the work is cut on the CPU: tasks in number, parts of the elements for each of `tasks /
// parts`, and the neighbouring outputs that a task reduces side by side.
struct HostTasks {
  int64_t part, parts, tasks, width;

  static HostTasks of_rows(int64_t outputs, int64_t elements) {
    const int64_t parts = std::max<int64_t>(ceil_div(elements, kHostPart), 1);
    return {kHostPart, parts, outputs * parts, 1};
  }

  static HostTasks of_columns(int64_t outputs, int64_t elements, int64_t row_size, int64_t most) {
    const int64_t per_row = ceil_div(row_size, most);
    const int64_t width = ceil_div(row_size, per_row * kHostColumns) * kHostColumns;
    const int64_t strips = outputs / row_size * ceil_div(row_size, width);
    // Enough tasks for many threads; the second pass reads a result a part and output.
    const int64_t wanted = ceil_div(elements * strips, kHostTasks);
    const int64_t part =
        std::clamp(ceil_div(wanted, kHostRows) * kHostRows, kHostRows, kHostMostRows);
    const int64_t parts = ceil_div(elements, part);
    return {part, parts, strips * parts, width};
  }
};

void run_cpu(Reduction& kernel, ReductionCall& call) {
  const int64_t outputs = call.outputs, elements = call.elements;
  const bool lie_in_columns = are_columns(call) && !call.reduced.empty();
  const bool are_short = elements > 0 && elements <= kHostShortRow;
  const bool columns =
      (lie_in_columns || are_short) && !call.kept.empty() && call.kept[0].size >= kHostColumns;
  const int64_t most =
      lie_in_columns ? kHostWidth : kHostShortWidth / std::max<int64_t>(elements, 1);
  if (columns) {
    call.vector = 1;
    for (size_t k = 1; k < call.operands.size(); ++k) {
      const int64_t stride = call.kept[0].strides[k];
      call.modes.push_back(stride == call.operands[k]->element_size() ? 'c'
                           : stride == 0                              ? 'b'
                                                                      : 's');
    }
  }
  const ReductionCode code = find_code(kernel, call);
  using Function = void (*)(const int64_t*, int64_t, int64_t);
  const auto partial = reinterpret_cast<Function>(const_cast<void*>(code.partial));
  const auto finish = reinterpret_cast<Function>(const_cast<void*>(code.finish));
  const HostTasks cut = columns ? HostTasks::of_columns(outputs, elements, call.kept[0].size, most)
                                : HostTasks::of_rows(outputs, elements);
  const Tensor partials = scratch(call, code, cut.parts);
  const Words words = columns ? plan_words(call, cut.part, cut.parts, partials, {cut.width})
                              : plan_words(call, cut.part, cut.parts, partials, {});
  const int64_t of_task = std::min(elements, cut.part) * std::min(cut.width, outputs);
  at::parallel_for(
      0, cut.tasks, std::max<int64_t>(kReductionGrain / std::max<int64_t>(of_task, 1), 1),
      [&](int64_t begin, int64_t end) { call_on_host(kernel, partial, words.data(), begin, end); });
  if (cut.parts == 1) return;
  at::parallel_for(
      0, outputs, std::max<int64_t>(kReductionGrain / cut.parts, 1),
      [&](int64_t begin, int64_t end) { call_on_host(kernel, finish, words.data(), begin, end); });
}

// The elements of a vector along an axis, if that is as wide as can be: those of the smallest input
// fill one word.
int64_t widest_vector(const ReductionCall& call, const Axis& inner) {
  int64_t smallest = kReductionVectorBytes;
  for (size_t k = 1; k < call.operands.size(); ++k) {
    if (inner.strides[k] != 0) smallest = std::min(smallest, call.operands[k]->element_size());
  }
  return std::min<int64_t>(kReductionVectorBytes / smallest, 8);
}

bool are_neighbours(const ReductionCall& call, size_t operand, const Axis& inner) {
  return inner.strides[operand] == call.operands[operand]->element_size();
}

// May the elements of an operand along an axis be moved as vectors?
bool lies_in_vectors(const ReductionCall& call, size_t operand, int64_t vector, const Axis& inner) {
  const Tensor& tensor = *call.operands[operand];
  const int64_t bytes = std::min(kReductionVectorBytes, vector * tensor.element_size());
  int64_t places = reinterpret_cast<intptr_t>(tensor.data_ptr());
  for (const Axes* axes : {&call.kept, &call.reduced}) {
    for (const Axis& axis : *axes) {
      if (&axis != &inner) places |= axis.strides[operand];
    }
  }
  return are_neighbours(call, operand, inner) && places % bytes == 0;
}

// How the outputs of a thread lie: the widest vectors that sizes, strides and pointers allow.
void choose_vector(ReductionCall& call) {
  const Axis& inner = call.kept[0];
  const size_t count = call.operands.size();
  int64_t vector = widest_vector(call, inner);
  const auto fits = [&] {
    if (inner.size % vector != 0) return false;
    for (size_t k = 1; k < count; ++k) {
      if (inner.strides[k] != 0 && !lies_in_vectors(call, k, vector, inner)) return false;
    }
    return true;
  };
  while (vector > 1 && !fits()) vector /= 2;
  call.vector = vector;
  call.modes = lies_in_vectors(call, 0, vector, inner) ? "c" : "s";
  for (size_t k = 1; k < count; ++k) {
    const bool moves = std::any_of(call.reduced.begin(), call.reduced.end(),
                                   [&](const Axis& axis) { return axis.strides[k] != 0; });
    const bool splat = vector > 1 && inner.strides[k] == 0;
    call.modes.push_back(moves ? (splat ? 'b' : 'c') : (splat ? 'B' : 'C'));
  }
}

// How the elements of an output are cut into parts: at most `wanted`, whose threads all have
// something to do, and the same number of elements each in multiples of `unroll`.
struct Parts {
  Parts(int64_t elements, int64_t lanes, int64_t unroll, int64_t wanted) {
    const int64_t possible = std::max<int64_t>(elements / (lanes * kLeastPerThread), 1);
    const int64_t least = ceil_div(elements, std::clamp<int64_t>(wanted, 1, possible));
    const int64_t step = lanes * unroll;
    size = std::max<int64_t>(ceil_div(least, step) * step, 1);
    count = std::max<int64_t>(ceil_div(elements, size), 1);
  }
  int64_t size, count;
};

// Do the words of two operands begin at the same elements of all rows?
bool share_words(const ReductionCall& call, size_t a, size_t b, int64_t vector) {
  const auto element = [&](size_t k, int64_t place) {
    return place / call.operands[k]->element_size();
  };
  const auto first = [&](size_t k) {
    return element(k, reinterpret_cast<intptr_t>(call.operands[k]->data_ptr()));
  };
  int64_t apart = first(a) - first(b);
  for (const Axis& axis : call.kept) {
    apart |= element(a, axis.strides[a]) - element(b, axis.strides[b]);
  }
  return apart % vector == 0;
}

// How the lanes of a row read it: in words, if there are such. Without modes, element by element.
void choose_words(ReductionCall& call) {
  const size_t count = call.operands.size();
  if (call.reduced.empty()) return;
  const Axis& inner = call.reduced[0];
  const int64_t vector = widest_vector(call, inner);
  if (vector == 1) return;
  bool whole = inner.size % vector == 0;
  for (size_t k = 1; k < count; ++k) whole = whole && lies_in_vectors(call, k, vector, inner);
  if (whole) {
    call.word = vector;
    call.modes = std::string(count, 'c');
    return;
  }
  if (call.reduced.size() > 1 || inner.size < kLeastWords * vector) return;
  // Where words begin is said by the first input that has elements of its own in each row, else by
  // the first one that can be read in words at all.
  size_t first = 0;
  for (size_t k = count - 1; k > 0; --k) {
    const bool moves = std::any_of(call.kept.begin(), call.kept.end(),
                                   [&](const Axis& axis) { return axis.strides[k] != 0; });
    if (are_neighbours(call, k, inner) && (moves || first == 0)) first = k;
  }
  if (first == 0) return;
  call.word = vector;
  call.modes = "s";
  for (size_t k = 1; k < count; ++k) {
    const bool in_words = are_neighbours(call, k, inner) && share_words(call, k, first, vector);
    call.modes.push_back(in_words ? 'c' : inner.strides[k] == 0 ? 'b' : 's');
  }
}

// `more`: see plan_words. Threads of a block and blocks of the first pass, blocks of the second.
void launch_passes(const ReductionCode& code, const ReductionCall& call, const Parts& parts,
                   std::initializer_list<int64_t> more, int64_t threads, int64_t blocks,
                   int64_t finish_blocks) {
  const Tensor partials = scratch(call, code, parts.count);
  Words words = plan_words(call, parts.size, parts.count, partials, more);
  const Launcher launch(call.out().device(), words);
  launch(code.partial, std::min<int64_t>(blocks, INT32_MAX), parts.count, threads);
  if (parts.count > 1) {
    launch(code.finish, std::min<int64_t>(finish_blocks, INT32_MAX), 1, kThreads);
  }
}

// Outputs whose elements lie together.
void run_rows(const ReductionCode& code, const ReductionCall& call) {
  const int64_t outputs = call.outputs, elements = call.elements;
  const int64_t words_of_row = ceil_div(elements, call.word);
  const int64_t of_lane = call.modes.empty() ? kElementsOfLane : kWordsOfLane;
  int64_t lanes = power_of_two_up_to(ceil_div(words_of_row, of_lane));
  while (2 * lanes <= words_of_row && outputs * lanes < kRowThreads) lanes *= 2;
  lanes = std::min(lanes, kThreads);
  const int64_t blocks = ceil_div(outputs, kThreads / lanes);
  const bool is_small = elements <= kOnePart && words_of_row <= kThreads * kWordsOfOnePart;
  const Parts parts(elements, lanes, 1, is_small ? 1 : kBlocks / blocks);
  launch_passes(code, call, parts, {lanes}, kThreads, blocks, outputs);
}

// Outputs that lie together as their elements do. A block's threads are a matrix: `across` of them
// side by side along a row's memory, `lanes` one below the other.
void run_columns(const ReductionCode& code, const ReductionCall& call) {
  const int64_t outputs = call.outputs, elements = call.elements;
  const int64_t words_of_row = outputs / call.vector;
  const bool is_small =
      words_of_row * elements <= kOnePart && elements <= kThreads * kWordsOfOnePart;
  // Several lanes where there are elements for them: the wider blocks are, the more parts it takes
  // to make enough of them, and the more the second pass has to read. Of one part as many as there
  // are elements for.
  const int64_t least_lanes = power_of_two_up_to(
      std::clamp<int64_t>(elements / kLeastPerThread, 1, is_small ? kThreads : 8));
  // A row that is not much wider stays whole: its memory is read as it lies.
  const int64_t most_across = kThreads / least_lanes;
  const bool is_narrow = !is_small && least_lanes > 1 && words_of_row <= 2 * most_across;
  const int64_t groups = is_narrow ? 1 : ceil_div(words_of_row, most_across);
  const int64_t across = ceil_div(words_of_row, groups);
  const int64_t lanes = std::clamp<int64_t>(elements / 4, 1, kThreads / across);
  const int64_t blocks = ceil_div(words_of_row, across);
  const int64_t at_once =
      kColumnBlocks * gpu_code().count_multiprocessors(call.out().device().index());
  const Parts parts(elements, lanes, kColumnUnroll, is_small ? 1 : at_once / blocks);
  // Of the second pass: some 8 parts a thread, if that keeps a block's threads busy.
  const int64_t finish_lanes =
      std::min(kThreads, power_of_two_up_to(std::max<int64_t>(parts.count / 8, 1)));
  const int64_t half = lanes > 1 ? power_of_two_up_to(lanes - 1) : 0;
  launch_passes(code, call, parts, {across, lanes, half, finish_lanes},
                round_up(across * lanes, 32), blocks, ceil_div(outputs, kThreads / finish_lanes));
}

void run_cuda(Reduction& kernel, ReductionCall& call) {
  // The threads of one output are neighbours where its elements are, else the outputs are.
  const bool columns = are_columns(call);
  (columns ? choose_vector : choose_words)(call);
  const ReductionCode code = find_code(kernel, call);
  (columns ? run_columns : run_rows)(code, call);
}

}  // namespace

std::vector<bool> reduced_axes(const Reduction& kernel, int64_t rank,
                               at::OptionalIntArrayRef dims) {
  const int64_t axes = std::max<int64_t>(rank, 1);
  std::vector<bool> is_reduced(axes, !dims);
  if (!dims) return is_reduced;
  for (const int64_t dim : *dims) {
    TORCH_CHECK_INDEX(dim >= -axes && dim < axes, kernel.name, ": dim must be between ", -axes,
                      " and ", axes - 1, ", but it is ", dim, ".");
    const int64_t axis = dim < 0 ? dim + axes : dim;
    TORCH_CHECK_VALUE(!is_reduced[axis], kernel.name, ": dim ", axis, " is named twice.");
    is_reduced[axis] = true;
  }
  return is_reduced;
}

Tensor reduce(Reduction& kernel, const Arguments& arguments, at::OptionalIntArrayRef dims,
              bool keepdim, at::TensorList outs) {
  const c10::Device device = device_of(kernel, arguments, outs);
  const c10::OptionalDeviceGuard guard(device);
  const Types types = resolve_types(kernel, arguments, outs);
  if (needs_rounding(kernel, arguments)) {
    return reduce(kernel, RoundedArguments(kernel, arguments).arguments, dims, keepdim, outs);
  }
  check_shapes(kernel, arguments);

  at::DimVector shape;
  bool any = false;
  for (size_t k = 0; k < arguments.size(); ++k) {
    if (!arguments[k].tensor || kernel.in[k].raw) continue;
    any = true;
    shape = at::infer_size_dimvector(shape, arguments[k].tensor->sizes());
  }
  TORCH_CHECK_TYPE(any, kernel.name, ": a reduction takes a tensor at least that is not raw.");
  const auto rank = static_cast<int64_t>(shape.size());
  const std::vector<bool> is_reduced = reduced_axes(kernel, rank, dims);
  at::DimVector kept_shape;
  for (int64_t d = 0; d < rank; ++d) {
    if (!is_reduced[d]) {
      kept_shape.push_back(shape[d]);
    } else if (keepdim) {
      kept_shape.push_back(1);
    }
  }
  Tensor result;
  if (!outs.empty()) {
    const Tensor& out = outs[0];
    TORCH_CHECK_VALUE(out.sizes() == at::IntArrayRef(kept_shape), kernel.name, ": out has shape ",
                      out.sizes(), ", but the result has ", at::IntArrayRef(kept_shape),
                      ". An output is never resized.");
    at::assert_no_internal_overlap(out);
    for (const Argument& argument : arguments) {
      if (argument.tensor) at::assert_no_overlap(out, *argument.tensor);
    }
    result = out;
  } else {
    result = new_output(kept_shape, at::TensorOptions().dtype(types.out[0]).device(device));
  }

  ReductionCall call;
  call.operands.push_back(&result);
  call.add_output(result.scalar_type(), types.out[0]);
  call.views.reserve(arguments.size());
  call.add_inputs(kernel, arguments, types, {}, [&](size_t, const Tensor& tensor) {
    call.views.push_back(tensor.sizes() == shape ? tensor : tensor.expand(shape));
    call.operands.push_back(&call.views.back());
  });
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
  call.outputs = product(call.kept);
  call.elements = product(call.reduced);
  TORCH_CHECK_VALUE(call.elements > 0 || kernel.has_identity || call.outputs == 0, kernel.name,
                    ": there is no element to reduce (shape ", at::IntArrayRef(shape),
                    "), and the kernel has no identity.");
  const auto by_stride = [](const Axis& a, const Axis& b) {
    return a.strides.size() > 1 && a.strides[1] < b.strides[1];
  };
  std::stable_sort(call.reduced.begin(), call.reduced.end(), by_stride);
  std::stable_sort(call.kept.begin(), call.kept.end(), by_stride);
  if (call.elements == 0) call.reduced.clear();
  coalesce(call.kept);
  coalesce(call.reduced);
  if (call.outputs > 0) (device.is_cuda() ? run_cuda : run_cpu)(kernel, call);
  return result;
}

}  // namespace torch_ops::jit
