// A call of an indexed kernel laid out in memory, and what its passes have in common.
#pragma once

#include <vector>

#include "jit/call/plan.h"
#include "jit/indexed/indexed.h"

namespace torch_ops {
class IndexErrorCall;
struct IndexErrorSite;
}  // namespace torch_ops

namespace torch_ops::jit::indexed {

// Rows that belong to an entry and that no index names, as headers/indexed/operands.h has them.
constexpr int kByEntry = -1, kByRow = -2, kByNone = -3, kInBatch = -4, kByBatch = -5;

// An input that a pass walks: where its rows are, and how the features lie in them, in bytes.
struct Operand {
  Tensor tensor;  // what keeps the memory
  char* data = nullptr;
  int64_t item = 1;
  int by = kByNone;  // an index, or which row it is otherwise
  int64_t row_stride = 0;
  c10::SmallVector<int64_t, 4> strides;
};

struct Problem : Layout {
  int64_t batch = 1, entries = 0;  // of a batch
  std::vector<int64_t> features;
  std::vector<int64_t> sizes;    // rows that an index counts in a batch
  std::vector<int64_t> longest;  // the most entries of a row of each index; -1: not known
  c10::SmallVector<Operand, 8> operands;
  std::vector<Tensor> outputs, winners;
  std::vector<Tensor> indices;  // contiguous
  // Outputs for each entry, summed over the features, that a pass by rows makes which keeps these.
  std::vector<bool> is_folded;

  // Of a call on CUDA: its passes are one call, none of which raises what another has recorded.
  IndexErrorCall* errors = nullptr;

  int64_t positions() const { return batch * entries; }
};

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

// ---- Orders (orders.cpp) ------------------------------------------------------------------------

[[noreturn]] void raise_bad_entry(const Indexed& kernel, const Problem& problem, size_t index,
                                  int64_t position);
// The entries sorted by an index. On the CPU an entry out of range raises; on CUDA it is recorded,
// and in no row.
Planned sorted_by(const Indexed& kernel, const Problem& problem, size_t index, c10::Device device);
// Where kernels on CUDA record entries of an index that are out of range.
IndexErrorSite error_site(const Indexed& kernel, const Problem& problem, size_t index);

// ---- Passes (pass.cpp) --------------------------------------------------------------------------

// Makes `outputs`, which have one target.
void run_pass(Indexed& kernel, const Problem& problem, const Target& target,
              const std::vector<size_t>& outputs, const Planned& planned, c10::Device device);
// Can this pass make an output for each entry, summed over the features that it keeps?
bool can_fold(Indexed& kernel, const Problem& problem, const Target& target,
              const std::vector<size_t>& outputs, c10::Device device);

}  // namespace torch_ops::jit::indexed
