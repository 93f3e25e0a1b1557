// The bindings of what reads and writes the memory of other ranks. torch_ops/distributed/peers/
// calls them; they are no ops, since what an address means only the caller knows.
#include <ATen/Dispatch.h>
#include <ATen/ops/full.h>
#include <ATen/ops/view_as_complex.h>
#include <ATen/ops/view_as_real.h>
#include <ATen/ops/zeros.h>
#include <pybind11/complex.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include "common/gather_family/call_indexed.h"
#include "common/gather_family/gather_ops.h"
#include "common/gather_family/index_errors.h"
#include "common/gather_family/index_mode_args.h"
#include "common/gather_family/indexing.h"
#include "common/torch/calls/new_output.h"
#include "common/torch/registration/derive.h"
#include "common/torch/registration/layout_errors.h"
#include "peers/peers_launch.h"
#include "scatter/scatter.h"

namespace torch_ops {
namespace {

using at::Tensor;

const int64_t* numbers(const Tensor& tensor) { return tensor.const_data_ptr<int64_t>(); }
int64_t* own_numbers(const Tensor& tensor) { return tensor.mutable_data_ptr<int64_t>(); }
PeerPads pads_of(const Tensor& pads, int64_t rank) { return {numbers(pads), pads.numel(), rank}; }

// Calls use(on, ...) for kernels on the tensor's device, without the GIL.
template <class Use>
auto on_device_of(const Tensor& tensor, Use&& use) {
  const pybind11::gil_scoped_release no_gil;
  return tensor.is_cuda() ? use(static_cast<OnCuda*>(nullptr)) : use(static_cast<OnCpu*>(nullptr));
}

// What torch.vmap and torch.func give a function in the place of a tensor.
constexpr c10::DispatchKeySet kWrappers{c10::DispatchKey::FuncTorchBatched,
                                        c10::DispatchKey::FuncTorchGradWrapper};

// A number of Python's, which pybind11 does not convert.
std::optional<at::Scalar> number_of(const pybind11::object& given) {
  if (given.is_none()) return std::nullopt;
  if (PyBool_Check(given.ptr())) return at::Scalar(given.cast<bool>());
  if (PyLong_Check(given.ptr())) return at::Scalar(given.cast<int64_t>());
  if (PyComplex_Check(given.ptr())) {
    return at::Scalar(c10::complex<double>(given.cast<std::complex<double>>()));
  }
  return at::Scalar(given.cast<double>());
}

// The derivative of a lookup (derive.h), for which Python knows the table by a number.
struct PeerRows {
  static constexpr const char* kNode = "PeerRowsBackward";

  static auto keep(const Tensor& index, int64_t table, std::string_view mode) {
    return std::tuple(index, table, indexing::mode_of_gradient("gather", mode));
  }

  // Hands the gradient to Python, which has the ranks and the DTensor that it becomes.
  static Tensor backward(const Tensor& grad_output, const Tensor& index, int64_t table,
                         int64_t mode) {
    const pybind11::gil_scoped_acquire gil;
    const auto module = pybind11::module_::import("torch_ops.distributed._lookup");
    const auto grad = module.attr("gradient_of_peer_rows")(grad_output, index, table,
                                                           std::string(indexing::mode_name(mode)));
    return grad.cast<Tensor>();
  }
};

// The meetings of a group on CUDA (PeerMeeting).
class Meetings {
 public:
  Meetings(const Tensor& pads, int64_t rank, int64_t milliseconds)
      : pads_(pads),
        count_(at::zeros({1}, pads.options())),
        outcome_(at::full({1}, kAllMet, host_options())),
        said_(at::zeros({2 * pads.numel() + 1}, host_options())) {
    meeting_.pads = pads_of(pads_, rank);
    meeting_.count = own_numbers(count_);
    meeting_.outcome = own_numbers(outcome_);
    meeting_.milliseconds = milliseconds;
    meeting_.said = own_numbers(said_);
  }

  // Of the last meeting that failed and was not forgotten.
  int64_t outcome() const { return *static_cast<const volatile int64_t*>(meeting_.outcome); }
  void forget() { *meeting_.outcome = kAllMet; }

  // With an inbox, said() waits for what the ranks have put at its beginning.
  void meet(bool failed, const std::optional<Tensor>& inbox) {
    const pybind11::gil_scoped_release no_gil;
    meeting_.failed = failed;
    meeting_.header = inbox ? static_cast<const int64_t*>(inbox->const_data_ptr()) : nullptr;
    meeting_.number += inbox.has_value();
    with_kernels<OnCuda>(pads_,
                         [&]([[maybe_unused]] auto on) { kernels::meet_peers(on, meeting_); });
  }

  // For each rank, what was at the beginning of the inbox of the last meeting with one.
  std::vector<std::pair<int64_t, int64_t>> said() const {
    const pybind11::gil_scoped_release no_gil;
    const int64_t ranks = meeting_.pads.ranks;
    const int64_t* const said = meeting_.said;
    with_kernels<OnCuda>(pads_, [&]([[maybe_unused]] auto on) {
      kernels::await_said(on, said + 2 * ranks, meeting_.number);
    });
    std::vector<std::pair<int64_t, int64_t>> pairs;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      pairs.emplace_back(said[2 * rank], said[2 * rank + 1]);
    }
    return pairs;
  }

 private:
  static at::TensorOptions host_options() {
    return at::TensorOptions(at::kLong).pinned_memory(true);
  }

  Tensor pads_, count_, outcome_, said_;
  PeerMeeting meeting_{};
};

// A table as this rank reads it, and what it knows of writes to it.
class Reader {
 public:
  bool written = true;    // by some rank, and not seen by all yet
  bool captured = false;  // a graph has a lookup: nobody here knows when it is replayed

  // `part` is this rank's, `parts` where all are. `table` is the number by which Python knows it.
  // `meetings`: none on the CPU.
  Reader(Tensor part, Tensor parts, int64_t rows, int64_t table, std::shared_ptr<Meetings> meetings)
      : part_(std::move(part)),
        parts_(std::move(parts)),
        rows_(rows),
        table_(table),
        meetings_(std::move(meetings)) {}

  // Names the tensors by which the part is written.
  void watch(const std::vector<Tensor>& weights) {
    for (const Tensor& weight : weights) {
      counters_.push_back(weight.unsafeGetTensorImpl()->version_counter());
    }
  }

  // Says that all ranks see all that was written.
  void refresh() {
    written = false;
    versions_.clear();
    for (const auto& counter : counters_) versions_.push_back(counter.current_version());
  }

  // Whether they do still, as far as this rank knows, and no meeting has failed.
  bool is_fresh() const {
    if (written || captured) return false;
    for (size_t n = 0; n < counters_.size(); ++n) {
      if (counters_[n].current_version() != versions_[n]) return false;
    }
    return !meetings_ || (meetings_->outcome() == kAllMet && !torch_cuda().is_capturing());
  }

  Tensor gather(const Tensor& index, std::string_view mode_name, const pybind11::object& fill,
                const ops::Name& name) const {
    const std::optional<at::Scalar> fill_value = number_of(fill);
    const char* const op = indexing::name_of("gather", name);
    const IndexMode mode = indexing::parse_mode(op, mode_name);
    indexing::check_index_dtype(op, index);
    check_one_device(op, indexing::names_of(op).table, part_, "index", index);
    indexing::check_fill_value(op, mode, fill_value, part_.scalar_type());
    return on_device_of(part_, [&](auto* device) {
      using On = std::remove_pointer_t<decltype(device)>;
      at::DimVector sizes(part_.sizes());
      sizes[0] = rows_;
      Tensor entries = index;
      const RowLayout layout = indexing::lay_out_contiguous(sizes, entries, {0, 0});
      at::DimVector shape(index.sizes());
      shape.append(sizes.begin() + 1, sizes.end());
      Tensor output = new_output(shape, part_.options());
      const int64_t ranks = parts_.numel();
      const PeerGather call{
          numbers(parts_),
          ranks,
          std::max<int64_t>((rows_ + ranks - 1) / ranks, 1),
          layout.inner * part_.element_size(),
          index_array(entries),
          layout,
          {IndexRule(mode, rows_), indexing::make_fill(mode, fill_value, part_.scalar_type())},
          output.mutable_data_ptr()};
      call_indexed<On>(op, entries, layout, mode, output, [&](auto on, const auto&... errors) {
        return kernels::gather_peers(on, call, errors...);
      });
      return output;
    });
  }

  // The same with a gradient of `weight`, the DTensor of which the part is this rank's. Nothing, if
  // the rows must be fresh and are not.
  std::optional<Tensor> look_up(const Tensor& weight, const Tensor& index, std::string_view mode,
                                const pybind11::object& fill, std::string_view name,
                                bool must_be_fresh) const {
    check_dense(name.data(), "index", index);
    // It has no memory, and the node would not be that of what it wraps.
    TORCH_CHECK(!index.key_set().has_any(kWrappers), name,
                ": torch.vmap and torch.func cannot transform a lookup. Make it outside of the "
                "function: index may have any shape.");
    if (must_be_fresh && !is_fresh()) return std::nullopt;
    const auto node = autograd::make_node<autograd::Node<PeerRows>>(weight);
    Tensor output;
    {
      at::AutoDispatchBelowADInplaceOrView guard;
      if (parts_.numel() == 1) {
        const auto fill_value = number_of(fill);
        const pybind11::gil_scoped_release no_gil;
        output = ops::gather().call(part_, index, 0, 0, mode, fill_value, name);
      } else {
        output = gather(index, mode, fill, name);
      }
    }
    if (node) node->keep(index, table_, mode);
    autograd::record(output, node);
    return output;
  }

 private:
  Tensor part_, parts_;
  int64_t rows_, table_;
  std::shared_ptr<Meetings> meetings_;
  std::vector<c10::VariableVersion> counters_;
  std::vector<uint32_t> versions_;
};

// A round of sums, of `values` for distinct rows.
struct Round {
  Tensor values, rows, bounds, inboxes;
  PeerSums sums;

  Round(Tensor of_values, Tensor of_rows, Tensor of_bounds, Tensor of_inboxes, int64_t rank,
        int64_t length, int64_t first, int64_t capacity, int64_t rows_offset, int64_t values_offset)
      : values(std::move(of_values)),
        rows(std::move(of_rows)),
        bounds(std::move(of_bounds)),
        inboxes(std::move(of_inboxes)) {
    const int64_t count = rows.numel();
    TORCH_INTERNAL_ASSERT(values.is_contiguous() && rows.is_contiguous() &&
                          values.size(0) == count);
    const int64_t row_bytes =
        c10::multiply_integers(values.sizes().slice(1)) * values.element_size();
    sums = {numbers(inboxes),
            inboxes.numel(),
            rank,
            length,
            own_numbers(rows),
            own_numbers(bounds),
            static_cast<char*>(values.mutable_data_ptr()),
            count,
            row_bytes,
            first,
            capacity,
            rows_offset,
            values_offset};
  }

  // On CUDA it raises an entry's error that an earlier call left, and tells the others of one that
  // the device alone knows of yet.
  void put() const {
    on_device_of(values, [&](auto* device) {
      using On = std::remove_pointer_t<decltype(device)>;
      with_kernels<On>(values, [&](auto on) {
        if constexpr (std::is_same_v<On, OnCpu>) {
          kernels::put_to_peers(on, sums);
        } else {
          IndexErrorCall errors(/*wait=*/false);
          errors.record();
          kernels::put_to_peers(on, sums, errors.site);
          errors.end();
        }
      });
    });
  }

  // On CUDA alone. `part` has the dtype of what was summed; `own` may have that of the sums.
  void add_to(const Tensor& own, const Tensor& part, bool onto) const {
    const pybind11::gil_scoped_release no_gil;
    TORCH_INTERNAL_ASSERT(own.is_contiguous());
    const Tensor real = own.is_complex() ? at::view_as_real(own) : own;
    const at::ScalarType dtype = c10::toRealValueType(part.scalar_type());
    with_kernels<OnCuda>(own, [&]([[maybe_unused]] auto on) {
      AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, dtype, "add_from_peers", [&] {
        using Narrow = KernelTypeOf<scalar_t>::type;
        const auto add = [&](auto* to) {
          kernels::add_from_peers<Narrow>(on, sums, own.size(0), onto, to);
        };
        if (real.scalar_type() == dtype) {
          add(output_of<scalar_t>(real));
        } else {
          add(static_cast<SumOf<Narrow>*>(real.mutable_data_ptr()));
        }
      });
    });
  }
};

// On CUDA, sums values for the distinct rows that their index names, and sends those of a first
// round. Returns the sums, of which those that were sent are undefined; the rows, in order; and
// where those of each rank begin. There are as many as the index has entries, which needs no wait
// for the device.
std::tuple<Tensor, Tensor, Tensor> sum_to_peers(const Tensor& values, const Tensor& index,
                                                std::string_view mode, int64_t rows, bool narrow,
                                                const Tensor& inboxes, int64_t rank, int64_t length,
                                                int64_t capacity, int64_t rows_offset,
                                                int64_t values_offset) {
  const pybind11::gil_scoped_release no_gil;
  at::DimVector sizes(values.sizes().slice(index.dim()));
  sizes.insert(sizes.begin(), rows);
  const bool complex = values.is_complex();
  if (complex) sizes.push_back(2);
  const Tensor real = (complex ? at::view_as_real(values) : values).contiguous();
  Tensor entries = index;
  const RowLayout layout = indexing::lay_out_contiguous(sizes, entries, {0, 0});
  sizes[0] = layout.entries;
  const Tensor sums = new_output(sizes, real.options().dtype(sum_type(real.scalar_type())));
  const Tensor distinct = new_output({layout.entries}, index.options().dtype(at::kLong));
  const Tensor bounds = new_output({inboxes.numel() + 1}, distinct.options());
  const Round first(sums, distinct, bounds, inboxes, rank, length, 0, capacity, rows_offset,
                    values_offset);
  // An entry that names no row was an error of the gather.
  const IndexRule rule(indexing::parse_mode("gather", mode), rows);
  const RowsCall call{real, entries, layout, rule, sums};
  with_kernels<OnCuda>(index, [&]([[maybe_unused]] auto on) {
    AT_DISPATCH_FLOATING_TYPES_AND2(
        at::kHalf, at::kBFloat16, real.scalar_type(), "sum_to_peers", [&] {
          using Value = KernelTypeOf<scalar_t>::type;
          kernels::sum_to_peers(on, call.of<Value, SumOf<Value>>(), narrow, first.sums);
        });
  });
  return {complex ? at::view_as_complex(sums) : sums, distinct, bounds};
}

void arrive(const Tensor& pads, int64_t rank, int64_t meeting, bool failed) {
  kernels::arrive(OnCpu{torch_program()}, pads_of(pads, rank), meeting, failed);
}

int64_t await_peers(const Tensor& pads, int64_t rank, int64_t meeting, bool with_errors,
                    int64_t milliseconds) {
  const pybind11::gil_scoped_release no_gil;
  return kernels::await_peers(OnCpu{torch_program()}, pads_of(pads, rank), meeting, with_errors,
                              milliseconds);
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.doc() = "Reads and writes the memory of other ranks, which is mapped into this process.";
  autograd::name_nodes_in_python();
  m.attr("ALL_MET") = kAllMet;
  m.attr("HAS_ERROR") = kHasError;
  pybind11::class_<Meetings, std::shared_ptr<Meetings>>(m, "Meetings")
      .def(pybind11::init<const Tensor&, int64_t, int64_t>())
      .def_property_readonly("outcome", &Meetings::outcome)
      .def("forget", &Meetings::forget)
      .def("meet", &Meetings::meet)
      .def("said", &Meetings::said);
  pybind11::class_<Reader>(m, "Reader")
      .def(pybind11::init<Tensor, Tensor, int64_t, int64_t, std::shared_ptr<Meetings>>())
      .def_readwrite("written", &Reader::written)
      .def_readwrite("captured", &Reader::captured)
      .def("watch", &Reader::watch)
      .def("refresh", &Reader::refresh)
      .def("is_fresh", &Reader::is_fresh)
      .def("gather", &Reader::gather)
      .def("look_up", &Reader::look_up);
  m.def("sum_to_peers", &sum_to_peers);
  pybind11::class_<Round>(m, "Round")
      .def(pybind11::init<Tensor, Tensor, Tensor, Tensor, int64_t, int64_t, int64_t, int64_t,
                          int64_t, int64_t>())
      .def("put", &Round::put)
      .def("add_to", &Round::add_to);
  m.def("arrive", &arrive);
  m.def("await_peers", &await_peers);
}

}  // namespace torch_ops
