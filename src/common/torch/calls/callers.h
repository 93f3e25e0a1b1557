// The name in which an op raises errors: its own, or that of an op that calls it, which passes it
// in the argument `name` of its schema.
#pragma once

#include <c10/util/Exception.h>

#include <optional>
#include <string_view>

namespace torch_ops::indexing {

// An op that calls others, and its users' names for the table and the index of a gather. After a
// colon: which of its indices, if it has more than one.
struct Caller {
  std::string_view op;
  std::string_view table = "source";
  std::string_view index = "index";
  bool is_bound = false;  // where something begins or ends: the axis's end is allowed too
  bool is_point = false;  // the entries of the gather's index are in the last axis of the user's
};

constexpr Caller kCallers[] = {
    {"embedding", "weight", "input"},
    {"embedding_bag:input", "weight", "input"},
    {"embedding_bag:offsets", "weight", "offsets", true},
    {"gather"},
    {"index"},
    {"index_put"},
    {"index_put_"},
    {"index_add"},
    {"gather_nd", "source", "index", false, true},
    {"batch_gather"},
    {"take_along_dim"},
    {"scatter"},
    {"scatter_"},
    {"scatter_add_"},
    {"scatter_elements_add"},
    {"scatter_add"},
    {"segment_reduce", "values", "offsets", true},
    {"gather_csr", "values", "offsets", true},
    {"softmax"},
    {"softmax:offsets", "values", "offsets", true},
    {"log_softmax"},
    {"log_softmax:offsets", "values", "offsets", true},
    {"logsumexp"},
    {"logsumexp:offsets", "values", "offsets", true},
    {"distributed.gather", "table"},
    {"ShardedTable", "table"},
    {"ShardedTable.prefetch", "table"},
};

inline Caller names_of(std::string_view op) {
  for (const Caller& caller : kCallers) {
    if (op == caller.op) return caller;
  }
  // A generated kernel's name, and that of its index.
  const size_t colon = op.find(':');
  return colon == op.npos ? Caller{op} : Caller{op, "source", op.substr(colon + 1)};
}

// As messages name the op.
inline std::string_view shown(std::string_view op) { return op.substr(0, op.find(':')); }

// `own` or the op that `name` names: a literal, since the kernels' records of errors keep it.
inline const char* name_of(const char* own, const std::optional<std::string_view>& name) {
  if (!name) return own;
  for (const Caller& caller : kCallers) {
    if (*name == caller.op) return caller.op.data();
  }
  TORCH_CHECK_VALUE(false, own, R"(: name must be that of an op that calls this one, but it is ")",
                    *name, R"(".)");
}

}  // namespace torch_ops::indexing
