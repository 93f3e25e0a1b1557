// Indexed kernels compiled at run time: operands are read at the rows that indices name, computed
// on for each entry, and reduced to rows or written for each entry.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/SymIntArrayRef.h>
#include <pybind11/pybind11.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "jit/call/made_by_key.h"
#include "jit/call/signature.h"

namespace torch_ops::jit::indexed {

// What becomes of an output: what headers/indexed/operands.h has as kinds.
enum class Reduce : char { kNone = 'e', kSum = 's', kMean = 'm', kMax = 'x', kMin = 'n' };

// Of a parameter, what Signature does not know.
struct Role {
  int index = -1;                 // that an input is read by, or an output is reduced to
  Reduce reduce = Reduce::kNone;  // of an output
  std::vector<int64_t> features;  // that an output is summed over, as the user counted them

  bool is_best() const { return reduce == Reduce::kMax || reduce == Reduce::kMin; }
};

// The functions that were compiled for one form of a pass.
struct PassCode {
  const void* run = nullptr;
  const void* join = nullptr;  // of the parts of long rows
  int64_t unroll = 1;
  int64_t partial_bytes = 0;  // of a part
  // On CUDA: threads of a block, lanes of a row, entries beyond which a row is cut.
  int64_t threads = 0, group = 0, tile = 0;
};

// What a call has beyond its arguments.
struct Call {
  std::vector<Tensor> indices;  // [batch..., entries] each
  std::vector<Tensor> plans;    // of each index those of `Planned`; none: there is no plan
  // Of each index, the most entries of a row; -1: not known. A symbol, as each plan has others.
  std::vector<c10::SymInt> longest;
  std::vector<c10::SymInt> sizes;  // of each index, what it counts; -1: an input tells
  int64_t batch_dims = 0;
};

// The parts of a plan for one index: entries sorted by it.
struct Planned {
  // In a list of plans, where the parts of an index begin, and how many there are.
  static int64_t count(size_t indices) { return 2 + static_cast<int64_t>(indices); }

  Tensor order;              // the entries
  Tensor offsets;            // where each row's begin in it, and where they end
  std::vector<Tensor> rows;  // of each index, what it names there; undefined: not known

  bool is_known() const { return offsets.defined() && offsets.numel() > 0; }
  bool knows_rows_of(size_t index) const {
    return index < rows.size() && rows[index].defined() && rows[index].numel() > 0;
  }
};
Planned planned(const std::vector<Tensor>& plans, size_t index, size_t indices);

class Indexed : public Signature {
 public:
  // The signature of all registered indexed ops. `deterministic` changes nothing: all sums are made
  // in a fixed order. With `winners`, which entries the largest or
  // smallest are follows the outputs.
  using Op = std::vector<Tensor>(at::TensorList tensors, at::ArrayRef<Scalar> numbers,
                                 at::IntArrayRef positions, at::TensorList indices,
                                 at::TensorList plans, c10::SymIntArrayRef longest,
                                 c10::SymIntArrayRef sizes, int64_t batch_dims,
                                 std::optional<bool> deterministic, bool winners);

  std::vector<std::string> indices;
  std::vector<Role> in_roles, out_roles;
  bool uses_index = false;                                // `i`
  bool uses_size = false;                                 // `_ind`
  FromPython compile;                                     // passes
  FromPython derive;                                      // derivatives
  FromPython gather_plan;                                 // the class
  std::vector<std::unique_ptr<std::string>> error_names;  // "kernel:index": records point to them
  std::optional<c10::TypedOperatorHandle<Op>> op;

  // The kernel of a derivative: "vjp" or "jvp" with respect to the inputs `wanted`; of the outputs
  // only those marked `given` have a gradient.
  std::shared_ptr<Indexed> derived(const std::string& kind, const std::vector<bool>& wanted,
                                   const std::vector<bool>& given = {});

  bool has_winners() const {
    for (const Role& role : out_roles) {
      if (role.is_best()) return true;
    }
    return false;
  }

  MadeByKey<PassCode> codes;  // by the form of a pass

 private:
  MadeByKey<std::shared_ptr<Indexed>> derived_;
};

// ---- Shapes (frame.cpp) -------------------------------------------------------------------------

// The frame of a call is [batch..., entries, features...]; inputs broadcast in it.
struct Frame {
  int64_t batch_dims = 0;
  c10::SymDimVector batch, features;
  c10::SymInt entries;
  c10::SymDimVector sizes;                   // of each index, what it counts
  std::vector<c10::SymDimVector> outputs;    // shapes
  std::vector<std::vector<bool>> is_summed;  // of each output, which features
  // Of each output: does it have the entries' axis, or (of a gradient) is it reduced over them all?
  std::vector<bool> has_entries;
};
// Raises where shapes, indices or sizes do not fit.
Frame frame_of(const Indexed& kernel, const Arguments& arguments, const Call& call);

// Axes from the right of an output's features that are summed away, negative: of a user's output.
std::vector<int64_t> summed_axes(const Indexed& kernel, size_t output, int64_t features);

// ---- Calls --------------------------------------------------------------------------------------

// Runs the kernel on tensors without autograd and other layers.
std::vector<Tensor> run(Indexed& kernel, const Arguments& arguments, const Call& call,
                        bool winners);
// Raises where tensors are on several devices; 0-d tensors on the CPU count as numbers.
void check_devices(const Indexed& kernel, const Arguments& arguments, const Call& call);
// Shapes and dtypes of what `run` returns, on tensors of `device`.
std::vector<Tensor> allocate(const Indexed& kernel, const Types& types, const Frame& frame,
                             c10::Device device, bool winners);

// Calls the registered op.
std::vector<Tensor> call_op(const Indexed& kernel, const OpInputs& inputs, const Call& call,
                            bool winners = false);

// What is registered on the key Autograd.
std::vector<Tensor> indexed_autograd(const std::shared_ptr<Indexed>& kernel,
                                     c10::DispatchKeySet keys, const OpInputs& inputs,
                                     const Call& call, bool winners);

// Registers the kernel as an op, with its derivative and its batching rule; once for each name.
void register_indexed(const std::shared_ptr<Indexed>& kernel);

}  // namespace torch_ops::jit::indexed
