// The name in which an op raises errors: its own, or that of an op that calls it, which passes it
// in the argument `name` of its schema.
#pragma once

#include <c10/util/Exception.h>

#include <optional>
#include <string_view>

namespace torch_ops::indexing {

// An op that calls others, and its users' names for the table and the index of a gather.
struct Caller {
  std::string_view op;
  std::string_view table = "source";
  std::string_view index = "index";
};

constexpr Caller kCallers[] = {
    {"embedding", "weight", "input"},
    {"embedding_bag", "weight", "offsets"},
    {"index"},
    {"index_put"},
    {"index_put_"},
    {"index_add"},
    {"gather_nd"},
    {"batch_gather"},
    {"take_along_dim"},
    {"scatter"},
    {"scatter_"},
    {"scatter_add_"},
    {"scatter_elements_add"},
    {"scatter_add"},
    {"segment_reduce", "values", "offsets"},
    {"gather_csr", "values", "offsets"},
};

inline Caller names_of(std::string_view op) {
  for (const Caller& caller : kCallers) {
    if (op == caller.op) return caller;
  }
  return {op};
}

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
