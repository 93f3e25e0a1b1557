// An indexed kernel as a Python object whose call is one call into C++.
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/searchsorted.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>

#include "jit/call/python_arguments.h"
#include "jit/call/registered.h"
#include "jit/indexed/indexed.h"
#include "jit/jit.h"

namespace torch_ops::jit::indexed {
namespace py = pybind11;
namespace {

// What torch_ops.jit.IndexPlan holds, read once.
struct HeldPlan {
  std::vector<std::string> names;
  std::vector<Tensor> indices, parts;
  std::vector<int64_t> longest, sizes;
  int64_t batch_dims;
};

std::string type_name(const py::handle& value) { return Py_TYPE(value.ptr())->tp_name; }

std::string joined(const std::vector<std::string>& names) { return c10::Join(", ", names); }

int64_t int_of(const Indexed& kernel, const std::string& name, const py::handle& value) {
  TORCH_CHECK_TYPE(PyIndex_Check(value.ptr()) && !PyBool_Check(value.ptr()), kernel.name, ": ",
                   name, " must be an int, but it is ", type_name(value), ".");
  const int64_t number =
      PyLong_AsLongLong(py::int_(py::reinterpret_borrow<py::object>(value)).ptr());
  if (number == -1 && PyErr_Occurred()) {
    if (!PyErr_ExceptionMatches(PyExc_OverflowError)) throw py::error_already_set();
    PyErr_Clear();
    TORCH_CHECK_VALUE(false, kernel.name, ": ", name, " must fit int64, but it is ",
                      py::str(value).cast<std::string>(), ".");
  }
  return number;
}

// A call's keyword arguments: indices, plan, sizes, batch_dims, deterministic.
class Keywords {
 public:
  Keywords(const Indexed& kernel, const py::dict& given) : kernel_(kernel) {
    const size_t count = kernel.indices.size();
    call.indices.resize(count);
    call.sizes.assign(count, -1);
    py::handle plan, sizes;
    for (const auto& [key, value] : given) {
      const std::string name = key.cast<std::string>();
      const auto found = std::find(kernel.indices.begin(), kernel.indices.end(), name);
      if (found != kernel.indices.end()) {
        values_.emplace_back(found - kernel.indices.begin(), value);
      } else if (name == "plan") {
        plan = value;
      } else if (name == "sizes") {
        sizes = value;
      } else if (name == "batch_dims") {
        call.batch_dims = int_of(kernel, name, value);
        has_batch_dims_ = true;
      } else if (name == "deterministic") {
        if (!value.is_none()) bool_of(kernel.name, "deterministic", value);
      } else {
        TORCH_CHECK_TYPE(false, kernel.name, " takes the indices ", joined(kernel.indices),
                         ", and plan, sizes, batch_dims, deterministic by name, but got ", name,
                         ".");
      }
    }
    if (plan.ptr() != nullptr && !plan.is_none()) read_plan(plan);
    for (const auto& [index, value] : values_) read_index(index, value);
    for (size_t k = 0; k < count; ++k) {
      TORCH_CHECK_TYPE(call.indices[k].defined(), kernel.name, ": the index ", kernel.indices[k],
                       " is missing. Pass ", kernel.indices[k], "=..., or a plan that has it.");
    }
    if (sizes.ptr() != nullptr && !sizes.is_none()) read_sizes(sizes);
  }

  Call call;

 private:
  // Of a plan whose tensors are of a subclass, such as fake ones.
  static HeldPlan read_held(const py::handle& plan) {
    return {plan.attr("names").cast<std::vector<std::string>>(),
            plan.attr("indices").cast<std::vector<Tensor>>(),
            plan.attr("parts").cast<std::vector<Tensor>>(),
            plan.attr("longest").cast<std::vector<int64_t>>(),
            plan.attr("sizes").cast<std::vector<int64_t>>(),
            plan.attr("batch_dims").cast<int64_t>()};
  }

  void read_plan(const py::handle& value) {
    TORCH_CHECK_TYPE(py::hasattr(value, "_held"), kernel_.name,
                     ": plan must be what torch_ops.jit.index_plan returns, but it is ",
                     type_name(value), ".");
    TORCH_CHECK_TYPE(values_.empty(), kernel_.name,
                     ": the indices are given twice, by plan= and by their names.");
    const py::object holder = value.attr("_held");
    const HeldPlan plan = holder.is_none() ? read_held(value) : holder.cast<const HeldPlan&>();
    const size_t count = kernel_.indices.size();
    std::vector<size_t> places;
    for (const std::string& name : kernel_.indices) {
      const auto found = std::find(plan.names.begin(), plan.names.end(), name);
      TORCH_CHECK_VALUE(found != plan.names.end(), kernel_.name, ": the plan has no index ", name,
                        "; it has ", joined(plan.names), ".");
      places.push_back(found - plan.names.begin());
    }
    TORCH_CHECK_VALUE(!has_batch_dims_ || call.batch_dims == plan.batch_dims, kernel_.name,
                      ": the plan was made for batch_dims=", plan.batch_dims,
                      ", but batch_dims=", call.batch_dims,
                      " was given. Leave it out: the plan has it.");
    call.batch_dims = plan.batch_dims;
    const int64_t stride = Planned::count(plan.names.size());
    for (size_t k = 0; k < count; ++k) {
      call.indices[k] = plan.indices[places[k]];
      call.sizes[k] = plan.sizes[places[k]];
      call.longest.push_back(plan.longest[places[k]]);
      const auto first = plan.parts.begin() + static_cast<int64_t>(places[k]) * stride;
      call.plans.push_back(first[0]);
      call.plans.push_back(first[1]);
      for (const size_t other : places) {
        call.plans.push_back(first[2 + static_cast<int64_t>(other)]);
      }
    }
  }

  void read_index(size_t k, const py::handle& value) {
    if (THPVariable_Check(value.ptr())) {
      const Tensor& index = call.indices[k] = THPVariable_Unpack(value.ptr());
      TORCH_CHECK_TYPE(index.layout() == at::kStrided && !index.is_nested(), kernel_.name, ": ",
                       kernel_.indices[k], " must be a strided tensor, but it is ",
                       index.is_nested() ? "nested" : c10::str(index.layout()), ".");
      return;
    }
    TORCH_CHECK_TYPE(py::isinstance(value, kernel_.gather_plan), kernel_.name, ": ",
                     kernel_.indices[k], " must be a tensor or a GatherPlan, but it is ",
                     type_name(value), ".");
    const auto batch_dims = value.attr("batch_dims").cast<int64_t>();
    const auto dim = value.attr("dim").cast<int64_t>();
    TORCH_CHECK_VALUE(!has_batch_dims_ || batch_dims == call.batch_dims, kernel_.name, ": ",
                      kernel_.indices[k], " is a plan for batch_dims=", batch_dims,
                      ", but batch_dims=", call.batch_dims, " was given.");
    TORCH_CHECK_VALUE(dim == batch_dims, kernel_.name, ": ", kernel_.indices[k],
                      " is a plan for dim=", dim, ", but rows are picked along dim=", batch_dims,
                      ". Make it without dim.");
    call.batch_dims = batch_dims;
    has_batch_dims_ = true;
    const auto index = value.attr("index").cast<Tensor>();
    const auto rows = value.attr("rows").cast<Tensor>(), order = value.attr("order").cast<Tensor>();
    const auto size = value.attr("dim_size").cast<int64_t>();
    TORCH_CHECK_VALUE(index.dim() == batch_dims + 1, kernel_.name, ": ", kernel_.indices[k],
                      " must be a plan of an index whose number of axes is ", batch_dims + 1,
                      ", but it is ", index.dim(), ".");
    call.indices[k] = index;
    call.sizes[k] = size;
    const size_t count = kernel_.indices.size();
    if (call.plans.empty()) {
      const Tensor none = at::empty({0}, rows.options());
      call.plans.assign(static_cast<size_t>(Planned::count(count)) * count, none);
      call.longest.assign(count, -1);
    }
    int64_t all = size;
    for (int64_t d = 0; d < batch_dims; ++d) all *= index.size(d);
    const size_t first = k * static_cast<size_t>(Planned::count(count));
    call.plans[first] = order;
    call.plans[first + 1] = at::searchsorted(rows, at::arange(all + 1, rows.options()),
                                             /*out_int32=*/rows.scalar_type() == at::kInt);
  }

  void read_sizes(const py::handle& value) {
    TORCH_CHECK_TYPE(py::isinstance<py::dict>(value), kernel_.name,
                     ": sizes must be a dict from an index's name to a number of rows, but it is ",
                     type_name(value), ".");
    for (const auto& [key, size] : py::reinterpret_borrow<py::dict>(value)) {
      const auto name = py::str(key).cast<std::string>();
      const auto found = std::find(kernel_.indices.begin(), kernel_.indices.end(), name);
      TORCH_CHECK_VALUE(found != kernel_.indices.end(), kernel_.name, ": sizes names ", name,
                        ", but the indices are ", joined(kernel_.indices), ".");
      const int64_t number = int_of(kernel_, "sizes[\"" + name + "\"]", size);
      TORCH_CHECK_VALUE(number >= 0, kernel_.name, ": the size of ", name,
                        " must not be negative, but it is ", number, ".");
      c10::SymInt& known = call.sizes[found - kernel_.indices.begin()];
      TORCH_CHECK_VALUE(known == -1 || known == number, kernel_.name, ": the number of rows that ",
                        name, " counts is ", known, " by the plan, but ", number, " by sizes=.");
      known = number;
    }
  }

  const Indexed& kernel_;
  std::vector<std::pair<size_t, py::handle>> values_;
  bool has_batch_dims_ = false;
};

py::object call(Indexed& kernel, const py::tuple& args, const py::dict& given) {
  TORCH_CHECK_TYPE(args.size() == kernel.in.size(), kernel.name,
                   ": the number of arguments, besides the indices ", joined(kernel.indices),
                   " by name, must be ", kernel.in.size(), ", but it is ", args.size(), ".");
  if (is_watched(args, given)) return not_implemented();
  const HeldArguments held(kernel, args, /*resolved=*/false);
  const Arguments& arguments = held.arguments;
  const Call call = Keywords(kernel, given).call;
  c10::SmallVector<Tensor, 12> others(call.indices.begin(), call.indices.end());
  others.append(call.plans.begin(), call.plans.end());
  const auto plain = [&] { return run(kernel, arguments, call, /*winners=*/false); };
  const auto by_op = [&] { return call_op(kernel, split_arguments(arguments), call); };
  return as_result(call_from_python(kernel, arguments, {}, others, plain, by_op));
}

std::vector<Role> roles_of(const py::object& parameters) {
  std::vector<Role> roles;
  for (const auto& [index, reduce, features] :
       parameters.cast<std::vector<std::tuple<int, std::string, std::vector<int64_t>>>>()) {
    roles.push_back({index,
                     reduce == "sum"    ? Reduce::kSum
                     : reduce == "mean" ? Reduce::kMean
                     : reduce == "amax" ? Reduce::kMax
                     : reduce == "amin" ? Reduce::kMin
                                        : Reduce::kNone,
                     features});
  }
  return roles;
}

}  // namespace
}  // namespace torch_ops::jit::indexed

namespace torch_ops::jit {

void bind_indexed(py::module_& m) {
  using indexed::HeldPlan;
  using indexed::Indexed;
  py::class_<HeldPlan>(m, "HeldPlan")
      .def(py::init<std::vector<std::string>, std::vector<Tensor>, std::vector<Tensor>,
                    std::vector<int64_t>, std::vector<int64_t>, int64_t>(),
           py::arg("names"), py::arg("indices"), py::arg("parts"), py::arg("longest"),
           py::arg("sizes"), py::arg("batch_dims"));
  py::class_<Indexed, Signature, std::shared_ptr<Indexed>>(m, "Indexed")
      .def(py::init([](const py::kwargs& facts) {
        auto kernel = make_kernel<Indexed>(facts, [&](Indexed& made) {
          made.in_roles = indexed::roles_of(facts["in_roles"]);
          made.out_roles = indexed::roles_of(facts["out_roles"]);
          made.indices = facts["indices"].cast<std::vector<std::string>>();
          for (const std::string& index : made.indices) {
            made.error_names.push_back(std::make_unique<std::string>(made.name + ":" + index));
          }
          made.uses_index = facts["uses_index"].cast<bool>();
          made.uses_size = facts["uses_size"].cast<bool>();
          made.compile = facts["compile"];
          made.derive = facts["derive"];
          made.gather_plan = facts["gather_plan"];
        });
        indexed::register_indexed(kernel);
        return kernel;
      }))
      .def("call", &indexed::call, py::arg("args"), py::arg("keywords"));
}

}  // namespace torch_ops::jit
