#include "scatter/explain.h"

#include <pybind11/stl.h>

#include <map>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "scatter/sum/choose.h"

namespace torch_ops {
namespace {

namespace py = pybind11;
using Numbers = std::map<std::string, int64_t>;
using Names = std::vector<std::string>;

Numbers numbers(const std::monostate&, int64_t) { return {}; }

Numbers numbers(const FixedCut& cut, int64_t) {
  if (!cut.fits) return {};
  return {{"table_rows", cut.table_rows}, {"slabs", cut.slabs},
          {"parts", cut.parts},           {"bins", cut.bins},
          {"segments", cut.segments},     {"tile_entries", cut.tile_entries},
          {"part_units", cut.part_units}, {"slabs_at_once", cut.slabs_at_once}};
}

Numbers numbers(const SmallCut& cut, int64_t sum_bytes) {
  if (!cut.fits) return {};
  const ScatteredChunks& chunks = cut.chunks;
  return {{"piece", cut.piece},
          {"rows", cut.rows},
          {"columns", cut.columns},
          {"row_blocks", cut.row_blocks},
          {"strips", cut.strips},
          {"threads", cut.threads},
          {"fills", cut.fills},
          {"row_bits", chunks.row_bits},
          {"place_bits", chunks.place_bits},
          {"factor", chunks.factor},
          {"share_places", chunks.share_places},
          {"bytes", cut.bytes(sum_bytes)}};
}

Numbers numbers(const PrivatizedCut& cut, int64_t) {
  if (!cut.fits) return {};
  return {{"vector", cut.vector}, {"threads", cut.threads}, {"lanes", cut.lanes},
          {"strips", cut.strips}, {"parts", cut.parts},     {"part_entries", cut.part_entries}};
}

Numbers numbers(const StagedCut& cut, int64_t) {
  return {{"bytes", cut.bytes}, {"threads", cut.threads}, {"part", cut.part}};
}

Numbers numbers(const TilesCut& cut, int64_t) {
  return {{"entries", cut.tile_entries()}, {"span", cut.span()}};
}

Numbers numbers(const StreamedCut& cut, int64_t) {
  return {{"entries", cut.entries}, {"pieces", cut.pieces}, {"columns", cut.columns}};
}

Names sorted_kernels(const SumProblem& problem) {
  Names names{"sum_tiles_kernel", "join_kernel", "fill_rest_kernel"};
  if (!problem.planned) names.insert(names.begin(), {"keys_kernel", "cub::DeviceRadixSort"});
  return names;
}

Names privatized_kernels(const PrivatizedCut& cut) {
  return cut.parts == 1 ? Names{"total_kernel"} : Names{"total_kernel", "join_kernel"};
}

Names kernels(const SumProblem& problem, const SumPlan& plan) {
  switch (plan.way()) {
    case SumWay::kFixedPoint: {
      const FixedCut& cut = std::get<FixedCut>(plan.cut);
      if (cut.bins == 0 && cut.parts == 1) return {"sum_kernel"};
      if (cut.bins == 0) return {"sum_kernel", "join_kernel"};
      return {"zero_kernel", "bin_tiles_kernel", "list_parts_kernel", "sum_kernel", "join_kernel"};
    }
    case SumWay::kSmall:
      return {"sum_kernel"};
    case SumWay::kSparse:
      if (std::get<SmallCut>(plan.cut).fills) return {"sum_kernel"};
      return {"zero_kernel", "sum_kernel"};
    case SumWay::kFew:
      return {"zero_kernel", "claim_kernel", "one by atomics",
              problem.layout.inner == 1 ? "write_pairs_kernel" : "write_kernel"};
    case SumWay::kPrivatized:
      return privatized_kernels(std::get<PrivatizedCut>(plan.cut));
    case SumWay::kSorted:
      return sorted_kernels(problem);
    default: {
      Names names{words("add_", ability(plan.way()).name, "_kernel")};
      if (!problem.in_place) names.insert(names.begin(), "zero_kernel");
      if (problem.table_bytes() > 0) names.push_back("round_kernel");
      return names;
    }
  }
}

// Keys and positions, twice if they are sorted here, without the memory of CUB's sort itself;
// the parts of runs that reach over tiles; and a bit for each row.
int64_t sorted_scratch(const SumProblem& problem) {
  const RowLayout& layout = problem.layout;
  const int64_t most = std::max({problem.entries(), problem.rows(), layout.inner});
  const int64_t id_bytes = most < INT32_MAX ? 4 : 8, entries = layout.batch * layout.entries;
  const auto wide = static_cast<int>(16 / problem.result_bytes);
  const RowPieces split(layout.inner, layout.inner % wide == 0 ? wide : 1);
  const int64_t tiles = ceil_div(entries, int64_t{split.groups(kRunThreads)} * kSpan);
  const bool as_they_are = problem.planned && (layout.batch == 1 || layout.outer == 1);
  const int64_t arrays = as_they_are ? 0 : problem.planned ? 2 : 4;
  return arrays * entries * id_bytes + ceil_div(problem.rows(), 32) * 4 +
         2 * tiles * layout.outer * layout.inner * problem.sum_bytes;
}

int64_t scratch(const SumProblem& problem, const SumPlan& plan) {
  const RowLayout& layout = problem.layout;
  switch (plan.way()) {
    case SumWay::kFixedPoint: {
      const FixedCut::Scratch scratch = std::get<FixedCut>(plan.cut).scratch(
          layout.entries, layout.inner * problem.result_bytes, layout.inner);
      return scratch.bytes + scratch.zeros;
    }
    case SumWay::kSmall:
    case SumWay::kSparse:
      return 0;
    case SumWay::kFew:
      return few_scratch(layout);
    case SumWay::kPrivatized:
      return std::get<PrivatizedCut>(plan.cut).scratch;
    case SumWay::kSorted:
      return sorted_scratch(problem);
    default:
      return table_bytes(problem, plan.at_once);
  }
}

const char* guarantee(bool floats, bool repeatable) {
  if (!floats) return "exact";
  return repeatable ? "the same bits on every run" : "last bits may differ from run to run";
}

py::dict describe(const std::string& way, const std::string& why, const char* guarantee,
                  int64_t scratch, const Names& kernels, const Numbers& cut) {
  py::dict result;
  result["way"] = way;
  result["why"] = why;
  result["guarantee"] = guarantee;
  result["scratch"] = scratch;
  result["kernels"] = kernels;
  result["cut"] = cut;
  return result;
}

RowLayout lay_out(int64_t batch, int64_t outer, int64_t axis_size, int64_t entries, int64_t inner) {
  for (const int64_t size : {batch, outer, axis_size, entries, inner}) {
    if (size < 1) throw std::invalid_argument("nothing is launched for empty tensors");
  }
  return RowLayout::contiguous(batch, outer, axis_size, entries, inner);
}

// The result of choose() for a sum. `way`: the cut of this one, whether it is chosen or not; empty
// if it does not fit.
py::dict plan(int64_t axis_size, int64_t entries, int64_t inner, int64_t batch, int64_t outer,
              int64_t value_bytes, bool floats, bool repeatable, bool planned, bool unrounded,
              bool in_place, bool adjacent, bool aligned, int64_t shared_bytes, int64_t l2_bytes,
              int64_t multiprocessors, int64_t compute_capability, const std::string& way) {
  const int64_t sum_bytes = std::max<int64_t>(value_bytes, 4);
  const SumProblem problem{lay_out(batch, outer, axis_size, entries, inner),
                           value_bytes,
                           sum_bytes,
                           in_place || unrounded ? sum_bytes : value_bytes,
                           floats,
                           floats && (repeatable || planned),
                           in_place,
                           planned,
                           adjacent && entries % 4 == 0,
                           floats && sum_bytes == 4 && aligned,
                           aligned};
  const DeviceLimits device{shared_bytes, l2_bytes, multiprocessors, compute_capability};
  const SumPlan chosen = choose(problem, device);
  Numbers cut =
      std::visit([&](const auto& known) { return numbers(known, sum_bytes); }, chosen.cut);
  if (way == "fixed point") cut = numbers(cut_fixed(problem, device), sum_bytes);
  if (way == "privatized") cut = numbers(cut_privatized(problem, device), sum_bytes);
  if (way == "small") cut = numbers(cut_small(problem, device), sum_bytes);
  if (way == "sparse") cut = numbers(cut_sparse(problem, device), sum_bytes);
  return describe(ability(chosen.way()).name, chosen.row->why(tuning(device)),
                  guarantee(floats, ability(chosen.way()).repeatable), scratch(problem, chosen),
                  kernels(problem, chosen), cut);
}

// The same for the largest values, alone or with their positions.
py::dict plan_best(int64_t axis_size, int64_t entries, int64_t inner, int64_t batch, int64_t outer,
                   int64_t value_bytes, bool planned, bool positions, int64_t shared_bytes,
                   int64_t l2_bytes, int64_t multiprocessors, int64_t compute_capability) {
  const DeviceLimits device{shared_bytes, l2_bytes, multiprocessors, compute_capability};
  const SortedTuning& tuned = tuning(device).sorted;
  const BestTuning& best_tuned = tuning(device).best;
  SumProblem problem{lay_out(batch, outer, axis_size, entries, inner)};
  problem.value_bytes = value_bytes;
  problem.sum_bytes = problem.result_bytes = sizeof(int64_t);
  problem.planned = planned;
  const auto best = [&](const char* way, const std::string& why, int64_t scratch,
                        const Names& kernels) {
    return describe(way, why, guarantee(true, true), scratch, kernels, {});
  };
  // By positions, which the values are taken by if these alone are wanted.
  const auto by_positions = [&](const char* way, const std::string& why, int64_t scratch,
                                Names kernels) {
    if (!positions) {
      kernels.push_back("take_kernel");
      scratch += problem.result_values() * static_cast<int64_t>(sizeof(int64_t));
    }
    return best(way, why, scratch, kernels);
  };
  const PrivatizedCut cut = cut_for_best(problem.layout, value_bytes, device);
  if (cut.fits) {
    const PrivatizedTuning& t = tuning(device).privatized;
    return by_positions("privatized",
                        words("few rows (at most ", best_tuned.most_wide_rows, " of ", t.wide_row,
                              " values or more), ", t.entries_per_row,
                              " entries or more for each row of one slab, ", t.least_values,
                              " values or more in all"),
                        cut.scratch, privatized_kernels(cut));
  }
  const bool sorts = positions ? planned || pays_to_sort_for_best(problem.layout, device)
                               : pays_to_sort_for_values(problem.layout, planned, device);
  if (sorts) {
    return by_positions(
        "sorted",
        planned ? "a plan has the entries in order"
                : words("rows of ", tuned.least_best_row, " values or more, ",
                        tuned.least_best_values, " values or more; or ", best_tuned.least_crowd,
                        " entries or more to at most ", best_tuned.most_crowded_rows, " rows"),
        sorted_scratch(problem), sorted_kernels(problem));
  }
  const int64_t elements = problem.result_values();
  if (positions) {
    return best("two passes", "everything else", elements * std::max<int64_t>(value_bytes, 4),
                {"fill_kernel", "arg_kernel", "arg_kernel"});
  }
  const bool widens = value_bytes < 4;
  Names kernels{"mark_kernel", "start_kernel", "improve_kernel"};
  if (widens) kernels.push_back("round_kernel");
  return best("one pass", "everything else", batch * axis_size + (widens ? elements * 4 : 0),
              kernels);
}

// The table of choose.h: whether a row is for calls whose bits must be the same on every run, its
// way, and when it applies.
std::vector<std::tuple<bool, std::string, std::string>> ways() {
  std::vector<std::tuple<bool, std::string, std::string>> rows;
  const auto list = [&](bool repeatable, const auto& table) {
    for (const SumRow& row : table) {
      rows.emplace_back(repeatable, ability(row.way).name, row.why(tuning({})));
    }
  };
  list(true, kRepeatableSums);
  list(false, kSums);
  return rows;
}

}  // namespace

void def_explain(py::module_& m) {
  using py::arg;
  m.def("plan", &plan, "What a sum of these sizes does on a GPU with these limits; an H200's",
        arg("axis_size"), arg("entries"), arg("inner"), py::kw_only(), arg("batch") = 1,
        arg("outer") = 1, arg("value_bytes") = 4, arg("floats") = true, arg("repeatable") = false,
        arg("planned") = false, arg("unrounded") = false, arg("in_place") = false,
        arg("adjacent") = true, arg("aligned") = true, arg("shared_bytes") = 227 << 10,
        arg("l2_bytes") = 60 << 20, arg("multiprocessors") = 132, arg("compute_capability") = 90,
        arg("way") = "");
  m.def("plan_best", &plan_best, "The same of the largest or smallest values", arg("axis_size"),
        arg("entries"), arg("inner"), py::kw_only(), arg("batch") = 1, arg("outer") = 1,
        arg("value_bytes") = 4, arg("planned") = false, arg("positions") = false,
        arg("shared_bytes") = 227 << 10, arg("l2_bytes") = 60 << 20, arg("multiprocessors") = 132,
        arg("compute_capability") = 90);
  m.def("ways", &ways, "The table of ways, in order of preference");
}

}  // namespace torch_ops
