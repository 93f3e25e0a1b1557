#include "gather/explain.h"

#include <stdexcept>

#include "gather/cuda/gather_path.h"

namespace torch_ops {
namespace {

namespace py = pybind11;

struct Words {
  const char* name;
  const char* why;
  const char* kernel;
};

Words describe(GatherPath path) {
  switch (path) {
    case GatherPath::kFlat:
      return {"flat", "words of 8 or 16 bytes, rows of few words, small calls, very long rows",
              "gather_flat_kernel"};
    case GatherPath::kShort:
      return {"short", "rows of several words below 8 bytes", "gather_short_kernel"};
    case GatherPath::kGranules:
      return {"granules", "longer rows of words of 1 or 2 bytes", "gather_granules_kernel"};
    case GatherPath::kElements:
      return {"elements", "single words of a table that the L2 cache does not hold",
              "gather_elements_kernel"};
    case GatherPath::kStaged:
      return {"staged", "single words of a small table, picked often enough to copy it",
              "gather_staged_kernel"};
  }
  throw std::logic_error("a path without a name");
}

// The result of choose_gather_path() for a table without gaps, whose tensors begin at multiples of
// `alignment` bytes.
py::dict plan(int64_t axis_size, int64_t entries, int64_t inner, int64_t element_bytes,
              int64_t batch, int64_t outer, int64_t index_stride, int64_t alignment,
              int64_t shared_bytes, int64_t l2_bytes, int64_t multiprocessors,
              int64_t compute_capability) {
  for (const int64_t size : {axis_size, entries, inner, element_bytes, batch, outer, alignment}) {
    if (size < 1) throw std::invalid_argument("nothing is launched for empty tensors");
  }
  RowLayout layout = RowLayout::contiguous(batch, outer, axis_size, entries, inner);
  layout.index_entry_stride = index_stride;
  layout.index_batch_stride = entries * index_stride;
  const WordLayout words = lay_out_words(layout, element_bytes, static_cast<uintptr_t>(alignment));
  const GatherPath path =
      choose_gather_path(words.layout, words.word_bytes,
                         {shared_bytes, l2_bytes, multiprocessors, compute_capability});
  const Words said = describe(path);
  py::dict result;
  result["way"] = said.name;
  result["why"] = said.why;
  result["guarantee"] = "exact";
  result["scratch"] = 0;
  result["kernels"] = py::make_tuple(said.kernel);
  result["word_bytes"] = words.word_bytes;
  return result;
}

}  // namespace

void def_explain(py::module_& m) {
  using py::arg;
  m.def("plan", &plan, "What a gather of these sizes does on a GPU with these limits; an H200's",
        arg("axis_size"), arg("entries"), arg("inner"), py::kw_only(), arg("element_bytes") = 4,
        arg("batch") = 1, arg("outer") = 1, arg("index_stride") = 1, arg("alignment") = 16,
        arg("shared_bytes") = 227 << 10, arg("l2_bytes") = 60 << 20, arg("multiprocessors") = 132,
        arg("compute_capability") = 90);
}

}  // namespace torch_ops
