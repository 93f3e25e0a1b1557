// RawKernel of torch_ops/jit/raw.py: from a call in Python to the launch.
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <limits>
#include <map>
#include <tuple>
#include <utility>

#include "jit/gpu_code.h"
#include "jit/jit.h"
#include "jit/raw/arguments.h"

namespace torch_ops::jit {
namespace py = pybind11;
namespace {

constexpr const char* kAxes[] = {"x", "y", "z"};
constexpr int64_t kMaxGrid[] = {(int64_t{1} << 31) - 1, 65535, 65535};
constexpr int64_t kMaxBlock[] = {1024, 1024, 64};

struct Loaded {
  Kernel kernel = nullptr;
  KernelAttributes attributes;
};

class RawLauncher {
 public:
  // params: None where nothing but the compiled code tells them. load(device or None) returns
  // (device, handle): it compiles and loads for the device, or for the current one.
  RawLauncher(std::string name, const py::object& params, py::object load, py::object adopt)
      : callee_{std::move(name), {}, std::move(adopt)}, load_(std::move(load)) {
    if (params.is_none()) return;
    known_ = true;
    for (const py::handle& item : params) {
      callee_.params.push_back(read_param(item));
      sizes_known_ &= callee_.params.back().size != 0;
    }
  }

  // Returns the device that it launched on, or -1 where there was nothing to launch.
  int64_t launch(const py::handle& grid, const py::handle& block, const py::handle& args,
                 const py::handle& shared_mem, const py::handle& stream, const py::handle& strided,
                 const py::handle& cooperative) {
    LaunchShape shape;
    shape.grid = read_dims("grid", grid, 0, kMaxGrid);
    shape.block = read_dims("block", block, 1, kMaxBlock);
    shape.shared_bytes = read_size("shared_mem", shared_mem);
    shape.cooperative = bool_of(callee_.name, "cooperative", cooperative);
    const bool any_strides = bool_of(callee_.name, "strided", strided);
    if (!known_ || !sizes_known_) load_first(args);
    RawArguments arguments(callee_, args.ptr(), any_strides, stream);
    if (std::count(shape.grid.begin(), shape.grid.end(), 0U) != 0) return -1;

    const Loaded& loaded = get(arguments.device());
    const c10::DeviceIndex device = last_->first;
    check_limits(shape, loaded.attributes);
    if (shape.cooperative) check_resident(shape, loaded.kernel, device);
    void* const on = stream.is_none() ? current_stream(device) : read_stream(stream, device);
    {
      const py::gil_scoped_release release;  // a launch waits where the queue is full
      gpu_code().launch_kernel(loaded.kernel, device, shape, on, arguments.pointers());
    }
    arguments.bump_versions();
    return device;
  }

  KernelAttributes attributes() { return get(std::nullopt).attributes; }

  int suggest_block(int64_t shared_bytes) {
    const Loaded& loaded = get(std::nullopt);
    return gpu_code().suggest_block(loaded.kernel, last_->first, shared_bytes,
                                    loaded.attributes.max_threads_per_block);
  }

 private:
  static Param read_param(const py::handle& item) {
    const auto [text, kind, size, dtypes, wanted, alignment, writes] =
        item.cast<std::tuple<std::string, ParamKind, int64_t, std::vector<at::ScalarType>,
                             std::string, int64_t, bool>>();
    Param param{text, kind, size, 0, wanted, alignment, writes};
    static_assert(static_cast<int>(at::ScalarType::NumOptions) <= 64);
    for (const at::ScalarType dtype : dtypes) {
      param.dtypes |= uint64_t{1} << static_cast<int>(dtype);
    }
    return param;
  }

  // For parameters whose sizes only the loaded kernel tells.
  void load_first(const py::handle& args) {
    std::optional<c10::Device> device;
    if (PyTuple_Check(args.ptr()) || PyList_Check(args.ptr())) {
      for (const py::handle& value : args) {
        if (!THPVariable_Check(value.ptr())) continue;
        const at::Device found = THPVariable_Unpack(value.ptr()).device();
        if (found.is_cuda()) device = found;
        if (found.is_cuda()) break;
      }
    }
    const Loaded& loaded = get(device);
    sizes_known_ = true;  // get() has filled them in
    if (known_) return;   // or another thread was faster
    for (const int64_t size : loaded.attributes.param_sizes) {
      Param param;
      param.text = c10::str(size, " bytes");
      param.size = size;
      callee_.params.push_back(param);
    }
    known_ = true;
  }

  const Loaded& get(std::optional<c10::Device> device) {
    // Most calls are on the device of the call before.
    if (device && last_ != nullptr && last_->first == device->index()) return last_->second;
    if (device) {
      const auto found = loaded_.find(device->index());
      if (found != loaded_.end()) return (last_ = &*found)->second;
    }
    const auto [index, handle] = load_(device ? py::cast(int64_t{device->index()}) : py::none())
                                     .cast<std::pair<int64_t, intptr_t>>();
    const auto key = static_cast<c10::DeviceIndex>(index);
    const auto found = loaded_.find(key);
    if (found != loaded_.end()) return (last_ = &*found)->second;
    Loaded loaded;
    loaded.kernel = reinterpret_cast<Kernel>(handle);
    {
      // To load waits where the queue is full, as a launch does; another thread may come here too.
      const py::gil_scoped_release release;
      loaded.attributes = gpu_code().prepare_kernel(loaded.kernel, key);
    }
    check_sizes(loaded.attributes.param_sizes);
    return (last_ = &*loaded_.emplace(key, std::move(loaded)).first)->second;
  }

  // The types were read from names or text: the compiled code has the last word.
  void check_sizes(const std::vector<int64_t>& sizes) {
    if (!known_) return;
    TORCH_CHECK(sizes.size() == callee_.params.size(), callee_.name, ": its signature has ",
                callee_.params.size(), " parameters, but the compiled code ", sizes.size(), ".");
    for (size_t i = 0; i < sizes.size(); ++i) {
      Param& param = callee_.params[i];
      if (param.size == 0) param.size = sizes[i];
      TORCH_CHECK(param.size == sizes[i], callee_.name, ": parameter ", i, " (", param.text,
                  ") has ", param.size, " bytes by its type, but ", sizes[i],
                  " in the compiled code.");
    }
  }

  int64_t read_int(const char* what, const py::handle& value) const {
    const py::object number = py::reinterpret_steal<py::object>(
        PyFloat_Check(value.ptr()) ? nullptr : PyNumber_Index(value.ptr()));
    if (!number) {
      PyErr_Clear();
      TORCH_CHECK_TYPE(false, callee_.name, ": ", what, " must be made of integers, but it is ",
                       std::string(py::repr(value)), ".");
    }
    int overflow = 0;
    const long long read = PyLong_AsLongLongAndOverflow(number.ptr(), &overflow);
    return overflow == 0 ? read : overflow * std::numeric_limits<int64_t>::max();
  }

  int64_t read_size(const char* what, const py::handle& value) const {
    const int64_t size = read_int(what, value);
    TORCH_CHECK_VALUE(size >= 0, callee_.name, ": ", what, " must not be negative, but it is ",
                      size, ".");
    return size;
  }

  std::array<uint32_t, 3> read_dims(const char* what, const py::handle& value, int64_t least,
                                    const int64_t (&most)[3]) const {
    std::array<uint32_t, 3> dims{1, 1, 1};
    const bool is_sequence = PyTuple_Check(value.ptr()) || PyList_Check(value.ptr());
    const auto count = is_sequence ? PySequence_Fast_GET_SIZE(value.ptr()) : 1;
    TORCH_CHECK_VALUE(count >= 1 && count <= 3, callee_.name, ": ", what,
                      " must be an int or a tuple of one to three, but it is ",
                      std::string(py::repr(value)), ".");
    for (Py_ssize_t i = 0; i < count; ++i) {
      const py::handle item =
          is_sequence ? py::handle(PySequence_Fast_GET_ITEM(value.ptr(), i)) : value;
      const int64_t size = read_int(what, item);
      TORCH_CHECK_VALUE(size >= least && size <= most[i], callee_.name, ": ", what, " ", kAxes[i],
                        " must be ", least, " to ", most[i], ", but it is ", size, ".");
      dims[static_cast<size_t>(i)] = static_cast<uint32_t>(size);
    }
    return dims;
  }

  void check_limits(const LaunchShape& shape, const KernelAttributes& attributes) const {
    const int64_t threads = int64_t{shape.block[0]} * shape.block[1] * shape.block[2];
    TORCH_CHECK_VALUE(threads <= attributes.max_threads_per_block, callee_.name, ": a block of ",
                      threads, " threads is more than the ", attributes.max_threads_per_block,
                      " that this kernel can have (it takes ", attributes.num_regs,
                      " registers a thread).");
    TORCH_CHECK_VALUE(shape.shared_bytes <= attributes.max_dynamic_shared, callee_.name,
                      ": shared_mem is ", shape.shared_bytes, " bytes, more than the ",
                      attributes.max_dynamic_shared, " that a block of this kernel can have here.");
  }

  // Blocks that wait for one that has not begun would wait for ever.
  void check_resident(const LaunchShape& shape, Kernel kernel, c10::DeviceIndex device) const {
    const int64_t threads = int64_t{shape.block[0]} * shape.block[1] * shape.block[2];
    const int64_t most =
        gpu_code().count_resident_blocks(kernel, device, threads, shape.shared_bytes);
    // Each is below 2^31, 2^16, 2^16.
    const double blocks = double(shape.grid[0]) * shape.grid[1] * shape.grid[2];
    TORCH_CHECK_VALUE(blocks <= double(most), callee_.name, ": a cooperative launch of ",
                      static_cast<int64_t>(blocks), " blocks of ", threads,
                      " threads is more than the ", most,
                      " that this GPU runs at the same time. Use a smaller grid, and a loop.");
  }

  void* read_stream(const py::handle& stream, c10::DeviceIndex device) const {
    TORCH_CHECK_TYPE(py::hasattr(stream, "cuda_stream") && py::hasattr(stream, "device_index"),
                     callee_.name,
                     ": stream must be a torch.cuda.Stream (torch.cuda.ExternalStream "
                     "makes one of a handle), but it is a ",
                     Py_TYPE(stream.ptr())->tp_name, ".");
    const auto on = stream.attr("device_index").cast<int64_t>();
    TORCH_CHECK(on == device, callee_.name, ": the stream is on cuda:", on,
                ", but the kernel runs on cuda:", int64_t{device}, ".");
    return reinterpret_cast<void*>(stream.attr("cuda_stream").cast<intptr_t>());
  }

  Callee callee_;
  bool known_ = false;       // the parameters
  bool sizes_known_ = true;  // of all of them
  py::object load_;
  std::map<c10::DeviceIndex, Loaded> loaded_;  // its nodes stay where they are
  std::map<c10::DeviceIndex, Loaded>::value_type* last_ = nullptr;
};

}  // namespace

void bind_raw(py::module_& m) {
  py::enum_<ParamKind>(m, "ParamKind")
      .value("POINTER", ParamKind::kPointer)
      .value("BOOL", ParamKind::kBool)
      .value("INT", ParamKind::kInt)
      .value("UNSIGNED", ParamKind::kUnsigned)
      .value("BITS", ParamKind::kBits)
      .value("FLOAT", ParamKind::kFloat)
      .value("HALF", ParamKind::kHalf)
      .value("BFLOAT16", ParamKind::kBFloat16)
      .value("COMPLEX", ParamKind::kComplex)
      .value("BYTES", ParamKind::kBytes)
      .value("UNKNOWN", ParamKind::kUnknown);
  py::class_<KernelAttributes>(m, "KernelAttributes")
      .def_readonly("num_regs", &KernelAttributes::num_regs)
      .def_readonly("shared_size_bytes", &KernelAttributes::shared_size_bytes)
      .def_readonly("local_size_bytes", &KernelAttributes::local_size_bytes)
      .def_readonly("max_threads_per_block", &KernelAttributes::max_threads_per_block);
  py::class_<RawLauncher>(m, "RawLauncher")
      .def(py::init<std::string, py::object, py::object, py::object>(), py::arg("name"),
           py::arg("params"), py::arg("load"), py::arg("adopt"))
      .def("launch", &RawLauncher::launch)
      .def("attributes", &RawLauncher::attributes)
      .def("suggest_block", &RawLauncher::suggest_block);
}

}  // namespace torch_ops::jit
