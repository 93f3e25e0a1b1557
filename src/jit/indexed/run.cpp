// A call of an indexed kernel: its outputs are sorted into passes over the entries, and each pass
// is laid out and launched.
#include <ATen/ExpandUtils.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/where.h>
#include <c10/core/DeviceGuard.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <array>

#include "common/gather_family/indexing.h"
#include "common/host/ceil_div.h"
#include "common/torch/new_output.h"
#include "jit/indexed/indexed.h"
#include "jit/library.h"
#include "jit/plan.h"
#include "jit/python_arguments.h"
#ifdef TORCH_OPS_WITH_CUDA
#include "common/gather_family/index_errors.h"
#endif

namespace torch_ops::jit::indexed {
namespace {

namespace py = pybind11;

// Rows that belong to an entry and that no index names, as headers/indexed/operands.h has them.
constexpr int kByEntry = -1, kByRow = -2, kByNone = -3, kInBatch = -4, kByBatch = -5;

constexpr int64_t kGrain = 32768;   // values below which no second task is worth it
constexpr int64_t kHostVector = 16;
constexpr int64_t kHostMost = 2048;  // entries of a row on the CPU, beyond which it is cut
constexpr int64_t kVectorBytes = 16;
constexpr int64_t kMostElements = 8;  // of a vector
constexpr int64_t kThreads = 256;     // a block; headers/indexed/cuda.h has it too
constexpr int64_t kWarp = 32;
// Entries of a row on CUDA beyond which it is cut, from few entries in all to many: parts enough to
// fill a GPU, and no more than a warp joins quickly.
constexpr int64_t kLeastMost = 256, kMostMost = 1024, kManyParts = 8192;
constexpr int64_t kPartialBytes = 8;  // an entry: what parts of long rows may take at most
// Workers of a row that share its entries, times its words.
constexpr int64_t kEntryLanes = 16;

int64_t power_of_two_up_to(int64_t value) {
  int64_t power = 1;
  while (power * 2 <= value) power *= 2;
  return power;
}
int64_t power_of_two_from(int64_t value) {
  int64_t power = 1;
  while (power < value) power *= 2;
  return power;
}

// ---- Inputs -------------------------------------------------------------------------------------

// An input that a pass walks: where its rows are, and how the features lie in them, in bytes.
struct Operand {
  Tensor tensor;  // what keeps the memory
  char* data = nullptr;
  int64_t item = 1;
  int by = kByNone;  // an index, or which row it is otherwise
  int64_t row_stride = 0;
  c10::SmallVector<int64_t, 4> strides;
};

struct Problem {
  int64_t batch = 1, entries = 0;  // of a batch
  c10::SmallVector<int64_t, 4> features;
  std::vector<int64_t> sizes;  // rows that an index counts in a batch
  c10::SmallVector<Operand, 8> operands;
  c10::SmallVector<ScalarType, 8> stored, computed;  // outputs, then inputs
  c10::SmallVector<int8_t, 4> raw_ranks;
  Words tail;  // numbers and raw parameters
  std::vector<Tensor> outputs, winners;
  std::vector<Tensor> indices;  // contiguous

  int64_t positions() const { return batch * entries; }
};

Operand operand_of(const Problem& problem, const Frame& frame, const Tensor& given, int index) {
  Operand operand;
  operand.tensor = given.resolve_conj().resolve_neg();
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
    bool any = false, all = true;  // batch axes that it has
    for (int64_t d = 0; d < batch_dims; ++d) {
      const bool own = d >= shift && tensor.size(d - shift) != 1;
      any |= own;
      all &= own || frame.batch[d].maybe_as_int() == 1;
    }
    if (any && !all) {  // some of several: a copy for all
      std::vector<int64_t> sizes;
      for (const auto& size : frame.batch) sizes.push_back(size.expect_int());
      for (int64_t d = batch_dims - shift; d < tensor.dim(); ++d) sizes.push_back(tensor.size(d));
      tensor = tensor.expand(sizes).contiguous();
    }
    operand.by = any ? (has_entries ? kByEntry : kByBatch)
                     : (!has_entries ? kByNone : problem.batch == 1 ? kByEntry : kInBatch);
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

// ---- Orders: the entries sorted by an index -----------------------------------------------------

[[noreturn]] void raise_bad_entry(const Indexed& kernel, const Problem& problem, size_t index,
                                  int64_t position) {
  const Tensor& tensor = problem.indices[index];
  const int64_t value = tensor.view({-1})[position].item().toLong();
  const std::string entry = c10::str(
      kernel.indices[index], at::IntArrayRef(indexing::unravel(tensor.sizes(), position)));
  TORCH_CHECK_INDEX(false, indexing::out_of_range_text(kernel.name.c_str(), entry, value,
                                                       problem.sizes[index]));
}

template <class Id, class Entry>
void sort_host(const Indexed& kernel, const Problem& problem, size_t index, const Entry* entries,
               Id* order, Id* offsets) {
  const int64_t size = problem.sizes[index], rows = problem.batch * size;
  std::fill_n(offsets, rows + 1, Id{0});
  for (int64_t b = 0, at = 0; b < problem.batch; ++b) {
    Id* const counts = offsets + b * size + 1;
    for (int64_t e = 0; e < problem.entries; ++e, ++at) {
      const auto row = static_cast<int64_t>(entries[at]);
      if (row < 0 || row >= size) raise_bad_entry(kernel, problem, index, at);
      ++counts[row];
    }
  }
  for (int64_t row = 0; row < rows; ++row) offsets[row + 1] += offsets[row];
  const std::unique_ptr<Id[]> next(new Id[rows]);
  std::copy_n(offsets, rows, next.get());
  for (int64_t b = 0, at = 0; b < problem.batch; ++b) {
    Id* const places = next.get() + b * size;
    for (int64_t e = 0; e < problem.entries; ++e, ++at) {
      order[places[entries[at]]++] = static_cast<Id>(at);
    }
  }
}

Planned sorted_host(const Indexed& kernel, const Problem& problem, size_t index) {
  const int64_t rows = problem.batch * problem.sizes[index];
  const bool narrow = problem.positions() <= INT32_MAX && rows < INT32_MAX;
  const auto options = problem.indices[index].options().dtype(narrow ? at::kInt : at::kLong);
  Planned made;
  made.order = new_output({problem.positions()}, options);
  made.offsets = new_output({rows + 1}, options);
  const auto sort = [&](const auto* entries) {
    if (narrow) {
      sort_host(kernel, problem, index, entries, made.order.mutable_data_ptr<int32_t>(),
                made.offsets.mutable_data_ptr<int32_t>());
    } else {
      sort_host(kernel, problem, index, entries, made.order.mutable_data_ptr<int64_t>(),
                made.offsets.mutable_data_ptr<int64_t>());
    }
  };
  const Tensor& entries = problem.indices[index];
  entries.scalar_type() == at::kInt ? sort(entries.const_data_ptr<int32_t>())
                                    : sort(entries.const_data_ptr<int64_t>());
  return made;
}

// Nothing waits for the device: entries out of range come before or behind all rows, where no row's
// offsets reach. A pass of its own tells of them.
Planned sorted_cuda(const Problem& problem, size_t index) {
  const int64_t size = problem.sizes[index], rows = problem.batch * size;
  Tensor keys = problem.indices[index].reshape({problem.batch, problem.entries});
  if (problem.batch > 1) {
    const Tensor first = at::arange(problem.batch, keys.options().dtype(at::kLong)) * size;
    const Tensor is_row = keys.ge(0).logical_and(keys.lt(size));
    keys = at::where(is_row, keys + first.unsqueeze(1), at::Scalar(-1));
  }
  const auto [sorted, order] =
      at::sort(keys.flatten(), std::optional<bool>(/*stable=*/true), /*dim=*/0);
  Planned made;
  made.order = order;
  made.offsets = at::searchsorted(sorted, at::arange(rows + 1, sorted.options()));
  return made;
}

// ---- Passes -------------------------------------------------------------------------------------

// What the outputs of a pass have in common: what their entries are reduced to.
struct Target {
  char walk = 'e';     // r, rows of an index; u, all entries, or those of a batch; e, none
  int index = -1;      // of r
  char uniform = 'a';  // of u: a(ll), b(atch), or e, the entries of all batches that have a number
  std::vector<bool> is_summed;

  bool operator==(const Target& other) const {
    return walk == other.walk && index == other.index && uniform == other.uniform &&
           is_summed == other.is_summed;
  }
};

struct Axis {
  int64_t size;
  c10::SmallVector<int64_t, 8> strides;  // of the operands
};
using Axes = c10::SmallVector<Axis, 4>;

// Joins neighbours that one stride walks for all operands; the innermost axis stands first.
void add_axis(Axes& axes, int64_t size, const Problem& problem, size_t feature) {
  if (size == 1) return;
  Axis axis{size, {}};
  for (const Operand& operand : problem.operands) axis.strides.push_back(operand.strides[feature]);
  if (!axes.empty()) {
    Axis& last = axes.back();
    bool fits = true;
    for (size_t k = 0; k < axis.strides.size(); ++k) {
      fits &= axis.strides[k] == last.strides[k] * last.size;
    }
    if (fits) {
      last.size *= size;
      return;
    }
  }
  axes.push_back(std::move(axis));
}

int64_t product(const Axes& axes) {
  int64_t result = 1;
  for (const Axis& axis : axes) result *= axis.size;
  return result;
}

class Pass {
 public:
  Pass(Indexed& kernel, const Problem& problem, const Target& target,
       const std::vector<size_t>& outputs, const Planned& planned, int64_t longest,
       c10::Device device)
      : kernel_(kernel),
        problem_(problem),
        target_(target),
        planned_(planned),
        longest_(longest),
        device_(device) {
    kinds_.assign(kernel.out.size(), '-');
    for (const size_t k : outputs) {
      kinds_[k] = static_cast<char>(target.walk == 'e' ? Reduce::kNone : kernel.out_roles[k].reduce);
      // A gradient by what is the same for all entries.
      if (target.walk == 'u') kinds_[k] = static_cast<char>(Reduce::kSum);
      if (target.walk == 'r' && kernel.out_roles[k].index < 0) {
        kinds_[k] = static_cast<char>(Reduce::kNone);
      }
    }
    for (int64_t d = static_cast<int64_t>(problem.features.size()) - 1; d >= 0; --d) {
      const bool summed = target.is_summed[d];
      if (kept_.empty() && summed_.empty() && problem.features[d] != 1) sums_inner_ = summed;
      add_axis(summed ? summed_ : kept_, problem.features[d], problem, d);
    }
    find_rows();
  }

  void run() {
    device_.is_cuda() ? run_cuda() : run_cpu();
  }
  // Only looks at the entries of an index.
  void check(size_t index) {
    std::fill(by_.begin(), by_.end(), kByNone);
    std::fill(sources_.begin(), sources_.end(), '-');
    sources_[index] = raw_source(index);
    run();
  }

 private:
  char raw_source(size_t index) const {
    return problem_.indices[index].scalar_type() == at::kInt ? 'i' : 'l';
  }

  // Which rows the operands have, and where the indices that name them are read.
  void find_rows() {
    sources_.assign(kernel_.indices.size(), '-');
    for (const Operand& operand : problem_.operands) {
      int by = operand.by;
      if (target_.walk == 'r' && by == target_.index) {
        by = kByRow;
      } else if (by >= 0) {
        const bool in_order = planned_.is_known() && !planned_.rows.empty() &&
                              planned_.rows[by].defined() && planned_.rows[by].numel() > 0;
        sources_[by] = in_order && target_.walk != 'u' ? 'p' : raw_source(by);
      }
      by_.push_back(by);
    }
  }

  bool is_ordered() const { return target_.walk != 'u' && planned_.is_known(); }
  bool is_wide() const { return is_ordered() && planned_.order.scalar_type() == at::kLong; }
  bool is_batched() const {
    return problem_.batch > 1 || std::find(by_.begin(), by_.end(), kInBatch) != by_.end();
  }

  void choose_vector() {
    const Axes& inner = sums_inner_ ? summed_ : kept_;
    modes_.assign(problem_.operands.size(), 's');
    vector_ = 1;
    is_full_ = true;
    if (inner.empty()) return;
    const Axis& axis = inner[0];
    for (size_t k = 0; k < problem_.operands.size(); ++k) {
      const int64_t stride = axis.strides[k];
      modes_[k] = stride == 0 ? 'b' : stride == problem_.operands[k].item ? 'c' : 's';
    }
    if (device_.is_cpu()) {
      vector_ = kHostVector;
      is_full_ = axis.size % kHostVector == 0;
      // Vectors lie within the innermost axis.
      if (!is_full_ && inner.size() > 1) vector_ = 1, is_full_ = true;
    } else {
      vector_ = vector_on_cuda(axis);
    }
    if (vector_ == 1) modes_.assign(problem_.operands.size(), 's');
  }

  int64_t vector_on_cuda(const Axis& axis) const {
    if (modes_.find('s') != std::string::npos) return 1;
    int64_t smallest = kVectorBytes;
    for (size_t k = 0; k < modes_.size(); ++k) {
      if (modes_[k] == 'c') smallest = std::min(smallest, problem_.operands[k].item);
    }
    for (size_t k = 0; k < kinds_.size() && !sums_inner_; ++k) {
      if (kinds_[k] != '-') smallest = std::min(smallest, problem_.outputs[k].element_size());
    }
    int64_t vector = std::min(kVectorBytes / smallest, kMostElements);
    while (vector > 1 && !fits(axis, vector)) vector /= 2;
    return vector;
  }
  bool fits(const Axis& axis, int64_t vector) const {
    if (axis.size % vector != 0) return false;
    for (size_t k = 0; k < modes_.size(); ++k) {
      if (modes_[k] != 'c') continue;
      const Operand& operand = problem_.operands[k];
      int64_t places = reinterpret_cast<intptr_t>(operand.data) | operand.row_stride;
      for (const Axes* axes : {&kept_, &summed_}) {
        for (const Axis& other : *axes) {
          if (&other != &axis) places |= other.strides[k];
        }
      }
      if (places % std::min(kVectorBytes, vector * operand.item) != 0) return false;
    }
    return true;
  }

  PassCode find_code() {
    std::string key(1, static_cast<char>(device_.is_cuda() ? device_.index() + 1 : 0));
    for (const ScalarType type : problem_.stored) key.push_back(static_cast<char>(type));
    for (const ScalarType type : problem_.computed) key.push_back(static_cast<char>(type));
    for (const int8_t rank : problem_.raw_ranks) key.push_back(rank);
    for (const int by : by_) key.push_back(static_cast<char>(by));
    const int flags = is_wide() | is_ordered() << 1 | is_batched() << 2 | is_full_ << 3 |
                      sums_inner_ << 4;
    for (const int64_t number : {int64_t{flags}, vector_, static_cast<int64_t>(kept_.size()),
                                 static_cast<int64_t>(summed_.size())}) {
      key.push_back(static_cast<char>(number));
    }
    key += kinds_ + sources_ + modes_ + target_.walk;
    return kernel_.codes.get(key, [&] {
      const py::gil_scoped_acquire gil;
      py::list by;
      for (const int row : by_) by.append(row);
      const py::object device =
          device_.is_cuda() ? py::object(py::int_(int{device_.index()})) : py::object(py::none());
      const py::tuple made = kernel_.compile(
          device, names_of(problem_.stored), names_of(problem_.computed),
          ranks_of(problem_.raw_ranks), modes_, by, kinds_, sources_,
          std::string(1, target_.walk), is_wide(), is_ordered(), is_batched(), kept_.size(),
          summed_.size(), vector_, is_full_, sums_inner_);
      return PassCode{reinterpret_cast<const void*>(made[0].cast<intptr_t>()),
                      reinterpret_cast<const void*>(made[1].cast<intptr_t>()),
                      made[2].cast<int64_t>(), made[3].cast<int64_t>()};
    });
  }

  // ---- the plan

  void measure(const PassCode& code) {
    positions_ = problem_.positions();
    const int64_t kept = product(kept_);
    words_ = sums_inner_ ? kept : ceil_div(kept, vector_);
    if (target_.walk == 'r') {
      rows_ = problem_.batch * problem_.sizes[target_.index];
    } else if (target_.walk == 'u') {
      const int64_t batch = problem_.batch, entries = problem_.entries;
      rows_ = target_.uniform == 'a' ? 1 : target_.uniform == 'b' ? batch : entries;
      row_length_ = rows_ == 0 ? 0 : positions_ / rows_;
      row_step_ = target_.uniform == 'b' ? entries : 1;
      entry_step_ = target_.uniform == 'e' ? entries : 1;
      longest_ = row_length_;
    }
    most_ = device_.is_cpu() ? kHostMost
                             : std::clamp(power_of_two_from(positions_ / kManyParts), kLeastMost,
                                          kMostMost);
    most_ = std::max(most_, power_of_two_from(2 * words_ * code.partial_bytes / kPartialBytes));
    const bool has_long = target_.walk != 'e' && positions_ > most_ &&
                          (longest_ < 0 || longest_ > most_);
    slots_ = has_long ? 2 * ceil_div(positions_, most_) : 0;
    items_ = target_.walk == 'e' ? ceil_div(positions_, code.unroll) : slots_ + rows_;
  }

  // In the order in which torch_ops/jit/generation/indexed.py declares them.
  Words plan_words(const Tensor& partials, const int64_t* bad) {
    Words words;
    for (const int64_t number : {rows_, positions_, problem_.entries, items_, slots_, most_, words_,
                                 lanes_, row_length_, row_step_, entry_step_, product(kept_),
                                 product(summed_)}) {
      words.put(number);
    }
    words.put(is_ordered() ? planned_.order.const_data_ptr() : nullptr);
    words.put(target_.walk == 'r' ? planned_.offsets.const_data_ptr() : nullptr);
    words.put(partials.defined() ? partials.const_data_ptr() : nullptr);
    words.put(static_cast<const void*>(bad));
    for (size_t k = 0; k < sources_.size(); ++k) {
      words.put(sources_[k] == '-'   ? nullptr
                : sources_[k] == 'p' ? planned_.rows[k].const_data_ptr()
                                     : problem_.indices[k].const_data_ptr());
    }
    for (size_t k = 0; k < sources_.size(); ++k) words.put(problem_.sizes[k]);
    for (size_t k = 0; k < kinds_.size(); ++k) {
      words.put(kinds_[k] == '-' ? nullptr : problem_.outputs[k].mutable_data_ptr());
    }
    for (size_t k = 0; k < kinds_.size(); ++k) {
      const bool has = kinds_[k] != '-' && problem_.winners[k].defined();
      words.put(has ? problem_.winners[k].mutable_data_ptr() : nullptr);
    }
    for (const Operand& operand : problem_.operands) words.put(operand.data);
    for (const Operand& operand : problem_.operands) words.put(operand.row_stride);
    // No array is empty in C++.
    for (int k = 0; problem_.operands.empty() && k < 2; ++k) words.put(int64_t{0});
    for (const Axes* axes : {&kept_, &summed_}) {
      const size_t strides = std::max<size_t>(problem_.operands.size(), 1);
      for (size_t w = 0; axes->empty() && w < 1 + strides; ++w) words.put(int64_t{w == 0});
      for (const Axis& axis : *axes) {
        words.put(axis.size);
        for (const int64_t stride : axis.strides) words.put(stride);
        if (axis.strides.empty()) words.put(int64_t{0});
      }
    }
    Words tail = problem_.tail;
    for (size_t w = 0; w < tail.size(); ++w) words.put(tail[w]);
    return words;
  }

  Tensor scratch(const PassCode& code) const {
    if (slots_ == 0) return {};
    const auto options = at::TensorOptions().dtype(at::kByte).device(device_);
    return new_output({slots_ * words_ * code.partial_bytes}, options);
  }

  // ---- CPU

  using HostFunction = void (*)(const int64_t* plan, int64_t what, int64_t begin, int64_t end);
  enum What : int64_t { kReduce, kJoin, kEntries };

  void run_cpu() {
    choose_vector();
    const PassCode code = find_code();
    const auto function = reinterpret_cast<HostFunction>(const_cast<void*>(code.run));
    measure(code);
    const Tensor partials = scratch(code);
    std::vector<int64_t> bad(sources_.size(), INT64_MAX);
    Words words = plan_words(partials, bad.data());
    const auto call = [&](What what, int64_t begin, int64_t end) {
      if (begin < end) function(words.data(), what, begin, end);
    };
    const int64_t values = std::max<int64_t>(product(kept_) * product(summed_), 1);
    if (target_.walk == 'e') {
      at::parallel_for(0, positions_, std::max<int64_t>(kGrain / values, 32),
                       [&](int64_t begin, int64_t end) { call(kEntries, begin, end); });
    } else {
      at::parallel_for(0, slots_, 1, [&](int64_t begin, int64_t end) { call(kReduce, begin, end); });
      reduce_rows(values, call);
      at::parallel_for(0, slots_ / 2, 16,
                       [&](int64_t begin, int64_t end) { call(kJoin, begin, end); });
    }
    for (size_t k = 0; k < bad.size(); ++k) {
      if (bad[k] != INT64_MAX) raise_bad_entry(kernel_, problem_, k, bad[k]);
    }
  }

  // Rows in ranges of about as many entries each.
  template <class Run>
  void reduce_rows(int64_t values, const Run& call) {
    const int64_t work = positions_ + rows_;
    const int64_t pieces =
        std::clamp<int64_t>(work * values / kGrain, 1, 4 * at::get_num_threads());
    const auto first_of = [&](int64_t piece) {
      if (piece == pieces) return rows_;
      const int64_t wanted = work / pieces * piece;
      int64_t low = 0, high = rows_;
      while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        (offset_of(middle) + middle < wanted ? low : high) = middle + (offset_of(middle) + middle < wanted);
      }
      return low;
    };
    at::parallel_for(0, pieces, 1, [&](int64_t begin, int64_t end) {
      call(kReduce, slots_ + first_of(begin), slots_ + first_of(end));
    });
  }
  int64_t offset_of(int64_t row) const {
    if (target_.walk == 'u') return row * row_length_;
    const void* const offsets = planned_.offsets.const_data_ptr();
    return is_wide() ? static_cast<const int64_t*>(offsets)[row]
                     : static_cast<const int32_t*>(offsets)[row];
  }

  // ---- CUDA

  void run_cuda() {
#ifdef TORCH_OPS_WITH_CUDA
    choose_vector();
    const PassCode code = find_code();
    measure(code);
    lanes_ = count_lanes();
    const Tensor partials = scratch(code);
    Words words = plan_words(partials, nullptr);
    IndexErrorCall errors(/*wait=*/false);
    put_sites(words, errors);
    void* parameters[] = {words.data()};
    const c10::DeviceIndex device = device_.index();
    void* const stream = current_stream(device);
    const auto launch = [&](const void* function, int64_t blocks, int64_t blocks_y) {
      TORCH_CHECK(blocks <= INT32_MAX, kernel_.name, ": a call of ", positions_,
                  " entries of ", product(kept_) * product(summed_),
                  " values is more than one launch has room for.");
      const LaunchShape shape{{static_cast<uint32_t>(blocks), static_cast<uint32_t>(blocks_y), 1},
                              {static_cast<uint32_t>(kThreads), 1, 1}};
      launch_kernel(function, device, shape, stream, parameters);
    };
    if (items_ > 0) launch(code.run, ceil_div(items_ * words_ * lanes_, kThreads), 1);
    if (slots_ > 0) {
      launch(code.join, ceil_div(slots_ / 2, kThreads), std::min<int64_t>(words_, 64));
    }
    errors.end();
#endif
  }

#ifdef TORCH_OPS_WITH_CUDA
  void put_sites(Words& words, IndexErrorCall& errors) const {
    errors.record();
    static_assert(sizeof(IndexErrorSite) % sizeof(int64_t) == 0);
    for (size_t k = 0; k < sources_.size(); ++k) {
      IndexErrorSite site{};
      if (sources_[k] == 'i' || sources_[k] == 'l') {
        site = errors.site;
        site.op = kernel_.error_names[k]->c_str();
        site.axis_size = problem_.sizes[k];
        site.outer = 1;
        site.entries = problem_.entries;
        site.rank = problem_.indices[k].dim();
        if (site.rank <= kMaxNamedRank) {
          std::copy_n(problem_.indices[k].sizes().begin(), site.rank, site.sizes);
        }
      }
      std::array<int64_t, sizeof(site) / sizeof(int64_t)> parts{};
      std::memcpy(parts.data(), &site, sizeof(site));
      for (const int64_t part : parts) words.put(part);
    }
  }
#endif

  // Lanes share the summed features, or the entries of a row of few words.
  int64_t count_lanes() const {
    if (sums_inner_) {
      return std::min(kWarp, power_of_two_from(ceil_div(product(summed_), vector_)));
    }
    if (target_.walk == 'e' || words_ >= kEntryLanes) return 1;
    const int64_t of_row = positions_ / std::max<int64_t>(rows_, 1);
    return std::clamp<int64_t>(power_of_two_up_to(std::max<int64_t>(of_row / 2, 1)), 1,
                               power_of_two_up_to(kEntryLanes / std::max<int64_t>(words_, 1)));
  }

  Indexed& kernel_;
  const Problem& problem_;
  const Target& target_;
  const Planned& planned_;
  int64_t longest_;
  c10::Device device_;
  std::string kinds_, sources_, modes_;
  c10::SmallVector<int, 8> by_;
  Axes kept_, summed_;
  bool sums_inner_ = false, is_full_ = true;
  int64_t vector_ = 1, rows_ = 0, positions_ = 0, words_ = 1, lanes_ = 1, items_ = 0, slots_ = 0;
  int64_t most_ = 0, row_length_ = 0, row_step_ = 1, entry_step_ = 1;
};

// ---- The call -----------------------------------------------------------------------------------

void check_reductions(const Indexed& kernel, const Types& types) {
  for (size_t k = 0; k < kernel.out.size(); ++k) {
    const Role& role = kernel.out_roles[k];
    const bool sums = role.reduce == Reduce::kSum || role.reduce == Reduce::kMean ||
                      !role.features.empty();
    TORCH_CHECK_TYPE(!sums || types.out[k] != at::kBool, kernel.name, ": output ",
                     kernel.out[k].name,
                     " is bool, which has no sum. Declare an integer, or reduce it by amax.");
    TORCH_CHECK_TYPE(!role.is_best() || !c10::isComplexType(types.out[k]), kernel.name,
                     ": output ", kernel.out[k].name, " is complex, so it has no largest value.");
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
  bool any = false, all = true;
  for (int64_t d = 0; d < frame.batch_dims; ++d) {
    const bool own = d >= shift && like.size(d - shift) != 1;
    any |= own;
    all &= own || frame.batch[d].maybe_as_int() == 1;
  }
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

std::vector<Tensor> allocate(const Indexed& kernel, const Arguments& arguments, const Frame& frame,
                             c10::Device device, bool winners, bool is_meta) {
  const Types types = resolve_types(kernel, arguments, {});
  check_reductions(kernel, types);
  std::vector<Tensor> outputs;
  const auto make = [&](const c10::SymDimVector& sizes, ScalarType type) {
    const auto options = at::TensorOptions().dtype(type).device(device);
    outputs.push_back(is_meta ? at::empty_symint(sizes, options)
                              : new_output(C10_AS_INTARRAYREF_SLOW(sizes), options));
  };
  for (size_t k = 0; k < kernel.out.size(); ++k) make(frame.outputs[k], types.out[k]);
  for (size_t k = 0; winners && k < kernel.out.size(); ++k) {
    if (kernel.out_roles[k].is_best()) make(frame.outputs[k], at::kLong);
  }
  return outputs;
}

std::vector<Tensor> run(Indexed& kernel, const Arguments& arguments, const Call& call,
                        bool winners) {
  if (needs_rounding(kernel, arguments)) {
    return run(kernel, RoundedArguments(kernel, arguments).arguments, call, winners);
  }
  const Frame frame = frame_of(kernel, arguments, call);
  const c10::Device device = call.indices[0].device();
  const auto check_device = [&](const Tensor& tensor, const std::string& name) {
    TORCH_CHECK(tensor.device() == device, kernel.name,
                ": tensors and indices must be on one device, but ", name, " is on ",
                tensor.device(), " and ", kernel.indices[0], " is on ", device, ".");
  };
  for (size_t k = 0; k < arguments.size(); ++k) {
    if (!is_number(arguments[k], kernel.in[k])) check_device(*arguments[k].tensor, kernel.in[k].name);
  }
  for (size_t k = 0; k < call.indices.size(); ++k) {
    check_device(call.indices[k], kernel.indices[k]);
  }
  for (const Tensor& part : call.plans) {
    if (part.numel() > 0) check_device(part, "the plan");
  }
  TORCH_CHECK(device.is_cpu() || device.is_cuda(), kernel.name,
              ": tensors must be on the CPU or a CUDA device, but they are on ", device, ".");
  const c10::OptionalDeviceGuard guard(device);
  const Types types = resolve_types(kernel, arguments, {});

  Problem problem;
  for (const c10::SymInt& size : frame.batch) problem.batch *= size.expect_int();
  problem.entries = frame.entries.expect_int();
  for (const c10::SymInt& size : frame.features) problem.features.push_back(size.expect_int());
  for (const c10::SymInt& size : frame.sizes) problem.sizes.push_back(size.expect_int());
  for (size_t k = 0; k < call.indices.size(); ++k) {
    // An index that nothing reads, and nothing is reduced to, has no size.
    TORCH_CHECK_INDEX(problem.sizes[k] != 0 || problem.positions() == 0, kernel.name, ": ",
                      kernel.indices[k], " has ", problem.positions(),
                      " entries, but the axis has size 0: no entry is allowed.");
    problem.indices.push_back(call.indices[k].contiguous());
  }
  std::vector<Tensor> results = allocate(kernel, arguments, frame, device, winners, false);
  problem.outputs.assign(results.begin(), results.begin() + static_cast<int64_t>(kernel.out.size()));
  problem.winners.resize(kernel.out.size());
  for (size_t k = 0, at = kernel.out.size(); winners && k < kernel.out.size(); ++k) {
    if (kernel.out_roles[k].is_best()) problem.winners[k] = results[at++];
  }
  for (size_t k = 0; k < kernel.out.size(); ++k) {
    problem.stored.push_back(types.out[k]);
    problem.computed.push_back(types.out[k]);
  }
  c10::SmallVector<const Tensor*, 4> raw;
  for (size_t k = 0; k < kernel.in.size(); ++k) {
    const Tensor* tensor = arguments[k].tensor;
    problem.computed.push_back(types.in[k]);
    if (kernel.in[k].raw) {
      TORCH_CHECK_TYPE(tensor, kernel.name, ": ", kernel.in[k].name,
                       " is a raw parameter and takes a tensor, not a number.");
      TORCH_CHECK(!tensor->is_conj() && !tensor->is_neg() && tensor->dim() < 100, kernel.name, ": ",
                  kernel.in[k].name, " is a raw array, read as it lies: it must have fewer than "
                  "100 axes and no lazy conjugation or negation.");
      raw.push_back(tensor);
      problem.stored.push_back(tensor->scalar_type());
    } else if (is_number(arguments[k], kernel.in[k])) {
      problem.stored.push_back(ScalarType::Undefined);
      problem.tail.put(tensor ? tensor->item() : arguments[k].number, types.in[k]);
    } else {
      problem.stored.push_back(tensor->scalar_type());
      problem.operands.push_back(
          operand_of(problem, frame, *tensor, kernel.in_roles[k].index));
    }
  }
  for (const Tensor* tensor : raw) {
    const auto rank = static_cast<int8_t>(tensor->dim());
    problem.raw_ranks.push_back(tensor->is_contiguous() ? rank : static_cast<int8_t>(-1 - rank));
    problem.tail.put_raw(*tensor);
  }

  if (std::find(problem.features.begin(), problem.features.end(), 0) != problem.features.end()) {
    for (const Tensor& result : results) result.zero_();  // sums of nothing
    return results;
  }

  // Outputs by what they are reduced to.
  std::vector<std::pair<Target, std::vector<size_t>>> passes;
  std::vector<std::pair<size_t, Tensor>> summed_later;
  for (size_t k = 0; k < kernel.out.size(); ++k) {
    bool needs_sum = false;
    const Target target = target_of(kernel, arguments, frame, problem, k, needs_sum);
    if (needs_sum) {  // over some of several batch axes
      std::vector<int64_t> sizes;
      for (const c10::SymInt& size : frame.batch) sizes.push_back(size.expect_int());
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
  const bool is_plain_plan = !call.plans.empty();
  const auto has_order = [&](const Target& target) {
    return device.is_cpu() ||
           (is_plain_plan &&
            planned(call.plans, static_cast<size_t>(target.index), kernel.indices.size()).is_known());
  };
  // An output for each entry is written on the way where a pass by rows comes to all entries.
  for (size_t k = 0; k < passes.size(); ++k) {
    if (passes[k].first.walk != 'e') continue;
    for (auto& [target, outputs] : passes) {
      if (target.walk != 'r' || target.is_summed != passes[k].first.is_summed || !has_order(target))
        continue;
      outputs.insert(outputs.end(), passes[k].second.begin(), passes[k].second.end());
      passes.erase(passes.begin() + static_cast<int64_t>(k));
      --k;
      break;
    }
  }
  const size_t count = kernel.indices.size();
  std::vector<Planned> orders(count);
  for (const auto& [target, outputs] : passes) {
    Planned order;
    int64_t longest = -1;
    if (target.walk == 'r') {
      const auto index = static_cast<size_t>(target.index);
      if (!orders[index].is_known()) {
        orders[index] = planned(call.plans, index, count);
        if (!orders[index].is_known()) {
          if (device.is_cuda()) {
            Pass(kernel, problem, Target{'e', -1, 'a', target.is_summed}, {}, {}, -1, device)
                .check(index);
            orders[index] = sorted_cuda(problem, index);
          } else {
            orders[index] = sorted_host(kernel, problem, index);
          }
        }
      }
      order = orders[index];
      if (index < call.longest.size()) longest = call.longest[index];
    } else if (target.walk == 'e' && is_plain_plan) {
      // In the order of the index by which most is read: neighbours then read the same rows.
      std::vector<int64_t> reads(count);
      for (const Operand& operand : problem.operands) {
        if (operand.by >= 0) ++reads[operand.by];
      }
      size_t best = 0;
      for (size_t k = 1; k < count; ++k) {
        if (reads[k] >= reads[best]) best = k;
      }
      const Planned given = planned(call.plans, best, count);
      const bool complete = given.is_known() &&
                            std::all_of(given.rows.begin(), given.rows.end(), [&](const Tensor& t) {
                              return t.numel() == problem.positions();
                            });
      if (complete && reads[best] > 0) order = given;
    }
    Pass(kernel, problem, target, outputs, order, longest, device).run();
  }
  for (const auto& [k, result] : summed_later) {
    result.copy_(at::sum_to(problem.outputs[k], result.sizes()));
  }
  return results;
}

}  // namespace torch_ops::jit::indexed
