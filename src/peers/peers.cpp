// The bindings of what reads and writes the memory of other ranks. torch_ops/distributed/peers/
// calls them; they are no ops, since what an address means only the caller knows.
#include <pybind11/complex.h>
#include <torch/csrc/utils/pybind.h>

#include "common/gather_family/call_indexed.h"
#include "common/gather_family/gather_ops.h"
#include "common/gather_family/index_mode_args.h"
#include "common/gather_family/indexing.h"
#include "common/torch/autograd.h"
#include "common/torch/new_output.h"
#include "peers/peers_launch.h"

namespace torch_ops {
namespace {

using at::Tensor;

const int64_t* numbers(const Tensor& tensor) { return tensor.const_data_ptr<int64_t>(); }

// Calls use(on, ...) for kernels on the tensor's device, without the GIL.
template <class Use>
auto on_device_of(const Tensor& tensor, Use&& use) {
  const pybind11::gil_scoped_release no_gil;
  return tensor.is_cuda() ? use(static_cast<OnCuda*>(nullptr)) : use(static_cast<OnCpu*>(nullptr));
}

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

// `part` is this rank's, and gives the dtype and the shape of a row.
Tensor gather(const Tensor& part, const Tensor& parts, int64_t rows, const Tensor& index,
              std::string_view mode_name, const pybind11::object& fill,
              const std::optional<std::string>& name) {
  const std::optional<at::Scalar> fill_value = number_of(fill);
  const char* const op = indexing::name_of("gather", name);
  const IndexMode mode = indexing::parse_mode(op, mode_name);
  indexing::check_index_dtype(op, index);
  indexing::check_one_device(op, "source", part, "index", index);
  indexing::check_fill_value(op, mode, fill_value, part.scalar_type());
  return on_device_of(part, [&](auto* device) {
    using On = std::remove_pointer_t<decltype(device)>;
    at::DimVector sizes(part.sizes());
    sizes[0] = rows;
    Tensor entries = index;
    const RowLayout layout = indexing::lay_out_contiguous(sizes, entries, {0, 0});
    at::DimVector shape(index.sizes());
    shape.append(sizes.begin() + 1, sizes.end());
    Tensor output = new_output(shape, part.options());
    const int64_t ranks = parts.numel();
    const PeerGather call{
        numbers(parts),
        ranks,
        std::max<int64_t>((rows + ranks - 1) / ranks, 1),
        layout.inner * part.element_size(),
        index_array(entries),
        layout,
        {IndexRule(mode, rows), indexing::make_fill(mode, fill_value, part.scalar_type())},
        output.mutable_data_ptr()};
    call_indexed<On>(op, entries, layout, mode, output, [&](auto on, const auto&... errors) {
      return kernels::gather_peers(on, call, errors...);
    });
    return output;
  });
}

// Hands the gradient to Python, which has the ranks and the DTensor that it becomes.
struct PeerRowsBackward final : autograd::DerivativeNode<PeerRowsBackward> {
  static constexpr const char* kName = "PeerRowsBackward";
  autograd::SavedVariable index;
  int64_t table = 0;
  int64_t mode = 0;

  template <class Visit>
  void fields(Visit&& visit) {
    visit(index);
    visit(table);
    visit(mode);
  }

  autograd::variable_list backward(const Tensor& grad_output) {
    const Tensor entries = unpack(index);
    const pybind11::gil_scoped_acquire gil;
    const auto module = pybind11::module_::import("torch_ops.distributed._lookup");
    const auto grad = module.attr("gradient_of_peer_rows")(grad_output, entries, table,
                                                           std::string(indexing::mode_name(mode)));
    return {grad.cast<Tensor>()};
  }
};

// A gather whose gradient is that of `weight`, the DTensor of which `part` is this rank's. `table`
// is the number by which Python knows it.
Tensor look_up(const Tensor& weight, const Tensor& part, const Tensor& parts, int64_t rows,
               const Tensor& index, std::string_view mode, const pybind11::object& fill,
               int64_t table) {
  const auto node = autograd::make_node<PeerRowsBackward>(weight);
  Tensor output;
  {
    at::AutoDispatchBelowADInplaceOrView guard;
    if (parts.numel() == 1) {
      const auto fill_value = number_of(fill);
      const pybind11::gil_scoped_release no_gil;
      output = ops::gather().call(part, index, 0, 0, mode, fill_value, std::nullopt);
    } else {
      output = gather(part, parts, rows, index, mode, fill, std::nullopt);
    }
  }
  if (node) {
    node->index = {index, /*is_output=*/false};
    node->table = table;
    node->mode = indexing::mode_of_gradient("gather", mode);
  }
  autograd::record(output, node);
  return output;
}

// On CUDA it raises an entry's error that an earlier call left, and tells the others of one that
// the device alone knows of yet.
void put(const Tensor& values, const Tensor& rows, const Tensor& bounds, const Tensor& inboxes,
         int64_t rank, int64_t length, int64_t first, int64_t capacity, int64_t rows_offset,
         int64_t values_offset) {
  const int64_t count = rows.numel();
  TORCH_INTERNAL_ASSERT(values.is_contiguous() && rows.is_contiguous() && values.size(0) == count);
  const PeerPut call{numbers(inboxes),
                     inboxes.numel(),
                     rank,
                     length,
                     numbers(rows),
                     numbers(bounds),
                     static_cast<const char*>(values.const_data_ptr()),
                     count,
                     static_cast<int64_t>(count > 0 ? values.nbytes() / count : 0),
                     first,
                     capacity,
                     rows_offset,
                     values_offset};
  on_device_of(values, [&](auto* device) {
    using On = std::remove_pointer_t<decltype(device)>;
    with_kernels<On>(values, [&](auto on) {
      if constexpr (std::is_same_v<On, OnCpu>) {
        kernels::put_to_peers(on, call);
      } else {
#ifdef TORCH_OPS_WITH_CUDA
        IndexErrorCall errors(/*wait=*/false);
        errors.record();
        kernels::put_to_peers(on, call, errors.site);
        errors.end();
#endif
      }
    });
  });
}

PeerPads pads_of(const Tensor& pads, int64_t rank) { return {numbers(pads), pads.numel(), rank}; }

void arrive(const Tensor& pads, int64_t rank, int64_t meeting, bool failed) {
  kernels::arrive(OnCpu{torch_program()}, pads_of(pads, rank), meeting, failed);
}

int64_t await_peers(const Tensor& pads, int64_t rank, int64_t meeting, bool with_errors,
                    int64_t milliseconds) {
  const pybind11::gil_scoped_release no_gil;
  return kernels::await_peers(OnCpu{torch_program()}, pads_of(pads, rank), meeting, with_errors,
                              milliseconds);
}

// `meeting` is a number on the device, `outcome` one in pinned memory.
void meet(const Tensor& pads, int64_t rank, const Tensor& meeting, bool failed,
          int64_t milliseconds, const Tensor& outcome) {
  const pybind11::gil_scoped_release no_gil;
  with_kernels<OnCuda>(pads, [&]([[maybe_unused]] auto on) {
    kernels::meet_peers(on, pads_of(pads, rank), meeting.mutable_data_ptr<int64_t>(), failed,
                        milliseconds, outcome.mutable_data_ptr<int64_t>());
  });
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.doc() = "Reads and writes the memory of other ranks, which is mapped into this process.";
  m.attr("ALL_MET") = kAllMet;
  m.attr("HAS_ERROR") = kHasError;
  m.def("gather", &gather);
  m.def("look_up", &look_up);
  m.def("put", &put);
  m.def("arrive", &arrive);
  m.def("await_peers", &await_peers);
  m.def("meet", &meet);
}

}  // namespace torch_ops
