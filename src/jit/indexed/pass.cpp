// A pass of an indexed kernel over its entries: its form, its cut, its launch.
#include <ATen/Parallel.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <array>

#include "common/host/ceil_div.h"
#include "common/torch/calls/call_kernels.h"
#include "common/torch/calls/new_output.h"
#include "jit/call/axes.h"
#include "jit/call/host_call.h"
#include "jit/call/python_arguments.h"
#include "jit/indexed/problem.h"
#ifdef TORCH_OPS_WITH_CUDA
#include "common/gather_family/index_errors.h"
#endif

namespace torch_ops::jit::indexed {
namespace {

constexpr int64_t kGrain = 32768;  // values below which no second task is worth it
constexpr int64_t kHostVector = 16;
constexpr int64_t kHostMost = 2048;  // entries of a row on the CPU, beyond which it is cut
constexpr int64_t kVectorBytes = 16;
constexpr int64_t kMostElements = 8;  // of a vector
// So many vectors become one at most, if a warp has room for a row then; one of more than
// kManyValues only where a row has at least kLeastWordsOfMany such words (docs/internals/log.md,
// "Kernels compiled at run time").
constexpr int64_t kMostVectors = 3, kManyValues = 16, kLeastWordsOfMany = 4;
constexpr char kFolded = 'f';  // headers/indexed/operands.h has it beside those of Reduce
constexpr int64_t kWarp = 32, kMostBlocksY = 65535;
constexpr int64_t kJoinThreads = 256;  // a block; torch_ops/jit/generation/indexed.py has it too
constexpr int64_t kLeastMost = 32;
// Threads with which rows keep a GPU busy, and up to which parts of long rows are worth cutting.
constexpr int64_t kEnoughThreads = 1 << 16, kMostThreads = 1 << 18;
constexpr int64_t kLaneShare = 2;      // entries of a lane at least, of several that share a row
constexpr int64_t kMostParts = 8192;   // of a row, which a block joins
constexpr int64_t kJoinBlocks = 1024;  // about as many as run at once
constexpr int64_t kPartialBytes = 8;   // an entry: what parts of long rows may take at most
// Words that are computed at a time at least, where that are not all, in whole lines of the cache;
// and how many times the average the most entries of a row may be (docs/internals/log.md, "Kernels
// compiled at run time").
constexpr int64_t kLeastWords = 16, kWordsOfLine = 8, kEven = 8;
// Lanes share the entries of rows of fewer words.
constexpr int64_t kManyWords = 8;

int64_t power_of_two_from(int64_t value) {
  int64_t power = 1;
  while (power < value) power *= 2;
  return power;
}

class Pass {
 public:
  Pass(Indexed& kernel, const Problem& problem, const Target& target,
       const std::vector<size_t>& outputs, const Planned& planned, c10::Device device)
      : kernel_(kernel),
        problem_(problem),
        target_(target),
        planned_(planned),
        longest_(target.walk == 'r' ? problem.longest[target.index] : -1),
        device_(device) {
    kinds_.assign(kernel.out.size(), '-');
    for (const size_t k : outputs) {
      kinds_[k] =
          static_cast<char>(target.walk == 'e' ? Reduce::kNone : kernel.out_roles[k].reduce);
      // A gradient by what is the same for all entries.
      if (target.walk == 'u') kinds_[k] = static_cast<char>(Reduce::kSum);
      if (target.walk == 'r' && kernel.out_roles[k].index < 0) {
        kinds_[k] = problem.is_folded[k] ? kFolded : static_cast<char>(Reduce::kNone);
      }
    }
    for (int64_t d = static_cast<int64_t>(problem.features.size()) - 1; d >= 0; --d) {
      const bool summed = target.is_summed[d];
      if (kept_.empty() && summed_.empty() && problem.features[d] != 1) sums_inner_ = summed;
      Axis axis{problem.features[d], {}};
      for (const Operand& operand : problem.operands) axis.strides.push_back(operand.strides[d]);
      add_axis(summed ? summed_ : kept_, std::move(axis));
    }
    find_rows();
  }

  void run() { device_.is_cuda() ? run_cuda() : run_cpu(); }
  // Can neighbours in a warp have all words of a row?
  bool can_fold() {
    choose_vector();
    return folding_vector() > 0;
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
        sources_[by] = is_ordered() && planned_.knows_rows_of(by) ? 'p' : raw_source(by);
      }
      by_.push_back(by);
    }
  }

  bool is_ordered() const { return target_.walk != 'u' && planned_.is_known(); }
  bool is_wide() const { return is_ordered() && planned_.order.scalar_type() == at::kLong; }
  // Do entries, rows, features or strides exceed 32 bits? Counters reach twice the entries; rows
  // are counted with the parts of long rows, and features to the end of a grid.
  bool is_large() const {
    const int64_t positions = problem_.positions(), parts = 2 * (positions / kLeastMost + 1);
    int64_t most = 2 * positions;
    most = std::max(
        most, kWarp * std::max(product(kept_), product(summed_)) + kMostBlocksY * kJoinThreads);
    for (const int64_t size : problem_.sizes) {
      most = std::max(most, problem_.batch * size + parts + kJoinThreads);
    }
    for (const Operand& operand : problem_.operands) {
      most = std::max(most, std::abs(operand.row_stride));
    }
    return most > INT32_MAX;
  }
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
      // A short row is a vector of its own length, which needs no test of where it ends.
      vector_ = std::clamp<int64_t>(axis.size, 1, kHostVector);
      is_full_ = axis.size % vector_ == 0;
      // Vectors lie within the innermost axis.
      if (!is_full_ && inner.size() > 1) vector_ = 1, is_full_ = true;
    } else {
      vector_ = vector_on_cuda(axis);
    }
    if (folds()) vector_ = folding_vector();
    if (vector_ == 1) modes_.assign(problem_.operands.size(), 's');
    words_ = sums_inner_ ? product(kept_) : ceil_div(product(kept_), vector_);
  }

  int64_t vector_on_cuda(const Axis& axis) const {
    if (modes_.find('s') != std::string::npos) return 1;
    int64_t smallest = kVectorBytes;
    for (size_t k = 0; k < modes_.size(); ++k) {
      if (modes_[k] == 'c') smallest = std::min(smallest, problem_.operands[k].item);
    }
    for (size_t k = 0; k < kinds_.size() && !sums_inner_; ++k) {
      if (kinds_[k] == '-' || kinds_[k] == kFolded) continue;
      smallest = std::min(smallest, problem_.outputs[k].element_size());
    }
    const int64_t most = std::min(kVectorBytes / smallest, kMostElements);
    int64_t vector = most;
    while (vector > 1 && !fits(axis, vector)) vector /= 2;
    // A short row is a vector, though it is no power of two.
    return axis.size <= most && fits(axis, axis.size) ? axis.size : vector;
  }
  bool folds() const { return kinds_.find(kFolded) != std::string::npos; }
  // The shortest vector with which a row has 1, 2, 4, ..., or 32 words, as neighbours in a warp; 0:
  // there is none.
  int64_t folding_vector() const {
    const int64_t features = product(kept_);
    for (int64_t vector = vector_; vector <= kMostVectors * vector_; vector += vector_) {
      const int64_t words = features / vector;
      const bool is_wide = vector > kManyValues && words < kLeastWordsOfMany;
      if (words <= kWarp && words == power_of_two_from(words) &&
          (vector == vector_ || (fits(kept_[0], vector) && !is_wide))) {
        return vector;
      }
    }
    return 0;
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
      const int64_t size = vector * operand.item;
      if (places % std::min(kVectorBytes, size & -size) != 0) return false;
    }
    return true;
  }

  PassCode find_code() {
    const auto read = [](const Compiled& made) {
      return PassCode{made.function(0), made.function(1), made.number(2), made.number(3),
                      made.number(4),   made.number(5),   made.number(6)};
    };
    return jit::find_code(kernel_.codes, kernel_.compile, device_, problem_, read, modes_,
                          at::IntArrayRef(by_), kinds_, sources_, target_.walk, is_wide(),
                          is_large(), is_ordered(), is_batched(), kept_.size(), summed_.size(),
                          vector_, is_full_, sums_inner_, may_share_entries(), together());
  }

  // ---- the plan

  void count_rows() {
    positions_ = problem_.positions();
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
  }
  void cut_rows(const PassCode& code) {
    most_ = device_.is_cpu() ? kHostMost : most_on_cuda(code);
    most_ = std::max(most_, power_of_two_from(2 * words_ * code.partial_bytes / kPartialBytes));
    const bool has_long =
        target_.walk != 'e' && positions_ > most_ && (longest_ < 0 || longest_ > most_);
    slots_ = has_long ? 2 * ceil_div(positions_, most_) : 0;
    items_ = target_.walk == 'e' ? ceil_div(positions_, code.unroll) : slots_ + rows_;
  }

  // Of few entries, parts are smaller, so that there are enough to keep a GPU busy; but ordinary
  // rows are not cut.
  int64_t most_on_cuda(const PassCode& code) const {
    const int64_t fair =
        std::max(positions_ * words_ * count_lanes(code) / kMostThreads, 2 * entries_of_row());
    const int64_t longest = longest_ < 0 ? positions_ / 2 : longest_;
    return std::clamp(std::max(power_of_two_up_to(std::max<int64_t>(fair, 1)),
                               power_of_two_from(ceil_div(longest, kMostParts))),
                      kLeastMost, code.tile);
  }

  // In the order in which torch_ops/jit/generation/indexed.py declares them.
  Words plan_words(const Tensor& partials, const int64_t* bad) {
    Words words;
    for (const int64_t number :
         {rows_, positions_, problem_.entries, items_, slots_, most_, words_, lanes_, row_length_,
          row_step_, entry_step_, product(kept_), product(summed_)}) {
      words.put(number);
    }
    words.put(is_ordered() ? planned_.order.const_data_ptr() : nullptr);
    const bool by_rows = target_.walk == 'r';
    words.put(by_rows ? planned_.offsets.const_data_ptr() : nullptr);
    const bool has_row_of = by_rows && planned_.knows_rows_of(target_.index);
    words.put(has_row_of ? planned_.rows[target_.index].const_data_ptr() : nullptr);
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
    put_axes(words, kept_, problem_.operands.size());
    put_axes(words, summed_, problem_.operands.size());
    words.append(problem_.tail);
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
    count_rows();
    const PassCode code = find_code();
    const auto function = reinterpret_cast<HostFunction>(const_cast<void*>(code.run));
    cut_rows(code);
    const Tensor partials = scratch(code);
    std::vector<int64_t> bad(sources_.size(), INT64_MAX);
    Words words = plan_words(partials, bad.data());
    const auto call = [&](What what, int64_t begin, int64_t end) {
      if (begin < end) call_on_host(kernel_, function, words.data(), what, begin, end);
    };
    const int64_t values = std::max<int64_t>(product(kept_) * product(summed_), 1);
    if (target_.walk == 'e') {
      at::parallel_for(0, positions_, std::max<int64_t>(kGrain / values, 32),
                       [&](int64_t begin, int64_t end) { call(kEntries, begin, end); });
    } else {
      at::parallel_for(0, slots_, 1,
                       [&](int64_t begin, int64_t end) { call(kReduce, begin, end); });
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
        (offset_of(middle) + middle < wanted ? low : high) =
            middle + (offset_of(middle) + middle < wanted);
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
    count_rows();
    const PassCode code = find_code();
    cut_rows(code);
    lanes_ = count_lanes(code);
    const Tensor partials = scratch(code);
    Words words = plan_words(partials, nullptr);
    put_sites(words);
    const Launcher launch(device_, words);
    // Items side by side in a block, or an item in several.
    const int64_t workers = words_ * lanes_;
    const int64_t threads = std::min(words_at_a_time() * lanes_, code.threads);
    const int64_t together = code.threads / threads;
    const int64_t blocks = ceil_div(items_, together);
    TORCH_CHECK(blocks <= INT32_MAX, kernel_.name, ": a call of ", positions_, " entries of ",
                product(kept_) * product(summed_), " values is more than one launch has room for.");
    if (blocks > 0) {
      launch(code.run, blocks, std::min(ceil_div(workers, threads), kMostBlocksY), threads,
             together);
    }
    if (slots_ > 0) {
      const int64_t tiles = slots_ / 2, columns = std::min<int64_t>(words_, 64);
      const int64_t join_blocks =
          std::max(ceil_div(tiles, kJoinThreads), std::min(kJoinBlocks / columns, tiles));
      const bool early = torch_program().device_limits().compute_capability >= 90;
      launch(code.join, join_blocks, columns, kJoinThreads, 1, early);
    }
#endif
  }

#ifdef TORCH_OPS_WITH_CUDA
  void put_sites(Words& words) const {
    static_assert(sizeof(IndexErrorSite) % sizeof(int64_t) == 0);
    for (size_t k = 0; k < sources_.size(); ++k) {
      IndexErrorSite site{};
      if (sources_[k] == 'i' || sources_[k] == 'l') {
        site = error_site(kernel_, problem_, k);
      }
      std::array<int64_t, sizeof(site) / sizeof(int64_t)> parts{};
      std::memcpy(parts.data(), &site, sizeof(site));
      for (const int64_t part : parts) words.put(part);
    }
  }

  // Words of a row that blocks of one row of the grid compute, one after the other. Mostly all. Of
  // tables that the L2 cache does not hold, as many as make a part that it does: each part is read
  // from memory once then. If some rows are read far more than others, it holds those anyway.
  int64_t words_at_a_time() const {
    if (target_.walk != 'r' || words_ < 2 * kLeastWords || !summed_.empty()) return words_;
    if (folds()) return words_;
    int64_t table = 0;
    for (size_t k = 0; k < problem_.operands.size(); ++k) {
      const Operand& operand = problem_.operands[k];
      if (operand.by < 0 || operand.by == target_.index) continue;
      const int64_t rows = problem_.batch * problem_.sizes[operand.by];
      const int64_t longest = problem_.longest[operand.by];
      const int64_t average = positions_ / std::max<int64_t>(rows, 1);
      if (longest < 0 || longest > kEven * (average + 2)) return words_;
      int64_t bytes = rows * operand.item;
      for (const Axis& axis : kept_) bytes *= axis.strides[k] == 0 ? 1 : axis.size;
      table += bytes;
    }
    const int64_t cache = torch_program().device_limits().l2_bytes;
    if (table <= cache) return words_;
    const int64_t words = words_ * (cache / 8 * 5) / table / kWordsOfLine * kWordsOfLine;
    return words < kLeastWords ? words_ : words;
  }
#endif

  int64_t entries_of_row() const { return positions_ / std::max<int64_t>(rows_, 1); }

  // How many lanes share the entries of a row where the rows alone do not keep a GPU busy. All of a
  // row are of one warp.
  int64_t lanes_of_few_rows() const {
    if (target_.walk != 'r') return 1;
    const int64_t share = std::max(positions_ * words_ / kEnoughThreads, kLaneShare);
    const int64_t lanes = std::min(entries_of_row() / share, kWarp / std::max<int64_t>(words_, 1));
    return power_of_two_up_to(std::max<int64_t>(lanes, 1));
  }
  bool may_share_entries() const {
    return target_.walk != 'e' && !sums_inner_ && (words_ < kManyWords || lanes_of_few_rows() > 1);
  }

  int64_t lanes_of_sums() const {
    return std::min(kWarp, power_of_two_from(ceil_div(product(summed_), vector_)));
  }
  // How many neighbours in a warp sum an output for each entry; 0: none do. The code has it as a
  // constant.
  int64_t together() const {
    if (device_.is_cpu()) return 0;
    if (folds()) return words_;
    const bool has_entries = kinds_.find(static_cast<char>(Reduce::kNone)) != std::string::npos;
    return sums_inner_ && has_entries ? lanes_of_sums() : 0;
  }

  // Lanes share the summed features, or the entries of a row of few words or of few rows.
  int64_t count_lanes(const PassCode& code) const {
    if (sums_inner_) return lanes_of_sums();
    if (!may_share_entries()) return 1;
    const int64_t few = lanes_of_few_rows();
    if (words_ >= kManyWords) return few;
    // Else a row has no more lanes than it has entries for one round of each: those of its words
    // count.
    const int64_t rounds = entries_of_row() / (code.unroll * words_);
    return std::max(few, power_of_two_up_to(std::clamp<int64_t>(
                             rounds, 1, std::max<int64_t>(code.group / words_, 1))));
  }

  Indexed& kernel_;
  const Problem& problem_;
  const Target& target_;
  const Planned& planned_;
  int64_t longest_;
  c10::Device device_;
  std::string kinds_, sources_, modes_;
  c10::SmallVector<int64_t, 8> by_;
  Axes kept_, summed_;
  bool sums_inner_ = false, is_full_ = true;
  int64_t vector_ = 1, rows_ = 0, positions_ = 0, words_ = 1, lanes_ = 1, items_ = 0, slots_ = 0;
  int64_t most_ = 0, row_length_ = 0, row_step_ = 1, entry_step_ = 1;
};

}  // namespace

void run_pass(Indexed& kernel, const Problem& problem, const Target& target,
              const std::vector<size_t>& outputs, const Planned& planned, c10::Device device) {
  Pass(kernel, problem, target, outputs, planned, device).run();
}

bool can_fold(Indexed& kernel, const Problem& problem, const Target& target,
              const std::vector<size_t>& outputs, c10::Device device) {
  const auto is_set = [](bool value) { return value; };
  const Planned none;
  return device.is_cuda() &&
         std::none_of(target.is_summed.begin(), target.is_summed.end(), is_set) &&
         Pass(kernel, problem, target, outputs, none, device).can_fold();
}

}  // namespace torch_ops::jit::indexed
